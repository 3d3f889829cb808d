#pragma once

#include <tessera/core/view.hpp>

/// Rows in consecutive segments (the edges of each node). `begin` [n] i64 holds the row at which
/// each segment starts, counted from `first`; each ends where the next one starts, the last one at
/// the last row. Not decreasing; segments may be empty.
namespace tessera::kernels {

/// y[s, ...] = sum of x[i, ...] over the rows i of segment s, divided by their number with `mean`
/// (0 where there are none). x [m, ...], y [n, ...] of one floating type; each sum is taken in the
/// order of i, in double, and rounded once. Throws ShapeError, DTypeError.
void segment_sum(const View& x, const View& begin, std::int64_t first, bool mean, const View& y);

/// y[i, ...] = x[s, ...] for the rows i of segment s, divided by their number with `mean`. x [n,
/// ...], y [m, ...]: the adjoint of segment_sum.
void segment_spread(const View& x, const View& begin, std::int64_t first, bool mean, const View& y);

/// y[s, ...] i64 = first + the row of segment s whose x is largest (the first of equals; a NaN
/// counts as largest), or -1 where the segment is empty. x [m, ...], y [n, ...] dense.
void segment_argmax(const View& x, const View& begin, std::int64_t first, const View& y);

/// y[s, ...] = x[at[s, ...] - first, ...], or 0 where `at` is negative. x [m, ...], at [n, ...] i64
/// dense, y [n, ...].
void pick_rows(const View& x, const View& at, std::int64_t first, const View& y);
/// The adjoint: y is zero but for y[at[s, ...] - first, ...] = x[s, ...]; no row may be named
/// twice.
void place_rows(const View& x, const View& at, std::int64_t first, const View& y);

}  // namespace tessera::kernels
