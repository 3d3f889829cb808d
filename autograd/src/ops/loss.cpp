// Losses: a global sum divided by a global count (or weight), never a mean of means.

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/autograd/ops/softmax.hpp>
#include <tessera/kernels/class_sums.hpp>

#include "broadcast.hpp"

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

void check_classes(const Tensor& logits, const Tensor& target) {
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
}

/// 1 where the target is the class, laid out as `logits`; elsewhere 0.
Tensor classes_of(const Tensor& logits, const Tensor& target) {
  const int last = logits.dims() - 1;
  const Tensor classes = Tensor::from_function(
      Layout::make(logits.mesh(), {logits.size(last)}, {logits.layout().split(last)}),
      [](const Index& i) { return static_cast<double>(i[0]); }, target.dtype());
  Shape samples = target.shape();
  samples.push_back(1);
  return cast(equal(reshape(target, samples), classes), logits.dtype());
}

// Rows of class_sums.
constexpr std::int64_t kAll = 0;
constexpr std::int64_t kHit = 1;
constexpr std::int64_t kThere = 2;
constexpr std::int64_t kEntropy = 3;

/// Sums [4, C] in fp64 over the samples whose target is a class, of p, of p where the class is the
/// target, of 1 where it is, of -log p where it is, in ops.
Tensor composed_sums(const Tensor& x, const Tensor& target) {
  const Tensor mask = classes_of(x, target);
  const Tensor log_p = log_softmax(x);
  const Tensor p = exp(log_p);
  Dims samples;
  for (int d = 0; d + 1 < x.dims(); ++d) samples.push_back(d);
  const auto over_samples = [&](const Tensor& t) {
    const Tensor s = cast(reduced(sum(t, samples)), DType::kFloat64);
    return reshape(replicate(s), {1, x.size(-1)});
  };
  return concat({over_samples(p * reduced(sum(mask, {-1}, true))), over_samples(p * mask),
                 over_samples(mask), over_samples(-(log_p * mask))},
                0);
}

void infer_sums(const Problem& problem, std::vector<OutputMeta>& out) {
  out.push_back({{4, problem.shape(0).back()}, DType::kFloat64});
}

template <bool kGradient>
void sums_signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  for (int d = 0; d + 1 < problem.shape(0).size(); ++d) {
    for (int driver = 0; driver < 2; ++driver) {
      Signature s = {.in = {shard_role(d), shard_role(d)},
                     .out = {kGradient ? shard_role(d) : partial_role()},
                     .driver = driver,
                     .bounds = {}};
      if (kGradient) s.in.push_back(replicate_role());
      legal.push_back(s);
    }
  }
}

/// (x, target, g) -> dx
const OpDef sums_grad_op = {.name = "class_sums_grad",
                            .infer =
                                [](const Problem& problem, std::vector<OutputMeta>& out) {
                                  out.push_back({problem.shape(0), problem.dtypes[0]});
                                },
                            .signatures = sums_signatures<true>,
                            .local =
                                [](const LocalCall& call) {
                                  kernels::class_sums_grad(call.in[0].view, call.in[1].view,
                                                           call.in[2].view, call.out[0].view);
                                }};

const OpDef sums_op = {
    .name = "class_sums",
    .infer = infer_sums,
    .signatures = sums_signatures<false>,
    .local =
        [](const LocalCall& call) {
          kernels::class_sums(call.in[0].view, call.in[1].view, call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(
              0, call<NoArgs>(sums_grad_op, {context.input(0), context.input(1), context.grad()}));
        },
    .decompose =
        [](const VjpContext& context) {
          return std::vector<Tensor>{composed_sums(context.input(0), context.input(1))};
        },
    .saved_inputs = 0b11};

/// One pass over memory, which keeps nothing but its inputs, unless the classes are split.
Tensor class_sums(const Tensor& x, const Tensor& target) {
  if (x.layout().is_split(x.dims() - 1)) return composed_sums(x, target);
  return reduced(call<NoArgs>(sums_op, {x, target}));
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
  return segmentation_loss(logits, target, 0.0);
}

Tensor segmentation_loss(const Tensor& logits, const Tensor& target, double dice) {
  check_classes(logits, target);
  const Tensor x = widened(logits);
  const Tensor sums = class_sums(x, target);
  const auto row = [&](std::int64_t k) { return slice(sums, 0, k, k + 1); };
  Tensor loss = sum(row(kEntropy)) / sum(row(kThere));
  if (dice != 0.0) {
    const Tensor scores = (2.0 * row(kHit) + 1.0) / (row(kAll) + row(kThere) + 1.0);
    loss = loss + dice * affine(mean(scores), -1.0, 1.0);
  }
  return cast(loss, x.dtype());
}

}  // namespace tessera
