#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

// Lengths and products, made of smaller ops: derivatives of any order exist, and over a split
// dimension the sums are reduced. Dimensions as in sum(): negative counts from the end, an empty
// list means all.

/// (sum |x|^p)^(1/p) for p > 0; the largest |x| for p = infinity, the smallest for -infinity, the
/// number of elements that are not 0 for p = 0. The gradient of a vector of zeros is zero. Throws
/// UsageError for another p.
Tensor vector_norm(const Tensor& x, double p = 2.0, const Dims& dims = {}, bool keepdim = false);

enum class MatrixNorm : std::uint8_t {
  kFrobenius,  ///< root of the sum of squares
  kOne,        ///< largest sum of |x| over a column
  kInfinity    ///< largest sum of |x| over a row
};
/// Norm of the matrices in dimensions `row` and `column` of x, which are left out of the result.
Tensor matrix_norm(const Tensor& x,
                   MatrixNorm kind = MatrixNorm::kFrobenius,
                   int row = -2,
                   int column = -1);

/// sum a b over all elements of two tensors of one shape.
Tensor dot(const Tensor& a, const Tensor& b);
/// y[i, j] = a[i] b[j]; a [n], b [m]. Either may be split, by different axes.
Tensor outer(const Tensor& a, const Tensor& b);

/// log(sum exp(x)). The largest element is subtracted first: no overflow. -infinity over nothing
/// but -infinity.
Tensor logsumexp(const Tensor& x, const Dims& dims = {}, bool keepdim = false);

}  // namespace tessera
