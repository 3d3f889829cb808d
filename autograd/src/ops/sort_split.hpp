#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

/// index[..., i, ...] = place of the i-th element in order of each line of x along `dim`, which is
/// split over `axes` in both, at the same boundaries.
///
/// Parts are sorted on each rank. Then the key that stands at each boundary of the result is found
/// digit by digit, by counting smaller keys on all ranks; equal ones are given out in the order of
/// parts. So every rank knows which run of its sorted part goes to which other, and merges what it
/// gets.
void order_split_lines(const Tensor& x, const Tensor& index, int dim, bool falling, AxisMask axes);

/// The same for the first index.size(dim) of each line alone, which every rank gets: each gives its
/// own first ones to all.
void top_of_split_lines(const Tensor& x, const Tensor& index, int dim, bool falling, AxisMask axes);

}  // namespace tessera
