#pragma once

#include <tessera/core/edge.hpp>
#include <tessera/core/view.hpp>
#include <tessera/kernels/interpolate.hpp>

/// The elements around points, and their weights. Points [..., D] of any floating type give places
/// in a domain of `size`, in units in which it is [-1, 1]: point g lies at ((g + 1) n - 1) / 2,
/// with `align_corners` at (g + 1) / 2 (n - 1), in units of elements. Computed in double.
namespace tessera::kernels {

struct GridGeometry {
  InterpolateMode mode = InterpolateMode::kLinear;
  bool align_corners = false;
};

/// Elements that each point reads in one dimension: 1, 2 or 4.
int grid_tap_count(InterpolateMode mode);

/// position[..., k] = row-major place in the domain of the k-th element around the point (the last
/// dimension fastest), or -1 where the edge rule of its dimension names none; i64, taps^D of them.
/// Nearest rounds half to even. A point that is no number has some elements.
void grid_taps(const GridGeometry& g,
               const Dims& size,
               const Dims& edge,
               const View& points,
               const View& position);

/// w[..., k] = product over dimensions d of the derivative `order[d]` of the weight of the k-th
/// element by the coordinate of the point; linear or cubic (Keys 1981, a = -0.75). Not a number
/// where the point is none, unless the derivative is constant.
void grid_weights(
    const GridGeometry& g, const Dims& size, const Dims& order, const View& points, const View& w);

}  // namespace tessera::kernels
