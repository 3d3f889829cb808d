#pragma once

#include <tessera/core/view.hpp>

/// What losses of classes are sums of, in one pass over memory.
namespace tessera::kernels {

/// Over the samples whose target is a class, with p = softmax(logits): sums [4, C] (f64) of
/// 0: p; 1: p where the class is the target; 2: 1 where it is; 3: -log p where it is.
/// Logits [..., C] are floating, targets [...] i32 or i64. Throws ShapeError, DTypeError.
void class_sums(const View& logits, const View& target, const View& sums);
/// Gradient dx [..., C] of sum(g * sums) for g [4, C] (f64).
void class_sums_grad(const View& logits, const View& target, const View& g, const View& dx);

}  // namespace tessera::kernels
