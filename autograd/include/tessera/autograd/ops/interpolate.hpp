#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

enum class InterpolateMode : std::uint8_t { kNearest, kLinear, kCubic };

/// Options of interpolate().
struct InterpolateOptions {
  InterpolateMode mode = InterpolateMode::kLinear;
  bool align_corners = false;  ///< source (j) (n-1)/(m-1) instead of (j + 1/2) n/m - 1/2
  /// Boundaries of the result follow those of x in proportion; where the result must match another
  /// tensor (a skip connection), pass that tensor's layout of [N, size..., any C].
  Layout like = {};
};

/// Resamples the domain of x [N, domain..., C] to `size`; separable, borders clamped, cubic with a
/// = -0.75 (Keys 1981).
Tensor interpolate(const Tensor& x, const Dims& size, const InterpolateOptions& options = {});

}  // namespace tessera
