#pragma once

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>

namespace tessera::nn {

/// bf16 is for activations: losses are taken in fp32 at least.
inline Tensor widened(const Tensor& x) {
  return x.defined() && x.dtype() == DType::kBFloat16 ? cast(x, DType::kFloat32) : x;
}

/// Throws ShapeError unless both have one shape and elements.
inline void check_alike(const char* op, const Tensor& prediction, const Tensor& target) {
  if (!(prediction.shape() == target.shape())) {
    throw ShapeError(str(op, ": prediction ", prediction.shape(), " and target ", target.shape(),
                         " differ. They must be equal."));
  }
  if (target.numel() == 0)
    throw ShapeError(str(op, ": the tensors ", target.shape(), " are empty. Nothing has no mean."));
}

/// Whether `weight` stretches to `shape` as it is.
inline bool stretches(const Tensor& weight, const Shape& shape) {
  const int missing = shape.size() - weight.dims();
  if (missing < 0) return false;
  for (int d = 0; d < weight.dims(); ++d)
    if (weight.size(d) != 1 && weight.size(d) != shape[d + missing]) return false;
  return true;
}

/// `weight`, which stretches to `shape`, in this type; undefined where it is.
inline Tensor checked_weight(const char* op,
                             const Tensor& weight,
                             const Shape& shape,
                             DType dtype) {
  if (!weight.defined()) return {};
  if (!stretches(weight, shape)) {
    throw ShapeError(str(op, ": weight ", weight.shape(), " does not stretch to ", shape,
                         ". Give it that shape, or 1 where it is the same everywhere."));
  }
  return cast(weight, dtype);
}

/// Mean of the terms; with a weight that stretches to them, sum w terms / sum w.
inline Tensor weighted_mean(const Tensor& terms, const Tensor& weight) {
  if (!weight.defined()) return reduced(mean(terms));
  const double times = static_cast<double>(terms.numel()) / static_cast<double>(weight.numel());
  return reduced(sum(terms * weight)) / (reduced(sum(weight)) * times);
}

}  // namespace tessera::nn
