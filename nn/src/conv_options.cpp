#include "conv_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tessera::nn {

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

ConvLayerOptions complete_options(const char* layer, ConvLayerOptions o, bool same_padding) {
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
  if (same_padding && !(o.output_padding == Dims::filled(o.dims, 0))) {
    throw UsageError(str(layer, ": output_padding is for ConvTranspose. Leave it out."));
  }
  o.edges = edges_per_dim(layer, std::move(o.edges), o.dims);
  return o;
}

ConvOptions op_options(const ConvLayerOptions& o) {
  return {.stride = o.stride,
          .pad_lo = o.pad_lo,
          .pad_hi = o.pad_hi,
          .dilation = o.dilation,
          .groups = o.groups,
          .edges = o.edges};
}

Shape conv_weight_shape(std::int64_t first, const Dims& kernel, std::int64_t last) {
  Shape shape = {first};
  for (const std::int64_t k : kernel) shape.push_back(k);
  shape.push_back(last);
  return shape;
}

std::pair<Parameter, Parameter> conv_parameters(const ConvLayerOptions& o,
                                                const Shape& shape,
                                                const Mesh& mesh,
                                                DType dtype) {
  const Init fallback = init::torch_default(shape);
  Parameter bias;
  if (o.bias) bias = Parameter({o.out}, o.bias_init.or_else(fallback), mesh, dtype);
  return {Parameter(shape, o.weight_init.or_else(fallback), mesh, dtype), bias};
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

}  // namespace tessera::nn
