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
/// cross_entropy() + dice * (1 - the mean over classes of (2 sum p t + 1) / (sum p + sum t + 1)),
/// the soft Dice score with p = softmax(logits), t = 1 where the target is the class, sums over all
/// samples whose target is a class: for fields of classes, of which small ones count as much as
/// large ones (Milletari et al. 2016, Isensee et al. 2021). One pass over memory keeps nothing but
/// the inputs; of each class four numbers are reduced. Throws ShapeError and DTypeError.
Tensor segmentation_loss(const Tensor& logits, const Tensor& target, double dice = 1.0);

}  // namespace tessera
