#pragma once

#include <tessera/core/layout.hpp>
#include <tessera/core/view.hpp>

namespace tessera::parallel {

/// to = from; equal shapes, any strides. Element types are equal, or bf16 and f32 (converted).
/// Throws NotSupported for views on a device other than the CPU, as do the functions below.
void copy(const View& from, const View& to);

/// to = to op from, in row-major order, so that a destination of stride 0 is a well-defined sum.
/// Adds bf16 to f32 as well. For bool, sum and maximum are "or", minimum is "and"; a NaN stays one.
void accumulate(const View& from, const View& to, ReduceOp op);

/// to = value
void fill(const View& to, double value);

/// to = the neutral element of `op`: 0; the lowest value (-infinity); the highest.
void fill_neutral(const View& to, ReduceOp op);

/// to = signalling NaN, or a conspicuous number for integers: an unread message shows.
void poison(const View& to);

}  // namespace tessera::parallel
