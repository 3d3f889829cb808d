#include <fmt/format.h>

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/attention.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/autograd/ops/softmax.hpp>
#include <tessera/nn/heads.hpp>
#include <tessera/nn/slice_attention.hpp>

namespace tessera::nn {
namespace {

constexpr double kLeastWeight = 1e-5;  // of an empty slice
constexpr double kFirstTemperature = 0.5;

std::int64_t head_channels(const SliceAttentionOptions& o) {
  if (o.channels <= 0 || o.heads <= 0 || o.slices <= 0 ||
      (o.head_channels == 0 && o.channels % o.heads != 0)) {
    throw UsageError(str("SliceAttention: ", o.channels, " channels, ", o.heads, " heads, ",
                         o.slices,
                         " slices (all positive, the channels a multiple of the heads). Change the "
                         "options."));
  }
  return o.head_channels > 0 ? o.head_channels : o.channels / o.heads;
}

Linear per_head(const SliceAttentionOptions& o, const Mesh& mesh, DType dtype) {
  return Linear({.in = head_channels(o), .out = head_channels(o), .bias = false}, mesh, dtype);
}

Linear to_heads(const SliceAttentionOptions& o, const Mesh& mesh, DType dtype) {
  return Linear({.in = o.channels, .out = o.heads * head_channels(o)}, mesh, dtype);
}

/// [N, points, heads * D] -> [N, heads, points, D], a view; its own inverse on four dimensions.
Tensor heads_first(const Tensor& x) { return permute(x, {0, 2, 1, 3}); }

}  // namespace

SliceAttention::SliceAttention(const SliceAttentionOptions& o, const Mesh& mesh, DType dtype)
    : slice_input(to_heads(o, mesh, dtype)),
      value_input(to_heads(o, mesh, dtype)),
      slice_weights({.in = head_channels(o), .out = o.slices}, mesh, dtype),
      temperature({o.heads, 1, 1}, init::constant(kFirstTemperature), mesh, dtype),
      query(per_head(o, mesh, dtype)),
      key(per_head(o, mesh, dtype)),
      value(per_head(o, mesh, dtype)),
      proj({.in = o.heads * head_channels(o), .out = o.channels}, mesh, dtype),
      heads_(o.heads) {}

void SliceAttention::fields(Fields& f) {
  f("slice_input", slice_input);
  f("value_input", value_input);
  f("slice_weights", slice_weights);
  f("temperature", temperature);
  f("query", query);
  f("key", key);
  f("value", value);
  f("proj", proj);
}

Tensor SliceAttention::forward(const Tensor& x) const {
  if (x.dims() != 3) {
    throw ShapeError(
        str("SliceAttention: input ", x.shape(), " is not [N, points, channels]. Reshape it."));
  }
  const Tensor inputs = heads_first(split_heads(slice_input(x), heads_));
  const Tensor weights = softmax(slice_weights(inputs / temperature()));
  const Tensor values = heads_first(split_heads(value_input(x), heads_));

  // Both sums over points are taken together.
  const Tensor sums = reduced(
      concat({matmul(weights, values, true), permute(sum(weights, {2}, true), {0, 1, 3, 2})}, -1));
  const std::int64_t d = values.size(-1);
  const Tensor slices = slice(sums, -1, 0, d) / (slice(sums, -1, d, d + 1) + kLeastWeight);
  const Tensor mixed = heads_first(scaled_dot_product_attention(
      heads_first(query(slices)), heads_first(key(slices)), heads_first(value(slices))));
  return proj(join_heads(heads_first(matmul(weights, mixed))));
}

std::string SliceAttention::describe() const {
  return fmt::format("SliceAttention {} heads, {} slices", heads_, slice_weights.weight.shape()[0]);
}

}  // namespace tessera::nn
