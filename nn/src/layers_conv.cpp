#include <tessera/nn/layers.hpp>
#include <tuple>

#include "conv_options.hpp"

namespace tessera::nn {

Conv::Conv(const ConvLayerOptions& options, const Mesh& mesh, DType dtype) {
  const ConvLayerOptions o = complete_options("Conv", options, true);
  std::tie(weight, bias) =
      conv_parameters(o, conv_weight_shape(o.out, o.kernel, o.in / o.groups), mesh, dtype);
  options_ = op_options(o);
}

void Conv::fields(Fields& f) {
  f("weight", weight);
  f("bias", bias);
}

void Conv::set_edges(const std::vector<EdgeRule>& edges) {
  options_.edges = edges_per_dim("Conv", edges, weight.shape().size() - 2);
}

Tensor Conv::forward(const Tensor& x) const { return conv(x, weight(), bias(), options_); }

std::string Conv::describe() const {
  const Shape& w = weight.shape();
  return describe_conv("Conv", w.back() * options_.groups, w[0], w, options_.stride,
                       options_.groups);
}

ConvTranspose::ConvTranspose(const ConvLayerOptions& options, const Mesh& mesh, DType dtype) {
  const ConvLayerOptions o = complete_options("ConvTranspose", options, false);
  std::tie(weight, bias) =
      conv_parameters(o, conv_weight_shape(o.in, o.kernel, o.out / o.groups), mesh, dtype);
  options_ = {.stride = o.stride,
              .pad_lo = o.pad_lo,
              .pad_hi = o.pad_hi,
              .dilation = o.dilation,
              .output_padding = o.output_padding,
              .groups = o.groups,
              .edges = o.edges};
}

void ConvTranspose::fields(Fields& f) {
  f("weight", weight);
  f("bias", bias);
}

Tensor ConvTranspose::forward(const Tensor& x) const {
  return conv_transpose(x, weight(), bias(), options_);
}

Tensor ConvTranspose::forward_to(const Tensor& x, const Dims& size) const {
  const LayerScope scope(scope_name());
  ConvTransposeOptions o = options_;
  const Shape& w = weight.shape();
  const int dims = w.size() - 2;
  if (x.dims() != dims + 2 || size.size() != dims) {
    throw ShapeError(str("conv_transpose: input ", x.shape(), " and output size ", size,
                         " do not fit ", dims,
                         " domain dimensions (the input is [N, domain..., C])."));
  }
  for (int d = 0; d < dims; ++d) {
    const std::int64_t natural = (x.size(d + 1) - 1) * o.stride[d] - o.pad_lo[d] - o.pad_hi[d] +
                                 o.dilation[d] * (w[d + 1] - 1) + 1;
    const std::int64_t missing = size[d] - natural;
    if (missing >= o.stride[d] || missing <= -o.stride[d]) {
      throw ShapeError(str("conv_transpose: ", x.size(d + 1), " elements with stride ", o.stride[d],
                           " do not give ", size[d], " (their natural size is ", natural,
                           ", which may differ by less than the stride)."));
    }
    o.output_padding[d] = missing > 0 ? missing : 0;
    if (missing < 0) o.pad_hi[d] -= missing;
  }
  return conv_transpose(computed(x), weight(), bias(), o);
}

std::string ConvTranspose::describe() const {
  const Shape& w = weight.shape();
  return describe_conv("ConvTranspose", w[0], w.back() * options_.groups, w, options_.stride,
                       options_.groups);
}

}  // namespace tessera::nn
