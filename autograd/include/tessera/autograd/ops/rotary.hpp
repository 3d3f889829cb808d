#pragma once

#include <tessera/core/tensor.hpp>
#include <vector>

namespace tessera {

/// Options of rotary() and of other encodings that are made of waves along the domain.
struct RotaryOptions {
  double base = 10000.0;  ///< ratio of the longest to the shortest wave; 100 suits small images
  double scale = 1.0;     ///< positions are multiplied by this (longer sequences: below 1)
  /// Per domain dimension, or one for all: waves fit the dimension a whole number of times (1 at
  /// least), so that positions 0 and n are one and differences wrap around.
  std::vector<bool> circular = {};
};

/// A wave along domain dimension `dim`, `step` radians per element.
struct PositionWave {
  int dim = 0;
  double step = 0.0;
};

/// `count` waves, divided among the dimensions of `domain` in order: each gets count / dims of
/// them, the first count % dims one more. Wave j of m of a dimension has step scale * base^(-j/m),
/// rounded to a multiple of 2 pi / n where the dimension is circular. Throws UsageError.
std::vector<PositionWave> position_waves(const Dims& domain,
                                         std::int64_t count,
                                         const RotaryOptions& options);

/// Rotary encoding (Su et al. 2021) in any number of domain dimensions: channels c and c + D/2 of
/// each head of x [N, domain..., H, D] are turned by the angle of wave c of
/// position_waves(domain, D/2) at the token's global position.
///
/// With one domain dimension this is the convention of GPT-NeoX and Llama ("rotate half"), with two
/// that of DINOv3. Linear in x; its gradient turns back. Samples, domain and heads may be split:
/// nothing is communicated. Throws ShapeError for odd D, LayoutError for split channels.
Tensor rotary(const Tensor& x, const RotaryOptions& options = {});

}  // namespace tessera
