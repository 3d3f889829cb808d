#pragma once

#include <tessera/core/view.hpp>

/// Cubic Hermite interpolation on knots 0, d, 2 d, ..., n d as four weights per point: a table with
/// rows f(i d) (row 2 i) and d f'(i d) (row 2 i + 1) has the value sum over t < 4 of h_t
/// table[row + t] at x. The interpolant is continuous with its first derivative; from n d on it is
/// 0.
namespace tessera::kernels {

/// h [E, 4] = the derivative of this order of the weights of x [E]; f32 or f64, computed in double.
void hermite_weights(
    int order, double spacing, std::int64_t intervals, const View& x, const View& h);
/// row [E] (i64) = 2 floor(x / d), kept within [0, 2 (n - 1)].
void hermite_rows(double spacing, std::int64_t intervals, const View& x, const View& row);

}  // namespace tessera::kernels
