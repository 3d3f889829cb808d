#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

/// This rank's part and where it lies; an empty piece for an undefined tensor.
inline Piece piece_of(const Tensor& x) {
  if (!x.defined()) return {};
  return {x.local(), x.local_box(), x.shape()};
}

}  // namespace tessera
