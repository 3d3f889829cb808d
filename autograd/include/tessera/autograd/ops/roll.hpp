#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

// Elements of the same grid in other places; the layout stays. Along a split dimension each rank
// receives the elements that cross into its part, in the window exchange. Dimensions count from the
// end where negative; no element type is excluded.

/// y[..., i, ...] = x[..., (i - shift) mod n, ...] along each of `dims`, by the shift of that place
/// in the list. Throws ShapeError unless there is one for each, or a dimension is listed twice.
Tensor roll(const Tensor& x, const Dims& shifts, const Dims& dims);
/// y[..., i, ...] = x[..., n - 1 - i, ...] along each of `dims`; an empty list means all.
Tensor flip(const Tensor& x, const Dims& dims = {});

}  // namespace tessera
