#pragma once

#include <tessera/core/view.hpp>

/// Rows by index: dimension 0 of a tensor, the rest of which is one row. Indices are i32 or i64 and
/// count from `first`, the global row that is row 0 of the view; rows that the view does not hold
/// are absent.
namespace tessera::kernels {

/// y[i, ...] = x[index[i] - first, ...]; zero where x does not hold the row. x [n, ...], index [m],
/// y [m, ...] of one element type. Throws ShapeError, DTypeError.
void take_rows(const View& x, const View& index, std::int64_t first, const View& y);

/// y[index[i] - first, ...] += x[i, ...], or set from zero without `accumulate`; rows that y does
/// not hold are left out. Each row of y is summed in the order of i, in double (integers in 64
/// bits), and rounded once: the result does not depend on the number of threads.
void scatter_add_rows(
    const View& x, const View& index, std::int64_t first, bool accumulate, const View& y);

}  // namespace tessera::kernels
