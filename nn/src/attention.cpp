#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tessera/autograd/ops/attention.hpp>
#include <tessera/autograd/ops/local_attention.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/attention.hpp>
#include <tessera/nn/encodings.hpp>
#include <tessera/nn/heads.hpp>
#include <tessera/nn/tensor_parallel.hpp>

namespace tessera::nn {
namespace {

using Kind = AttentionReach::Kind;

bool is_local(const AttentionReach& reach) {
  return reach.kind == Kind::kNeighborhood || reach.kind == Kind::kWindow;
}

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
  const bool local = is_local(o.reach);
  if (local && (o.dropout > 0.0 || o.reach.window.empty())) {
    throw UsageError(
        "MultiHeadAttention: neighbourhoods and windows have no dropout of weights, and need a "
        "size. Set .dropout = 0 and .reach.window.");
  }
  if ((o.reach.kind == Kind::kAxes) == o.reach.axes.empty()) {
    throw UsageError(
        "MultiHeadAttention: attention along axes needs them, and no other kind does. Set "
        ".reach.axes, or leave it out.");
  }
  if (o.causal && o.reach.kind == Kind::kWindow)
    throw UsageError("MultiHeadAttention: windows have no causal order. Leave out .causal.");
  if (!local && o.reach.relative_bias) {
    throw UsageError(
        "MultiHeadAttention: a relative bias is for neighbourhoods and windows. Use .rotary for "
        "attention to all tokens.");
  }
  if (o.rotary && !o.edges.empty()) o.rotary->circular = circular_flags(o.edges);
  return o;
}

Parameter bias_table(const MultiHeadAttentionOptions& o, const Mesh& mesh, DType dtype) {
  if (!o.reach.relative_bias) return {};
  Shape shape = {o.heads};
  for (const std::int64_t w : o.reach.window) shape.push_back(2 * w - 1);
  return Parameter(shape, init::normal(0.0, 0.02), mesh, dtype);
}

/// The middle of a table of relative positions: that of a smaller window.
Tensor cut_table(Tensor table, const Dims& window, const Dims& smaller) {
  for (int d = 0; table.defined() && d < window.size(); ++d) {
    const std::int64_t cut = window[d] - smaller[d];
    if (cut > 0) table = slice(table, 1 + d, cut, table.size(1 + d) - cut);
  }
  return table;
}

Linear projection(std::int64_t in, std::int64_t out, bool bias, const Mesh& mesh, DType dtype) {
  return Linear({.in = in, .out = out, .bias = bias}, mesh, dtype);
}

}  // namespace

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
      relative_bias(bias_table(o, mesh, dtype)),
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
  f("relative_bias", relative_bias);
  f("proj", proj);
}

Tensor MultiHeadAttention::forward(const Tensor& x) const { return forward(x, x); }

Tensor MultiHeadAttention::forward(const Tensor& x, const Tensor& context) const {
  const MultiHeadAttentionOptions& o = options_;
  const Tensor tokens = gathered_for(x, query.weight);
  const Tensor others = context.id() == x.id() ? tokens : gathered_for(context, key.weight);
  Tensor q = split_heads(query(tokens), o.heads);
  Tensor k = split_heads(key(others), o.key_heads);
  const Tensor v = split_heads(value(others), o.key_heads);
  if (o.qk_norm) {
    q = (*query_norm)(q);
    k = (*key_norm)(k);
  }
  if (o.rotary) {
    q = rotary(q, *o.rotary);
    k = rotary(k, *o.rotary);
  }
  return returned_to(proj(join_heads(attend(q, k, v))), x);
}

Tensor MultiHeadAttention::attend(const Tensor& q, const Tensor& k, const Tensor& v) const {
  const MultiHeadAttentionOptions& o = options_;
  if (!is_local(o.reach)) {
    AttentionParameters parameters{.causal = o.causal, .dims = o.reach.axes};
    if (training() && o.dropout > 0.0) {
      parameters.dropout = o.dropout;
      parameters.key = next_random_key();
    }
    return scaled_dot_product_attention(q, k, v, parameters);
  }
  const int dims = q.dims() - 3;
  if (o.reach.window.size() != dims) {
    throw ShapeError(str("MultiHeadAttention: a window ", o.reach.window, " for ", dims,
                         " domain dimensions. Give .reach.window one size for each."));
  }
  const auto per_dim = [&](const Dims& list, int d, std::int64_t absent) {
    return list.empty() ? absent : list[list.size() == 1 ? 0 : d];
  };
  Dims window;
  for (int d = 0; d < dims; ++d) {
    const std::int64_t room = q.size(1 + d) / per_dim(o.reach.dilation, d, 1);
    window.push_back(std::min(o.reach.window[d], std::max<std::int64_t>(1, room)));
  }
  const Tensor bias = cut_table(relative_bias(), o.reach.window, window);
  if (o.reach.kind == Kind::kNeighborhood) {
    return neighborhood_attention(
        q, k, v,
        {.kernel = window,
         .dilation = o.reach.dilation,
         .causal = o.causal ? std::vector<bool>{true} : std::vector<bool>{},
         .circular = circular_flags(o.edges),
         .bias = bias});
  }
  Dims shift;  // one block that fills the domain does not move
  for (int d = 0; d < dims; ++d)
    shift.push_back(window[d] == q.size(1 + d) ? 0 : per_dim(o.reach.shift, d, 0));
  return window_attention(
      q, k, v,
      {.window = window, .shift = shift, .circular = circular_flags(o.edges), .bias = bias});
}

void MultiHeadAttention::set_edges(const std::vector<EdgeRule>& edges) {
  options_.edges = edges;
  if (options_.rotary) options_.rotary->circular = circular_flags(edges);
}

std::string MultiHeadAttention::describe() const {
  const MultiHeadAttentionOptions& o = options_;
  std::string text = fmt::format("MultiHeadAttention {} x {}", o.heads, o.head_channels);
  if (o.reach.kind == Kind::kAxes) text += fmt::format(", along {}", fmt::join(o.reach.axes, ", "));
  if (is_local(o.reach)) {
    text += fmt::format(", {} {}", o.reach.kind == Kind::kWindow ? "windows" : "neighbourhoods",
                        fmt::join(o.reach.window, "x"));
  }
  if (o.key_heads != o.heads) text += fmt::format(", {} key heads", o.key_heads);
  return text;
}

}  // namespace tessera::nn
