#pragma once

#include <tessera/core/tensor.hpp>

// Order along one dimension (negative counts from the end), which may be split: -infinity, ...,
// infinity, NaN, where -0 equals 0; `descending` and `largest` reverse it. Of equal elements the
// one of the lower index comes first. Indices are i64 global places along `dim`. Gradients go to
// the elements that were chosen.

namespace tessera {

/// Chosen elements, and where they stood.
struct Ordered {
  Tensor values;
  Tensor indices;
};

/// Places of the elements of each line in order; the layout of x. Along a split dimension the lines
/// are sent whole to ranks and back, where another dimension is long enough to be split instead;
/// else parts sorted on each rank are cut at exact places and exchanged.
Tensor argsort(const Tensor& x, int dim, bool descending = false);
/// The elements of each line in order.
Ordered sort(const Tensor& x, int dim, bool descending = false);
/// The first k of them; largest first, or smallest first. Along a split dimension each rank has all
/// k, unless its own are fewer than its share of them: then as slice() of sort().
Ordered topk(const Tensor& x, std::int64_t k, int dim, bool largest = true);

/// Place of the largest (smallest) element of each line. Throws ShapeError for an empty dimension.
Tensor argmax(const Tensor& x, int dim, bool keepdim = false);
Tensor argmin(const Tensor& x, int dim, bool keepdim = false);
/// The element as well. Its gradient is not shared among equal ones, as that of amax() is.
Ordered max_along(const Tensor& x, int dim, bool keepdim = false);
Ordered min_along(const Tensor& x, int dim, bool keepdim = false);

}  // namespace tessera
