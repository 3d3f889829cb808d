#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/transformer.hpp>

namespace tessera::nn {
namespace {

MlpOptions of_width(MlpOptions o, std::int64_t channels) {
  o.channels = channels;
  return o;
}

RowNormOptions norm_options(const TransformerBlockOptions& o) {
  return {.channels = o.attention.channels, .eps = o.eps, .affine = o.condition_channels == 0};
}

constexpr int kModulations = 6;

/// x + y; y may come from layers that compute in another type.
Tensor added(const Tensor& x, const Tensor& y) { return x + cast(y, x.dtype()); }

}  // namespace

Modulation::Modulation(std::int64_t condition_channels,
                       std::int64_t channels,
                       int count,
                       const Mesh& mesh,
                       DType dtype)
    : linear({.in = condition_channels,
              .out = count * channels,
              .weight_init = init::zeros(),
              .bias_init = init::zeros()},
             mesh,
             dtype),
      count_(count) {}

void Modulation::fields(Fields& f) { f("linear", linear); }

std::vector<Tensor> Modulation::operator()(const Tensor& condition, int dims) const {
  const LayerScope scope(scope_name());
  const Tensor all = linear(condition);
  Shape shape = {all.size(0)};
  for (int d = 0; d < dims; ++d) shape.push_back(1);
  shape.push_back(all.size(-1));
  return split(reshape(all, shape), Dims::filled(count_, all.size(-1) / count_), -1);
}

TransformerBlock::TransformerBlock(const TransformerBlockOptions& options,
                                   const Mesh& mesh,
                                   DType dtype)
    : norm1(norm_options(options), mesh, dtype),
      attn(options.attention, mesh, dtype),
      norm2(norm_options(options), mesh, dtype),
      mlp(of_width(options.mlp, options.attention.channels), mesh, dtype),
      dropout_(options.dropout) {
  if (options.condition_channels > 0)
    modulation.emplace(options.condition_channels, options.attention.channels, kModulations, mesh,
                       dtype);
}

void TransformerBlock::fields(Fields& f) {
  f("norm1", norm1);
  f("attn", attn);
  f("norm2", norm2);
  f("mlp", mlp);
  f("modulation", modulation);
  f("dropout", dropout_);
}

Tensor TransformerBlock::forward(const Tensor& x) const {
  if (modulation) {
    throw UsageError(
        "transformer: a block with adaptive norms was called without a condition. Give it as "
        "second argument.");
  }
  const Tensor y = added(x, dropout_(attn(norm1(x))));
  return added(y, dropout_(mlp(norm2(y))));
}

Tensor TransformerBlock::forward(const Tensor& x, const Tensor& condition) const {
  if (!modulation) return (*this)(x);
  const LayerScope scope(scope_name());
  return run(
      [this](std::span<const Tensor> in) { return std::vector<Tensor>{conditioned(in[0], in[1])}; },
      {x, condition})[0];
}

Tensor TransformerBlock::conditioned(const Tensor& x, const Tensor& condition) const {
  const std::vector<Tensor> m = (*modulation)(condition, x.dims() - 2);
  const auto adapted = [](const Tensor& h, const Tensor& scale, const Tensor& shift) {
    return h * cast(scale + 1.0, h.dtype()) + cast(shift, h.dtype());
  };
  const auto gated = [](const Tensor& h, const Tensor& gate) { return h * cast(gate, h.dtype()); };
  const Tensor y = added(x, gated(dropout_(attn(adapted(norm1(x), m[0], m[1]))), m[2]));
  return added(y, gated(dropout_(mlp(adapted(norm2(y), m[3], m[4]))), m[5]));
}

}  // namespace tessera::nn
