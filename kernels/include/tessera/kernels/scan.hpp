#pragma once

#include <tessera/core/view.hpp>

namespace tessera::kernels {

/// y[..., i, ...] = start[...] + sum of x[..., j, ...] over j <= i (with `reverse`: j >= i) along
/// dimension `dim`; x and y of one type, floating or integer. `start` has size 1 in `dim` and holds
/// f64, for integers i64; null data: 0. Sums are taken in the order of j in the type of `start`,
/// and rounded as they are stored. Throws ShapeError, DTypeError.
void cumulative_sum(const View& x, int dim, bool reverse, const View& start, const View& y);

}  // namespace tessera::kernels
