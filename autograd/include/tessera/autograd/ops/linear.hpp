#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

/// y[..., o] = sum_i x[..., i] w[o, i] + bias[o]; x [..., in], w [out, in], bias [out] or
/// undefined. Any leading dimension may be split; w split on out gives a split result, x and w
/// split on in give a Partial one.
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias = {});
/// [..., M, K] x [..., K, N] with equal leading dimensions (or a right factor of two dimensions);
/// either factor may be given transposed.
Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a = false, bool transpose_b = false);

}  // namespace tessera
