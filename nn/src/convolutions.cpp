#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/convolutions.hpp>
#include <tuple>

#include "conv_options.hpp"

namespace tessera::nn {
namespace {

ConvLayerOptions depthwise_options(const SeparableConvOptions& options) {
  ConvLayerOptions o = options.conv;
  if (o.groups != 1 || options.multiplier < 1) {
    throw UsageError(str("SeparableConv: ", o.groups, " groups and a multiplier of ",
                         options.multiplier, " (the first must be 1, the second at least 1)."));
  }
  o.out = o.in * options.multiplier;
  o.groups = o.in;
  o.bias = false;
  return o;
}

ConvLayerOptions pointwise_options(const SeparableConvOptions& options) {
  const ConvLayerOptions& o = options.conv;
  return {.dims = o.dims,
          .in = o.in * options.multiplier,
          .out = o.out,
          .kernel = {1},
          .bias = o.bias,
          .weight_init = o.weight_init,
          .bias_init = o.bias_init};
}

}  // namespace

ConvLayerOptions causal(ConvLayerOptions options, const Dims& along) {
  if (!options.pad_lo.empty() || !options.pad_hi.empty()) {
    throw UsageError("causal: padding is given (all of it goes to the low end). Leave it out.");
  }
  ConvLayerOptions o = complete_options("causal", std::move(options), true);
  Dims dims = along;
  for (int d = 0; along.empty() && d < o.dims; ++d) dims.push_back(d);
  for (const std::int64_t d : dims) {
    if (d < 0 || d >= o.dims) {
      throw UsageError(str("causal: dimension ", d, " is none of the ", o.dims,
                           " domain dimensions (0 is the first after the batch)."));
    }
    const int i = static_cast<int>(d);
    o.pad_lo[i] = o.dilation[i] * (o.kernel[i] - 1);
    o.pad_hi[i] = 0;
  }
  return o;
}

CausalConv::CausalConv(const ConvLayerOptions& options,
                       const Mesh& mesh,
                       DType dtype,
                       const Dims& along)
    : Conv(causal(options, along), mesh, dtype) {}

SeparableConv::SeparableConv(const SeparableConvOptions& options, const Mesh& mesh, DType dtype)
    : depthwise(depthwise_options(options), mesh, dtype),
      pointwise(pointwise_options(options), mesh, dtype) {}

void SeparableConv::fields(Fields& f) {
  f("depthwise", depthwise);
  f("pointwise", pointwise);
}

Tensor SeparableConv::forward(const Tensor& x) const { return pointwise(depthwise(x)); }

PartialConv::PartialConv(const ConvLayerOptions& options, const Mesh& mesh, DType dtype) {
  const ConvLayerOptions o = complete_options("PartialConv", options, true);
  std::tie(weight, bias) =
      conv_parameters(o, conv_weight_shape(o.out, o.kernel, o.in / o.groups), mesh, dtype);
  options_ = op_options(o);
}

void PartialConv::fields(Fields& f) {
  f("weight", weight);
  f("bias", bias);
}

MaskedTensor PartialConv::operator()(const Tensor& x, const Tensor& mask) const {
  const LayerScope scope(scope_name());
  bool fits = x.dims() == mask.dims() && x.dims() == weight.shape().size() &&
              mask.shape().back() == 1 && (mask.shape()[0] == 1 || mask.shape()[0] == x.shape()[0]);
  for (int d = 1; fits && d + 1 < x.dims(); ++d) fits = mask.shape()[d] == x.shape()[d];
  if (!fits) {
    throw ShapeError(str("PartialConv: mask ", mask.shape(), " does not fit the input ", x.shape(),
                         ". Give [N or 1, domain..., 1]."));
  }
  std::vector<Tensor> out = run(
      [this](std::span<const Tensor> in) { return convolve(in[0], in[1]); }, {computed(x), mask});
  return {std::move(out[0]), std::move(out[1])};
}

std::vector<Tensor> PartialConv::convolve(const Tensor& x, const Tensor& mask) const {
  // Sums of the mask are exact in fp32, not in bf16.
  const DType exact = x.dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  Tensor factor, valid;
  Tensor holes;
  const Tensor zero = Tensor::scalar(x.mesh(), 0.0, x.dtype());
  {
    const NoGrad no_grad;
    const Tensor known = cast(mask, exact);
    const Tensor zero_mask = Tensor::scalar(x.mesh(), 0.0, exact);
    holes = equal(known, zero_mask);
    Shape window = weight.shape();
    window[0] = window.back() = 1;
    ConvOptions options = options_;
    options.groups = 1;
    const Tensor ones = Tensor::full(Layout::replicated(x.mesh(), window), 1.0, exact);
    const Tensor count = conv(known, ones, {}, options);
    valid = cast(greater(count, zero_mask), exact);
    factor = cast(valid * static_cast<double>(window.product()) /
                      maximum(count, Tensor::scalar(x.mesh(), 1.0, exact)),
                  x.dtype());
  }
  Tensor y = conv(where(holes, zero, x), weight(), {}, options_) * factor;
  if (bias.defined()) y = y + bias() * cast(valid, x.dtype());
  return {y, cast(valid, mask.dtype())};
}

std::string PartialConv::describe() const {
  const Shape& w = weight.shape();
  return describe_conv("PartialConv", w.back() * options_.groups, w[0], w, options_.stride,
                       options_.groups);
}

}  // namespace tessera::nn
