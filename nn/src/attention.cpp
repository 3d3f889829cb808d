#include <fmt/format.h>

#include <tessera/autograd/ops/attention.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/attention.hpp>
#include <tessera/nn/encodings.hpp>

namespace tessera::nn {
namespace {

/// The options with every size written out.
MultiHeadAttentionOptions complete(MultiHeadAttentionOptions o) {
  if (o.key_heads == 0) o.key_heads = o.heads;
  if (o.channels <= 0 || o.heads <= 0 || o.key_heads <= 0 || o.heads % o.key_heads != 0) {
    throw UsageError(str("MultiHeadAttention: ", o.channels, " channels, ", o.heads, " heads, ",
                         o.key_heads,
                         " key heads (all positive, the heads a multiple of the key heads). Change "
                         "the options."));
  }
  if (o.head_channels == 0) {
    if (o.channels % o.heads != 0) {
      throw UsageError(str("MultiHeadAttention: ", o.channels, " channels do not make ", o.heads,
                           " heads. Choose a divisor, or set .head_channels."));
    }
    o.head_channels = o.channels / o.heads;
  }
  if (o.context_channels == 0) o.context_channels = o.channels;
  return o;
}

Linear projection(std::int64_t in, std::int64_t out, bool bias, const Mesh& mesh, DType dtype) {
  return Linear({.in = in, .out = out, .bias = bias}, mesh, dtype);
}

}  // namespace

Tensor split_heads(const Tensor& x, std::int64_t heads) {
  Shape shape = x.shape();
  shape.back() = heads;
  shape.push_back(x.size(-1) / heads);
  return reshape(x, shape);
}

Tensor join_heads(const Tensor& x) {
  Shape shape = x.shape();
  const std::int64_t channels = shape.back();
  shape.resize(shape.size() - 1);
  shape.back() *= channels;
  return reshape(x, shape);
}

MultiHeadAttention::MultiHeadAttention(const MultiHeadAttentionOptions& options,
                                       const Mesh& mesh,
                                       DType dtype)
    : MultiHeadAttention(mesh, dtype, complete(options)) {}

MultiHeadAttention::MultiHeadAttention(const Mesh& mesh,
                                       DType dtype,
                                       const MultiHeadAttentionOptions& o)
    : query(projection(o.channels, o.heads * o.head_channels, o.bias, mesh, dtype)),
      key(projection(o.context_channels, o.key_heads * o.head_channels, o.bias, mesh, dtype)),
      value(projection(o.context_channels, o.key_heads * o.head_channels, o.bias, mesh, dtype)),
      proj(projection(o.heads * o.head_channels, o.channels, o.bias, mesh, dtype)),
      options_(o) {
  if (o.qk_norm) {
    query_norm.emplace(RowNormOptions{.channels = o.head_channels}, mesh, dtype);
    key_norm.emplace(RowNormOptions{.channels = o.head_channels}, mesh, dtype);
  }
}

void MultiHeadAttention::fields(Fields& f) {
  f("query", query);
  f("key", key);
  f("value", value);
  f("query_norm", query_norm);
  f("key_norm", key_norm);
  f("proj", proj);
}

Tensor MultiHeadAttention::forward(const Tensor& x) const { return forward(x, x); }

Tensor MultiHeadAttention::forward(const Tensor& x, const Tensor& context) const {
  const MultiHeadAttentionOptions& o = options_;
  Tensor q = split_heads(query(x), o.heads);
  Tensor k = split_heads(key(context), o.key_heads);
  const Tensor v = split_heads(value(context), o.key_heads);
  if (o.qk_norm) {
    q = (*query_norm)(q);
    k = (*key_norm)(k);
  }
  if (o.rotary) {
    q = rotary(q, *o.rotary);
    k = rotary(k, *o.rotary);
  }
  const bool drops = training() && o.dropout > 0.0;
  AttentionParameters parameters{.causal = o.causal};
  if (drops) {
    parameters.dropout = o.dropout;
    parameters.key = next_random_key();
  }
  return proj(join_heads(scaled_dot_product_attention(q, k, v, parameters)));
}

void MultiHeadAttention::set_edges(const std::vector<EdgeRule>& edges) {
  if (options_.rotary) options_.rotary->circular = circular_flags(edges);
}

std::string MultiHeadAttention::describe() const {
  const MultiHeadAttentionOptions& o = options_;
  std::string text = fmt::format("MultiHeadAttention {} x {}", o.heads, o.head_channels);
  if (o.key_heads != o.heads) text += fmt::format(", {} key heads", o.key_heads);
  return text;
}

}  // namespace tessera::nn
