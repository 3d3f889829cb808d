#pragma once

#include <tessera/core/tensor.hpp>

// Elements by index along one dimension (negative counts from the end) and by mask. Indices are i32
// or i64 global places along `dim`; all other dimensions of index and values are those of x. Split
// dimensions, also `dim`: elements are routed between ranks, never all gathered. An index out of
// range throws as in lookup().

namespace tessera {

/// y[..., i, ...] = x[..., index[..., i, ...], ...]; split as the index.
Tensor take_along(const Tensor& x, const Tensor& index, int dim);
/// y[..., i, ...] = x[..., index[i], ...]; index [m].
Tensor index_select(const Tensor& x, int dim, const Tensor& index);
/// x with values[..., i, ...] added at [..., index[..., i, ...], ...]: all of those that name one
/// place, in fixed order. The layout of x.
Tensor scatter_add_along(const Tensor& x, const Tensor& index, const Tensor& values, int dim);
/// x with values[..., i, ...] in the place of [..., index[..., i, ...], ...]; the last of those
/// that name one place counts, and gets the gradient. The layout of x.
Tensor scatter_along(const Tensor& x, const Tensor& index, const Tensor& values, int dim);

/// `mask ? value : x`; the mask is bool and stretches to x.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);
/// The elements of x where the mask is true, [count], in row-major order; the mask is bool and
/// stretches to x. Only data decide the count: ranks exchange theirs, and a dry run throws
/// NotSupported. The result is split by all axes that split x, so that nothing moves where x is
/// split along its outermost dimension alone.
Tensor masked_select(const Tensor& x, const Tensor& mask);

}  // namespace tessera
