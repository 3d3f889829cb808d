// Losses: a global sum divided by a global count (or weight), never a mean of means.

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/autograd/ops/softmax.hpp>

namespace tessera {

namespace {

void check(const char* op, const Tensor& prediction, const Tensor& target, const Tensor& weight) {
  if (!(prediction.shape() == target.shape()) ||
      (weight.defined() && !(weight.shape() == target.shape()))) {
    throw ShapeError(str(op, ": prediction ", prediction.shape(), ", target ", target.shape(),
                         weight.defined() ? str(" and weight ", weight.shape()) : std::string(),
                         " differ. They must be equal."));
  }
  if (target.numel() == 0)
    throw ShapeError(str(op, ": the tensors ", target.shape(), " are empty. Nothing has no mean."));
}

/// bf16 is for activations: losses are taken in fp32 at least.
Tensor widened(const Tensor& x) {
  return x.defined() && x.dtype() == DType::kBFloat16 ? cast(x, DType::kFloat32) : x;
}

Tensor weighted_mean(const Tensor& terms, const Tensor& weight) {
  if (!weight.defined()) return reduced(mean(terms));
  return reduced(sum(terms * weight)) / reduced(sum(weight));
}

}  // namespace

Tensor mse_loss(const Tensor& prediction, const Tensor& target, const Tensor& weight) {
  check("mse_loss", prediction, target, weight);
  return weighted_mean(square(widened(prediction) - widened(target)), widened(weight));
}

Tensor l1_loss(const Tensor& prediction, const Tensor& target, const Tensor& weight) {
  check("l1_loss", prediction, target, weight);
  return weighted_mean(abs(widened(prediction) - widened(target)), widened(weight));
}

Tensor huber_loss(const Tensor& prediction,
                  const Tensor& target,
                  double delta,
                  const Tensor& weight) {
  check("huber_loss", prediction, target, weight);
  if (!(delta > 0)) throw UsageError(str("huber_loss: delta ", delta, " must be above 0."));
  const Tensor distance = abs(widened(prediction) - widened(target));
  const Tensor near = clamp(distance, 0.0, delta);
  return weighted_mean(near * (distance - near * 0.5), widened(weight));
}

Tensor cross_entropy(const Tensor& logits, const Tensor& target) {
  Shape samples = logits.shape();
  if (logits.dims() > 0) samples.resize(logits.dims() - 1);
  if (logits.dims() < 1 || !(target.shape() == samples) || logits.numel() == 0) {
    throw ShapeError(str("cross_entropy: logits ", logits.shape(), " and target ", target.shape(),
                         " do not fit (logits have one dimension more, the classes, and are not "
                         "empty)."));
  }
  if (is_floating(target.dtype()) || target.dtype() == DType::kBool) {
    throw DTypeError(str("cross_entropy: target ", name(target.dtype()),
                         " does not number classes. Use int32 or int64."));
  }
  const Tensor x = widened(logits);
  const int last = x.dims() - 1;
  const Tensor classes = Tensor::from_function(
      Layout::make(x.mesh(), {x.size(last)}, {x.layout().split(last)}),
      [](const Index& i) { return static_cast<double>(i[0]); }, target.dtype());
  samples.push_back(1);
  const Tensor mask = cast(equal(reshape(target, samples), classes), x.dtype());
  return -(reduced(sum(log_softmax(x) * mask)) / reduced(sum(mask)));
}

}  // namespace tessera
