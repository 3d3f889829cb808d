#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

// Means over all elements of the global tensors: a replicated scalar, divided by the global count.
// `weight` (same shape, or undefined) masks or weighs elements; the divisor is then its global sum.
// bf16 is widened to fp32, so predictions and targets may differ in that.

Tensor mse_loss(const Tensor& prediction, const Tensor& target, const Tensor& weight = {});
Tensor l1_loss(const Tensor& prediction, const Tensor& target, const Tensor& weight = {});
/// Quadratic below `delta`, linear above (Huber 1964).
Tensor huber_loss(const Tensor& prediction,
                  const Tensor& target,
                  double delta = 1.0,
                  const Tensor& weight = {});
/// Mean over samples of -log softmax(logits)[target]: logits [..., C], target [...] (integers).
/// Samples whose target is no class, -1 say, count neither above nor below. Classes may be split
/// (the head of a tensor parallel model): two numbers per sample are then reduced. Throws
/// ShapeError and DTypeError.
Tensor cross_entropy(const Tensor& logits, const Tensor& target);

}  // namespace tessera
