#pragma once

#include <tessera/core/tensor.hpp>

/// Ops on rows that belong to rows of another tensor on the same rank (edges to their receivers):
/// nothing is communicated, derivatives of any order are ops of this header.
namespace tessera {

/// Rows [m] in consecutive segments [n]: the edges of each node.
struct Segments {
  Tensor of;     ///< i64 [m], not decreasing: the segment of each row
  Tensor begin;  ///< i64 [n]: the first row of each segment (where it would be, if empty)
};

/// y[s, ...] = sum of x[i, ...] over the rows i of segment s; x [m, ...], y [n, ...]. `of` and
/// `begin` must be split by the same axes, so that each segment lies with all its rows; x is
/// brought to the rows, y is split as the segments. Sums are taken in the order of i, in double.
Tensor segment_sum(const Tensor& x, const Segments& segments);
/// The same divided by the number of rows; 0 for an empty segment.
Tensor segment_mean(const Tensor& x, const Segments& segments);
/// Largest x[i, ...] of each segment; 0 for an empty segment. The gradient goes to the first of
/// equals.
Tensor segment_max(const Tensor& x, const Segments& segments);
/// y[i, ...] = exp x[i, ...] / sum of exp x[j, ...] over the segment of i.
Tensor segment_softmax(const Tensor& x, const Segments& segments);
/// y[i, ...] = x[of[i], ...]; x [n, ...], y [m, ...]: the adjoint of segment_sum.
Tensor segment_spread(const Tensor& x, const Segments& segments);

/// y[i, ...] = x[index[i], ...] where all rows that a rank names are its own: x [n, ...], index [m]
/// i64 in any order, y split as `index`. `rows` is a tensor [n] that is cut where x is (it says
/// where that is when x comes in another layout). An index that leaves the part throws there.
Tensor gather_own(const Tensor& x, const Tensor& index, const Tensor& rows);
/// y[index[i], ...] += x[i, ...] in the order of i, y split as `rows`: the adjoint of gather_own.
Tensor scatter_own(const Tensor& x, const Tensor& index, const Tensor& rows);

}  // namespace tessera
