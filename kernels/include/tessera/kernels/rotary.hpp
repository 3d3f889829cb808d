#pragma once

#include <span>
#include <tessera/core/view.hpp>

/// Rotation of pairs of channels by an angle that grows with the position (rotary encoding; Su et
/// al. 2021).
namespace tessera::kernels {

/// How one pair of channels turns: by `step` radians per element of domain dimension `dim`.
struct RotaryPair {
  int dim = 0;
  double step = 0.0;
};

/// y = x with channels c and c + P of each head turned by pairs[c].step * (global position along
/// domain dimension pairs[c].dim), where P = pairs.size(); `inverse`: by minus that.
///
/// x and y [N, domain..., H, 2 P]; the place is that of `y`. Angles are made in double from the
/// global position alone, so the bits of an element do not depend on the box. Throws ShapeError,
/// DTypeError.
void rotary(std::span<const RotaryPair> pairs, bool inverse, const View& x, const Piece& y);

}  // namespace tessera::kernels
