#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

// Over the listed dimensions (negative counts from the end); an empty list means all. Over a split
// dimension the result is Partial until a value is needed.

Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Throws ShapeError where there is nothing to average; so does var().
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Largest element; the gradient is shared equally among equal elements.
Tensor amax(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Mean of squared deviations; `correction` is subtracted from the count (1: unbiased). Two passes:
/// no cancellation.
Tensor var(const Tensor& x, const Dims& dims = {}, double correction = 1.0, bool keepdim = false);
/// Sums x over the dimensions in which `shape` is 1 or missing: the gradient of broadcasting.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace tessera
