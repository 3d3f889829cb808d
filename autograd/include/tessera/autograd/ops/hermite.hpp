#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

/// A function of one variable by cubic Hermite interpolation, for many functions f_c at once: with
/// table [2 (n + 1), C] of f_c(i d) in rows 2 i and d f_c'(i d) in rows 2 i + 1, d the spacing,
/// f_c(x_e) = sum over t < 4 of hermite_weights(x)[e, t] table[hermite_rows(x)[e] + t, c]. Error
/// d^4 / 384 max |f''''|; continuous with its first derivative, 0 from x = n d on (let the last
/// knot be 0). x [E] >= 0, fp64 or fp32. Such pairs are `h` and `first_row` of
/// equivariant_convolution.
///
/// The weights [E, 4] differentiate piece by piece to any order; rows [E] (int64) have no gradient.
Tensor hermite_weights(const Tensor& x, double spacing, std::int64_t intervals);
Tensor hermite_rows(const Tensor& x, double spacing, std::int64_t intervals);

}  // namespace tessera
