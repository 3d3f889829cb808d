#include <fmt/format.h>

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/nn/batch_norm.hpp>

namespace tessera::nn {
namespace {

Tensor vector_of(double value, std::int64_t channels, const Mesh& mesh) {
  return Tensor::full(Layout::replicated(mesh, {channels}), value, DType::kFloat64);
}

std::string with_activation(std::string text, Activation activation) {
  if (activation != Activation::kNone) text += fmt::format(", {}", name(activation));
  return text;
}

}  // namespace

BatchNorm::BatchNorm(const BatchNormOptions& options, const Mesh& mesh, DType dtype)
    : options_(options) {
  if (options.channels <= 0) {
    throw UsageError(
        str("BatchNorm: ", options.channels, " channels (must be positive). Set .channels."));
  }
  if (!(options.momentum > 0.0 && options.momentum <= 1.0)) {
    throw UsageError(str("BatchNorm: momentum ", options.momentum,
                         " is not in (0, 1] (the share of the newest batch). Choose 0.1."));
  }
  if (options.affine) {
    weight = Parameter({options.channels}, init::ones(), mesh, dtype).exact();
    bias = Parameter({options.channels}, init::zeros(), mesh, dtype).exact();
  }
  running_mean = vector_of(0.0, options.channels, mesh);
  running_var = vector_of(1.0, options.channels, mesh);
}

void BatchNorm::fields(Fields& f) {
  f("weight", weight);
  f("bias", bias);
  f("running_mean", running_mean);
  f("running_var", running_var);
}

Tensor BatchNorm::forward(const Tensor& x) const {
  if (x.dims() < 2 || x.shape().back() != options_.channels) {
    throw ShapeError(str("BatchNorm: input ", x.shape(), " is not [N, domain..., ",
                         options_.channels, "]. Set .channels, or reshape it."));
  }
  if (training()) {
    const std::int64_t elements = x.numel() / options_.channels;
    if (elements == 1) {
      throw ShapeError(str("BatchNorm: input ", x.shape(),
                           " has one element per channel, which has no variance. Train on more "
                           "samples, or call eval()."));
    }
    const BatchNormResult result =
        batch_norm(x, weight(), bias(),
                   {.eps = options_.eps, .activation = options_.activation, .area = area_});
    // Not again where the call is computed again in backward.
    replayed([&] {
      if (elements > 0) track(result.moments, elements);
      return RandomKey{};
    });
    return result.y;
  }
  Tensor moments;
  {
    const NoGrad no_grad;
    const Shape column = {1, options_.channels, 1};
    const auto slot = [&](const Tensor& t) { return reshape(cast(t, DType::kFloat64), column); };
    moments =
        concat({Tensor::full(Layout::replicated(running_mean.mesh(), column), 1.0, DType::kFloat64),
                slot(running_mean), slot(running_var)},
               2);
  }
  return normalize_with(x, moments, weight(), bias(), options_.eps, options_.activation);
}

void BatchNorm::track(const Tensor& moments, std::int64_t elements) const {
  const NoGrad no_grad;
  // The identity unless channels are split.
  const Tensor all = redistribute(moments, Layout::replicated(moments.mesh(), moments.shape()));
  if (dry_run()) return;
  const View m = all.local();
  const auto n = static_cast<double>(elements);
  const auto move = [&](const Tensor& running, const auto& now) {
    const View r = running.mutable_local();
    for (std::int64_t c = 0; c < options_.channels; ++c) {
      const double old = load_as_double(r.data, r.dtype, c * r.strides[0]);
      store_double(r.data, r.dtype, c * r.strides[0],
                   (1.0 - options_.momentum) * old + options_.momentum * now(c));
    }
  };
  const auto moment = [&](std::int64_t c, int k) {
    return m.as<double>()[c * m.strides[1] + k * m.strides[2]];
  };
  move(running_mean, [&](std::int64_t c) { return moment(c, 1); });
  move(running_var, [&](std::int64_t c) { return moment(c, 2) / moment(c, 0) * (n / (n - 1.0)); });
}

std::string BatchNorm::describe() const {
  return with_activation(fmt::format("BatchNorm {}", options_.channels), options_.activation);
}

Tensor AreaGroupNorm::forward(const Tensor& x) const {
  return group_norm(x, weight(), bias(), options().groups, options().eps, options().activation,
                    area_);
}

InstanceNorm::InstanceNorm(const InstanceNormOptions& options, const Mesh& mesh, DType dtype)
    : AreaGroupNorm({.groups = options.channels,
                     .channels = options.channels,
                     .eps = options.eps,
                     .affine = options.affine,
                     .activation = options.activation},
                    mesh,
                    dtype) {}

std::string InstanceNorm::describe() const {
  return with_activation(fmt::format("InstanceNorm {}", options().channels), options().activation);
}

}  // namespace tessera::nn
