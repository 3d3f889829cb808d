#pragma once

#include <tessera/core/view.hpp>

namespace tessera::kernels {

enum class InterpolateMode : std::uint8_t { kNearest, kLinear, kCubic };
const char* name(InterpolateMode mode);

/// How outputs lie between inputs. In each domain dimension with n inputs and m outputs, output j
/// looks at (j + 0.5) n / m - 0.5, with `align_corners` at j (n - 1) / (m - 1). Nearest takes
/// floor(j n / m); linear the two neighbours, cubic four (Keys 1981, a = -0.75); positions outside
/// the domain are clamped to it.
struct InterpolateGeometry {
  InterpolateMode mode = InterpolateMode::kLinear;
  bool align_corners = false;
};

/// Inputs [lo, hi) that the outputs [out.lo, out.hi) of one dimension of n inputs and m outputs
/// read; empty for none.
Interval interpolate_need(const InterpolateGeometry& g,
                          std::int64_t n,
                          std::int64_t m,
                          Interval out);

/// Outputs [lo, hi) that read any of the inputs [in.lo, in.hi): what the gradient of these inputs
/// needs.
Interval interpolate_adjoint_need(const InterpolateGeometry& g,
                                  std::int64_t n,
                                  std::int64_t m,
                                  Interval in);

/// y = x resampled to the global shape of y; pieces [N, d..., C] with 1 to 3 domain dimensions,
/// f32, f64 or bf16. Sizes, hence weights, are those of the global shapes. Throws ShapeError when x
/// lacks an element that y needs.
void interpolate_forward(const InterpolateGeometry& g, const Piece& x, const Piece& y);

/// The adjoint in gather form: dx[i] = sum over the outputs j that read i of weight(j, i) * dy[j],
/// ascending in j.
void interpolate_input_grad(const InterpolateGeometry& g, const Piece& dy, const Piece& dx);

}  // namespace tessera::kernels
