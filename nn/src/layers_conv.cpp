#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tessera/nn/layers.hpp>

namespace tessera::nn {
namespace {

Dims per_dim(const char* layer, const char* what, const Dims& list, int dims) {
  if (list.size() == dims) return list;
  if (list.size() == 1) return Dims::filled(dims, list[0]);
  throw UsageError(str(layer, ": ", what, " ", list, " does not fit ", dims,
                       " domain dimensions. Give one value per dimension, or one for all."));
}

std::vector<EdgeRule> edges_per_dim(const char* layer, std::vector<EdgeRule> edges, int dims) {
  if (edges.size() == 1) {
    const EdgeRule all = edges[0];
    edges.assign(static_cast<std::size_t>(dims), all);
  }
  if (!edges.empty() && static_cast<int>(edges.size()) != dims) {
    throw UsageError(str(layer, ": ", edges.size(), " edge rules for ", dims,
                         " domain dimensions. Give one per dimension, or one for all."));
  }
  return edges;
}

/// The options with every list written out; `Conv` pads so as to keep the size, `ConvTranspose`
/// not.
ConvLayerOptions complete(const char* layer, ConvLayerOptions o, bool same_padding) {
  if (o.dims < 1 || o.dims > 3) {
    throw UsageError(str(layer, ": ", o.dims, " domain dimensions. Choose 1, 2 or 3."));
  }
  if (o.in <= 0 || o.out <= 0 || o.groups <= 0 || o.in % o.groups != 0 || o.out % o.groups != 0) {
    throw UsageError(str(layer, ": ", o.in, " -> ", o.out, " channels in ", o.groups,
                         " groups (channels must be positive multiples of the groups). Change .in, "
                         ".out or .groups."));
  }
  o.kernel = per_dim(layer, "kernel", o.kernel, o.dims);
  o.stride = per_dim(layer, "stride", o.stride, o.dims);
  o.dilation = per_dim(layer, "dilation", o.dilation, o.dims);
  if (o.pad_lo.empty() && o.pad_hi.empty()) {
    for (int d = 0; d < o.dims; ++d) {
      const std::int64_t total = same_padding ? o.dilation[d] * (o.kernel[d] - 1) : 0;
      o.pad_lo.push_back(total / 2);
      o.pad_hi.push_back(total - total / 2);
    }
  } else {
    o.pad_lo = per_dim(layer, "pad_lo", o.pad_lo.empty() ? Dims{0} : o.pad_lo, o.dims);
    o.pad_hi = o.pad_hi.empty() ? o.pad_lo : per_dim(layer, "pad_hi", o.pad_hi, o.dims);
  }
  if (o.output_padding.empty()) o.output_padding = {0};
  o.output_padding = per_dim(layer, "output_padding", o.output_padding, o.dims);
  o.edges = edges_per_dim(layer, std::move(o.edges), o.dims);
  return o;
}

Shape weight_shape(std::int64_t first, const Dims& kernel, std::int64_t last) {
  Shape shape = {first};
  for (const std::int64_t k : kernel) shape.push_back(k);
  shape.push_back(last);
  return shape;
}

std::string describe_conv(const char* layer,
                          std::int64_t in,
                          std::int64_t out,
                          const Shape& weight,
                          const Dims& stride,
                          std::int64_t groups) {
  const Dims kernel(std::span(weight.begin() + 1, weight.end() - 1));
  std::string text = fmt::format("{} {} -> {}, {}", layer, in, out, fmt::join(kernel, "x"));
  if (!(stride == Dims::filled(stride.size(), 1))) {
    text += fmt::format(" /{}", fmt::join(stride, "x"));
  }
  if (groups > 1) text += fmt::format(" in {}", groups);
  return text;
}

}  // namespace

Conv::Conv(const ConvLayerOptions& options, const Mesh& mesh, DType dtype) {
  const ConvLayerOptions o = complete("Conv", options, true);
  if (!(o.output_padding == Dims::filled(o.dims, 0))) {
    throw UsageError("Conv: output_padding is for ConvTranspose. Leave it out.");
  }
  const Shape shape = weight_shape(o.out, o.kernel, o.in / o.groups);
  const Init fallback = init::torch_default(shape);
  weight = Parameter(shape, o.weight_init.or_else(fallback), mesh, dtype);
  if (o.bias) bias = Parameter({o.out}, o.bias_init.or_else(fallback), mesh, dtype);
  options_ = {.stride = o.stride,
              .pad_lo = o.pad_lo,
              .pad_hi = o.pad_hi,
              .dilation = o.dilation,
              .groups = o.groups,
              .edges = o.edges};
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
  const ConvLayerOptions o = complete("ConvTranspose", options, false);
  const Shape shape = weight_shape(o.in, o.kernel, o.out / o.groups);
  const Init fallback = init::torch_default(shape);
  weight = Parameter(shape, o.weight_init.or_else(fallback), mesh, dtype);
  if (o.bias) bias = Parameter({o.out}, o.bias_init.or_else(fallback), mesh, dtype);
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
