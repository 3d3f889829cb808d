#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

/// Options of the pooling ops; lists as in ConvOptions. The default stride is the kernel.
struct PoolOptions {
  Dims kernel = {};
  Dims stride = {};
  Dims pad_lo = {};
  Dims pad_hi = {};
  Dims dilation = {};
  bool ceil_mode = false;
  bool count_include_pad = false;  ///< average: whether padding counts in the divisor
};

/// Largest element of each window, x [N, domain..., C]; of equal elements the first gets the
/// gradient.
Tensor max_pool(const Tensor& x, const PoolOptions& options);
/// Mean of each window; divisors follow from global positions.
Tensor avg_pool(const Tensor& x, const PoolOptions& options);

}  // namespace tessera
