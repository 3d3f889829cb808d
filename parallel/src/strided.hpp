#pragma once

#include <tessera/core/layout.hpp>
#include <tessera/core/view.hpp>

namespace tessera::parallel {

/// to = to op from, for equal shapes and element types. Where `to` repeats an element (stride 0) it
/// takes the values one after the other in row-major order. For bool, sum and maximum are "or",
/// minimum is "and"; a NaN stays one.
void accumulate(const View& from, const View& to, ReduceOp op);

/// to = the neutral element of `op`: 0; the lowest value (-infinity); the highest.
void fill_neutral(const View& to, ReduceOp op);

/// to = signalling NaN, or a conspicuous number for integers: an unread message shows.
void poison(const View& to);

}  // namespace tessera::parallel
