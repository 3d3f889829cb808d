#pragma once

#include <tessera/autograd/ops/interpolate.hpp>
#include <tessera/core/edge.hpp>
#include <vector>

namespace tessera {

/// Options of grid_sample().
struct GridSampleOptions {
  InterpolateMode mode = InterpolateMode::kLinear;
  /// What lies outside the domain, in each domain dimension or in all alike.
  std::vector<EdgeRule> edge = {EdgeRule::kZero};
  /// Whether -1 and 1 are the centres of the first and last elements, instead of their outer edges.
  bool align_corners = false;
};

/// Samples of x [N, d..., C] at the points grid [N, o..., D]: y [N, o..., C]; o... is any domain,
/// or a list of points.
///
/// Coordinate k of a point lies in domain dimension k (so the last one is that of the innermost),
/// in units in which the domain is [-1, 1]. Nearest (half to even), linear in the 2^D elements
/// around the point, or cubic in 4^D (Keys 1981, a = -0.75). The edge rule holds for each of these
/// elements. Both x and the grid may be split in any way, over the same axes, too: rows are routed
/// to the points, y is split as the grid. Made of lookup() and small ops: derivatives of any order
/// by x and the grid. The grid has the type of x, or is f32 beside bf16.
Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& options = {});

}  // namespace tessera
