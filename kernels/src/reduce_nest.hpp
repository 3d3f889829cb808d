#pragma once

#include "loop_nest.hpp"

namespace tessera::kernels {

/// The loops of a reduction, split into those over outputs and those over what is reduced. Kept
/// dimensions have strides of x (operand 0) and y (1), reduced ones of x.
struct ReduceNest {
  LoopNest kept;
  LoopNest reduced;
  bool inner_kept = false;  ///< the fastest dimension of x is kept
};

/// Throws ShapeError when y is not x with some dimensions set to 1.
ReduceNest make_reduce_nest(const char* op, const View& x, const View& y);

}  // namespace tessera::kernels
