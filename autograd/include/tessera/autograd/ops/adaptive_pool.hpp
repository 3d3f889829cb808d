#pragma once

#include <tessera/autograd/ops/pool.hpp>

namespace tessera {

/// Mean of x [N, domain..., C] over bins: element j of m covers the elements floor(j n / m) up to
/// ceil((j + 1) n / m) of n in each domain dimension (as PyTorch; bins overlap where m does not
/// divide n, and repeat elements where m > n). Area interpolation is the same.
///
/// Boundaries of the result follow those of x in proportion, or `like`, a layout of [N, size...,
/// any C]. A result of one element is global_avg_pool(). Throws ShapeError when sizes do not fit.
Tensor adaptive_avg_pool(const Tensor& x, const Dims& size, const Layout& like = {});

/// Largest element of each bin, as above; of equal elements the first gets the gradient. Where bins
/// are wide, a rank gets the whole bins of its elements of the result: for one bin
/// global_max_pool() moves one element instead.
Tensor adaptive_max_pool(const Tensor& x, const Dims& size);

/// Mean over the whole domain, [N, C] or with `keepdim` [N, 1..., C]; over a split domain a pending
/// sum until its value is needed.
Tensor global_avg_pool(const Tensor& x, bool keepdim = false);
/// Largest element of the domain; equal ones share the gradient.
Tensor global_max_pool(const Tensor& x, bool keepdim = false);

/// What max_pool_with_index() returns.
struct MaxPooled {
  Tensor values;  ///< as max_pool()
  /// int64 of the same shape: the place of each in the domain of x, row-major over its (global)
  /// dimensions.
  Tensor index;
};
MaxPooled max_pool_with_index(const Tensor& x, const PoolOptions& options);

/// Options of max_unpool().
struct MaxUnpoolOptions {
  PoolOptions pool = {};  ///< those of the pooling
  /// Domain of the result, that of what was pooled; empty: (m - 1) stride - pad_lo - pad_hi +
  /// dilation (kernel - 1) + 1.
  Dims size = {};
  /// Boundaries of the result are those of x times the stride, or those of this layout.
  Layout like = {};
};

/// Puts x [N, m..., C] where a pooling found its maxima (Zeiler & Fergus 2014), zeros elsewhere:
/// y[n, index[n, j, c], c] += x[n, j, c]. Where windows overlap and share a maximum, values add up.
/// Throws ShapeError for an index outside of the window of its place (from the rank that sees it).
Tensor max_unpool(const Tensor& x, const Tensor& index, const MaxUnpoolOptions& options);

}  // namespace tessera
