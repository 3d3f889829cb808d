#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

/// y[..., i, ...] = sum of x[..., j, ...] over j <= i (with `reverse`: j >= i) along `dim`
/// (negative counts from the end), summed in double (integers in 64 bits). Any dimension may be
/// split; along a split `dim` ranks exchange the totals of their lines, and nothing else moves. Its
/// gradient is the sum in the other direction. Throws DTypeError for bool.
Tensor cumsum(const Tensor& x, int dim, bool reverse = false);

}  // namespace tessera
