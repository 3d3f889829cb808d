#include <tessera/autograd/ops/softmax.hpp>
#include <tessera/nn/class_losses.hpp>

#include "loss_support.hpp"

namespace tessera::nn {
namespace {

/// Class numbers as one more dimension of size C: `is` [..., C] is 1 at the class, `counts`
/// [..., 1] where there is one.
struct ClassTarget {
  Tensor is;
  Tensor counts;

  ClassTarget(const char* op,
              const Tensor& x,
              const Tensor& target,
              std::optional<std::int64_t> ignore) {
    Shape samples = x.shape();
    if (x.dims() > 0) samples.resize(x.dims() - 1);
    if (x.dims() < 1 || !(target.shape() == samples) || x.numel() == 0) {
      throw ShapeError(str(op, ": ", x.shape(), " and class numbers ", target.shape(),
                           " do not fit (the first has one dimension more, the classes, and is not "
                           "empty)."));
    }
    if (is_floating(target.dtype()) || target.dtype() == DType::kBool) {
      throw DTypeError(str(op, ": target ", name(target.dtype()),
                           " does not number classes. Use int32 or int64."));
    }
    const int last = x.dims() - 1;
    const std::int64_t classes = x.size(last);
    samples.push_back(1);
    const Tensor number = reshape(target, samples);
    const auto constant = [&](std::int64_t value) {
      return Tensor::scalar(x.mesh(), static_cast<double>(value), target.dtype());
    };
    counts = cast(greater_equal(number, constant(0)), x.dtype()) *
             cast(less(number, constant(classes)), x.dtype());
    if (ignore) counts = counts * cast(not_equal(number, constant(*ignore)), x.dtype());
    const Tensor all = Tensor::from_function(
        Layout::make(x.mesh(), {classes}, {x.layout().split(last)}),
        [](const Index& i) { return static_cast<double>(i[0]); }, target.dtype());
    is = cast(equal(number, all), x.dtype());
    if (ignore) is = is * counts;
  }
};

/// [C], or undefined.
Tensor checked_class_weight(const char* op, const Tensor& weight, const Tensor& x) {
  if (!weight.defined()) return {};
  if (!(weight.shape() == Shape{x.size(-1)})) {
    throw ShapeError(
        str(op, ": class weight ", weight.shape(), " does not fit the ", x.size(-1), " classes."));
  }
  return cast(weight, x.dtype());
}

}  // namespace

Tensor cross_entropy(const Tensor& logits,
                     const Tensor& target,
                     const CrossEntropyOptions& options) {
  const double e = options.label_smoothing;
  if (!(e >= 0.0 && e <= 1.0))
    throw UsageError(str("cross_entropy: label smoothing ", e, " is not between 0 and 1."));
  if (e == 0.0 && !options.class_weight.defined() && !options.ignore)
    return tessera::cross_entropy(logits, target);
  const Tensor x = widened(logits);
  const ClassTarget t("cross_entropy", x, target, options.ignore);
  const Tensor weight = checked_class_weight("cross_entropy", options.class_weight, x);
  const Tensor surprise = -log_softmax(x);
  const Tensor chosen = weight.defined() ? t.is * weight : t.is;
  Tensor total = reduced(sum(surprise * chosen)) * (1.0 - e);
  if (e > 0.0) {
    const Tensor every = weight.defined() ? surprise * weight : surprise;
    total = total + reduced(sum(every * t.counts)) * (e / static_cast<double>(x.size(-1)));
  }
  return total / reduced(sum(chosen));
}

Tensor bce_with_logits(const Tensor& logits, const Tensor& target, const BceOptions& options) {
  check_alike("bce_with_logits", logits, target);
  const Tensor x = widened(logits);
  const Tensor weight = checked_weight("bce_with_logits", options.weight, x.shape(), x.dtype());
  const Tensor pos_weight =
      checked_weight("bce_with_logits", options.pos_weight, x.shape(), x.dtype());
  const Tensor t = cast(target, x.dtype());
  Tensor positive = t * softplus(-x);
  if (pos_weight.defined()) positive = positive * pos_weight;
  return weighted_mean(positive + affine(t, -1.0, 1.0) * softplus(x), weight);
}

Tensor focal_loss(const Tensor& logits, const Tensor& target, const FocalOptions& options) {
  check_alike("focal_loss", logits, target);
  if (!(options.gamma >= 0.0))
    throw UsageError(str("focal_loss: gamma ", options.gamma, " must not be negative."));
  const Tensor x = widened(logits);
  const Tensor weight = checked_weight("focal_loss", options.weight, x.shape(), x.dtype());
  const Tensor t = cast(target, x.dtype());
  // z > 0 where the prediction is right: log p_t = -softplus(-z), log(1 - p_t) = -softplus(z).
  const Tensor z = x * affine(t, 2.0, -1.0);
  Tensor terms = exp(softplus(z) * -options.gamma) * softplus(-z);
  if (options.alpha >= 0.0)
    terms = terms * affine(t, 2.0 * options.alpha - 1.0, 1.0 - options.alpha);
  return weighted_mean(terms, weight);
}

Tensor dice_loss(const Tensor& probabilities, const Tensor& target, const DiceOptions& options) {
  const Tensor p = widened(probabilities);
  if (p.dims() < 2)
    throw ShapeError(str("dice_loss: ", p.shape(), " is not [N, domain..., C]. Reshape it."));
  Tensor t;
  Tensor weight = checked_weight("dice_loss", options.weight, p.shape(), p.dtype());
  if (target.dims() == p.dims()) {
    check_alike("dice_loss", probabilities, target);
    t = cast(target, p.dtype());
  } else {
    const ClassTarget numbers("dice_loss", p, target, {});
    t = numbers.is;
    weight = weight.defined() ? weight * numbers.counts : numbers.counts;
  }
  Dims dims;
  for (int d = options.per_sample ? 1 : 0; d + 1 < p.dims(); ++d) dims.push_back(d);
  const auto total = [&](const Tensor& x) {
    const Tensor weighed = weight.defined() ? x * weight : x;
    return dims.empty() ? weighed : reduced(sum(weighed, dims));
  };
  const Tensor both = total(p * t);
  const Tensor each = total(options.squared ? square(p) + square(t) : p + t);
  const Tensor score = affine(both, 2.0, options.smooth) / (each + options.smooth);
  const Tensor class_weight = checked_class_weight("dice_loss", options.class_weight, p);
  return affine(weighted_mean(score, class_weight), -1.0, 1.0);
}

}  // namespace tessera::nn
