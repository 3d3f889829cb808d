#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/gather.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/random.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/layers.hpp>

namespace tessera::nn {
namespace {

void check_sizes(const char* layer, std::int64_t in, std::int64_t out) {
  if (in <= 0 || out <= 0) {
    throw UsageError(
        str(layer, ": ", in, " -> ", out, " channels (both must be positive). Set .in and .out."));
  }
}

std::string list(const Dims& values) { return fmt::format("{}", fmt::join(values, "x")); }

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
    weight = Parameter({options.channels}, init::ones(), mesh, dtype);
    bias = Parameter({options.channels}, init::zeros(), mesh, dtype);
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

std::string MaxPool::describe() const { return "MaxPool " + list(options_.kernel); }
std::string AvgPool::describe() const { return "AvgPool " + list(options_.kernel); }

Tensor upsample(const Tensor& x,
                std::int64_t factor,
                InterpolateMode mode,
                const std::vector<EdgeRule>& edges) {
  const int dims = x.dims() - 2;
  if (dims < 1 || factor < 1) {
    throw ShapeError(str("upsample: factor ", factor, " for input ", x.shape(),
                         " (the input is [N, domain..., C], the factor at least 1). Reshape it."));
  }
  if (edges.size() > 1 && static_cast<int>(edges.size()) != dims) {
    throw UsageError(str("upsample: ", edges.size(), " edge rules for ", dims,
                         " domain dimensions. Give one per dimension, or one for all."));
  }
  if (factor == 1) return x;
  // Cubic taps reach two elements out; wrapped copies of them stand in for the clamped border.
  constexpr std::int64_t kReach = 2;
  Dims halo = Dims::filled(x.dims(), 0);
  bool wraps = false;
  if (mode != InterpolateMode::kNearest && !edges.empty()) {
    for (int d = 0; d < dims; ++d) {
      const EdgeRule edge = edges[edges.size() == 1 ? 0 : static_cast<std::size_t>(d)];
      if (edge == EdgeRule::kCircular) {
        halo[d + 1] = kReach;
        wraps = true;
      }
    }
  }
  Tensor y = wraps ? pad(x, halo, halo, EdgeRule::kCircular) : x;
  Dims size;
  for (int d = 0; d < dims; ++d) size.push_back(y.size(d + 1) * factor);
  y = interpolate(y, size, {.mode = mode});
  for (int d = 1; d <= dims && wraps; ++d) {
    if (halo[d] > 0) y = slice(y, d, halo[d] * factor, (halo[d] + x.size(d)) * factor);
  }
  return y;
}

std::string Upsample::describe() const {
  static constexpr const char* kNames[] = {"nearest", "linear", "cubic"};
  return fmt::format("Upsample x{}, {}", options_.factor,
                     kNames[static_cast<std::size_t>(options_.mode)]);
}

Tensor PixelShuffle::forward(const Tensor& x) const { return pixel_shuffle(x, factor_); }
std::string PixelShuffle::describe() const { return fmt::format("PixelShuffle x{}", factor_); }

Tensor activate(const Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return relu(x);
    case Activation::kSilu:
      return silu(x);
    case Activation::kGelu:
      return gelu(x);
    case Activation::kNone:
      break;
  }
  return x;
}

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

Embedding::Embedding(std::int64_t rows, std::int64_t features, const Mesh& mesh, DType dtype) {
  check_sizes("Embedding", rows, features);
  weight = Parameter({rows, features}, init::normal(0.0, 1.0), mesh, dtype);
}

void Embedding::fields(Fields& f) { f("weight", weight); }

Tensor Embedding::forward(const Tensor& index) const {
  Shape shape = index.shape();
  shape.push_back(weight.shape()[1]);
  const Tensor rows = gather(weight(), index.dims() == 1 ? index : reshape(index, {-1}));
  return index.dims() == 1 ? rows : reshape(rows, shape);
}

std::string Embedding::describe() const {
  return fmt::format("Embedding {} x {}", weight.shape()[0], weight.shape()[1]);
}

void Sequential::fields(Fields& f) {
  for (std::size_t i = 0; i < layers_.size(); ++i) f(std::to_string(i), layers_[i]);
}

Tensor Sequential::forward(const Tensor& x) const {
  Tensor y = x;
  for (const auto& layer : layers_) y = layer->forward(y);
  return y;
}

}  // namespace tessera::nn
