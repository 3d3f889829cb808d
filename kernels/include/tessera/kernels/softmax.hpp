#pragma once

#include <tessera/core/view.hpp>

/// Softmax of each row x [..., C] in one pass over memory; sums in double.
namespace tessera::kernels {

/// y = exp(x - max x) / sum exp(x - max x). Throws ShapeError, DTypeError.
void softmax(const View& x, const View& y);
/// dx = y (dy - sum dy y), with y the result of softmax.
void softmax_grad(const View& y, const View& dy, const View& dx);

}  // namespace tessera::kernels
