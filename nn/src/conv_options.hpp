#pragma once

#include <string>
#include <tessera/nn/layers.hpp>
#include <utility>
#include <vector>

namespace tessera::nn {

/// A list with one value per domain dimension; one value means all. Throws UsageError.
Dims per_dim(const char* layer, const char* what, const Dims& list, int dims);
std::vector<EdgeRule> edges_per_dim(const char* layer, std::vector<EdgeRule> edges, int dims);

/// The options with every list written out; with `same_padding` no padding means what keeps the
/// size and `output_padding` has no place. Throws UsageError for what does not fit.
ConvLayerOptions complete_options(const char* layer, ConvLayerOptions o, bool same_padding);
/// What the op reads of complete options.
ConvOptions op_options(const ConvLayerOptions& o);

/// [first, kernel..., last]
Shape conv_weight_shape(std::int64_t first, const Dims& kernel, std::int64_t last);
/// Weight of this shape and bias [out], absent where the options have none; drawn as they say, or
/// as PyTorch does.
std::pair<Parameter, Parameter> conv_parameters(const ConvLayerOptions& o,
                                                const Shape& shape,
                                                const Mesh& mesh,
                                                DType dtype);
/// `Conv 3 -> 8, 3x3 /2x2 in 4`
std::string describe_conv(const char* layer,
                          std::int64_t in,
                          std::int64_t out,
                          const Shape& weight,
                          const Dims& stride,
                          std::int64_t groups);

}  // namespace tessera::nn
