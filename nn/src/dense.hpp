#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

/// `t` itself, or a copy where its part does not lie densely.
inline Tensor dense(const Tensor& t) {
  return t.local().is_dense() ? t : Tensor::from_local(t.local(), t.layout());
}

}  // namespace tessera
