#include <fmt/format.h>

#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/random.hpp>
#include <tessera/nn/layers.hpp>

namespace tessera::nn {
namespace {

void check_sizes(const char* layer, std::int64_t in, std::int64_t out) {
  if (in <= 0 || out <= 0) {
    throw UsageError(
        str(layer, ": ", in, " -> ", out, " channels (both must be positive). Set .in and .out."));
  }
}

}  // namespace

Linear::Linear(const LinearOptions& options, const Mesh& mesh, DType dtype) {
  check_sizes("Linear", options.in, options.out);
  const Shape shape = {options.out, options.in};
  const Init fallback = init::torch_default(shape);
  weight = Parameter(shape, options.weight_init.or_else(fallback), mesh, dtype);
  if (options.bias) {
    bias = Parameter({options.out}, options.bias_init.or_else(fallback), mesh, dtype);
  }
}

void Linear::fields(Fields& f) {
  f("weight", weight);
  f("bias", bias);
}

Tensor Linear::forward(const Tensor& x) const { return linear(x, weight(), bias()); }

std::string Linear::describe() const {
  return fmt::format("Linear {} -> {}", weight.shape()[1], weight.shape()[0]);
}

GroupNorm::GroupNorm(const GroupNormOptions& options, const Mesh& mesh, DType dtype)
    : options_(options) {
  if (options.groups <= 0 || options.channels <= 0 || options.channels % options.groups != 0) {
    throw UsageError(str("GroupNorm: ", options.channels, " channels do not make ", options.groups,
                         " groups (each needs equally many). Choose a divisor of the channels."));
  }
  if (options.affine) {
    weight = Parameter({options.channels}, init::ones(), mesh, dtype).exact();
    bias = Parameter({options.channels}, init::zeros(), mesh, dtype).exact();
  }
}

void GroupNorm::fields(Fields& f) {
  f("weight", weight);
  f("bias", bias);
}

Tensor GroupNorm::forward(const Tensor& x) const {
  return group_norm(x, weight(), bias(), options_.groups, options_.eps, options_.activation);
}

std::string GroupNorm::describe() const {
  std::string text = fmt::format("GroupNorm {} in {}", options_.channels, options_.groups);
  if (options_.activation != Activation::kNone) {
    text += fmt::format(", {}", name(options_.activation));
  }
  return text;
}

Dropout::Dropout(double p) : p_(p) {
  if (!(p >= 0.0 && p < 1.0)) {
    throw UsageError(
        str("Dropout: probability ", p, " (it must be in [0, 1)). Choose a smaller one."));
  }
}

Tensor Dropout::forward(const Tensor& x) const {
  return training() && p_ > 0.0 ? dropout(x, p_, next_random_key()) : x;
}

std::string Dropout::describe() const { return fmt::format("Dropout {}", p_); }

const char* name(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return "relu";
    case Activation::kSilu:
      return "silu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kNone:
      break;
  }
  return "none";
}

Activation parse_activation(std::string_view text) {
  for (const Activation a :
       {Activation::kNone, Activation::kRelu, Activation::kSilu, Activation::kGelu}) {
    if (text == name(a)) return a;
  }
  throw UsageError(str("activation: \"", text, "\" is unknown. Use none, relu, silu or gelu."));
}

std::string Activate::describe() const { return name(activation_); }

void Sequential::fields(Fields& f) {
  for (std::size_t i = 0; i < layers_.size(); ++i) f(std::to_string(i), layers_[i]);
}

Tensor Sequential::forward(const Tensor& x) const {
  Tensor y = x;
  for (const auto& layer : layers_) y = (*layer)(y);
  return y;
}

}  // namespace tessera::nn
