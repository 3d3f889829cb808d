#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

// Truth values: element by element with broadcasting, and over dimensions. All operands of the
// first four are bool, all results are.

Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_xor(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& x);

// Comparison with a number, which is rounded to the element type of x. Throws DTypeError where x
// holds integers and the number is none of them.

Tensor equal(const Tensor& x, double value);
Tensor not_equal(const Tensor& x, double value);
Tensor less(const Tensor& x, double value);
Tensor less_equal(const Tensor& x, double value);
Tensor greater(const Tensor& x, double value);
Tensor greater_equal(const Tensor& x, double value);

// Of any element type; integers are finite.

Tensor isnan(const Tensor& x);
Tensor isinf(const Tensor& x);
Tensor isfinite(const Tensor& x);

// Over the listed dimensions of a bool tensor (negative counts from the end); an empty list means
// all. Over nothing `all` is true and `any` false. Over a split dimension the result is Partial
// until a value is needed.

Tensor all(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);

}  // namespace tessera
