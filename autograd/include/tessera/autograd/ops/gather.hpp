#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

/// Rows of x: y[i, ...] = x[index[i], ...]; x [n, ...], index [m] int32 or int64 global rows.
/// Dimension 0 of either may be split; rows are routed between ranks, never all gathered. The
/// result is split as `index`. An index out of range throws on every rank where rows are routed;
/// beside an `x` whose dimension 0 is whole it throws where it lies, and ends the job from there.
Tensor gather(const Tensor& x, const Tensor& index);
/// y[index[i], ...] += x[i, ...] into a zero tensor of layout `like` ([n, ...]), added in fixed
/// order.
Tensor scatter_add(const Tensor& x, const Tensor& index, const Layout& like);

}  // namespace tessera
