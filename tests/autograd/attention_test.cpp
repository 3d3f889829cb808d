// ranks: 1 2 3 4

#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/attention.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

/// What the reference is told; scores that are dropped come from dropout() of ones.
struct Setting {
  bool causal = false;
  double dropout = 0.0;
  RandomKey key = {};
  double scale = 0.0;  // 0: 1 / sqrt(D)
};

/// Inputs q, k, v, mask or absent, bias or absent.
DenseArray reference(const std::vector<DenseArray>& x, const Setting& setting) {
  const DenseArray &q = x[0], &k = x[1], &v = x[2], &mask = x[3], &bias = x[4];
  const auto domain = [](const Shape& s) {
    Shape d;
    for (int i = 1; i + 2 < s.size(); ++i) d.push_back(s[i]);
    return d;
  };
  std::vector<Index> queries, keys;
  for_each(domain(q.shape), [&](const Index& i) { queries.push_back(i); });
  for_each(domain(k.shape), [&](const Index& i) { keys.push_back(i); });
  const std::int64_t samples = q.shape[0], heads = q.shape[q.shape.size() - 2];
  const std::int64_t ratio = heads / k.shape[k.shape.size() - 2];
  const std::int64_t depth = q.shape.back(), width = v.shape.back();
  const double scale = setting.scale != 0.0 ? setting.scale : 1 / std::sqrt(double(depth));
  Shape out_shape = q.shape;
  out_shape.back() = width;
  DenseArray out(out_shape);
  const Shape scores{samples, heads, std::int64_t(queries.size()), std::int64_t(keys.size())};
  DenseArray keep(scores, 1.0);
  if (setting.dropout > 0.0) keep = to_dense(dropout(to_self(keep), setting.dropout, setting.key));
  const auto at = [](const Index& token, std::int64_t n, std::int64_t h, std::int64_t c) {
    Index i{n};
    for (int d = 0; d < token.size(); ++d) i.push_back(token[d]);
    i.push_back(h);
    i.push_back(c);
    return i;
  };
  const auto pair = [&](const DenseArray& p, std::int64_t n, std::int64_t h, const Index& i,
                        const Index& j) {
    Index at_pair{n, h};
    for (const Index* token : {&i, &j})
      for (int d = 0; d < token->size(); ++d) at_pair.push_back((*token)[d]);
    for (int d = 0; d < at_pair.size(); ++d)
      if (p.shape[d] == 1) at_pair[d] = 0;
    return p[at_pair];
  };
  for (std::int64_t n = 0; n < samples; ++n) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::size_t i = 0; i < queries.size(); ++i) {
        std::vector<double> s(keys.size());
        double top = -INFINITY, total = 0.0;
        for (std::size_t j = 0; j < keys.size(); ++j) {
          for (std::int64_t c = 0; c < depth; ++c)
            s[j] += scale * q[at(queries[i], n, h, c)] * k[at(keys[j], n, h / ratio, c)];
          if (!bias.absent) s[j] += pair(bias, n, h, queries[i], keys[j]);
          if ((!mask.absent && pair(mask, n, h, queries[i], keys[j]) == 0.0) ||
              (setting.causal && j > i))
            s[j] = -INFINITY;
          top = std::max(top, s[j]);
        }
        if (top == -INFINITY) continue;
        for (double& e : s) total += e = std::exp(e - top);
        for (std::size_t j = 0; j < keys.size(); ++j) {
          const double p = s[j] / total * keep(n, h, std::int64_t(i), std::int64_t(j));
          for (std::int64_t c = 0; c < width; ++c)
            out[at(queries[i], n, h, c)] += p * v[at(keys[j], n, h / ratio, c)];
        }
      }
    }
  }
  return out;
}

/// Placements that may be refused: all but those in which samples, or else the domain (of masks and
/// biases the rows), are split by the same axes in every tensor that is split.
bool may_refuse(const std::vector<Layout>& layouts) {
  AxisMask axes = 0;
  int kind = -1;
  const int q_dims = layouts[0].dims() - 3;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const Layout& l = layouts[i];
    if (!l.defined() || l.split_axes() == 0) continue;
    const bool pair = i >= 3;
    for (int d = 0; d < l.dims(); ++d) {
      if (!l.is_split(d)) continue;
      const int first = pair ? 2 : 1, last = pair ? 2 + q_dims : l.dims() - 2;
      const bool domain = d >= first && d < last && l.shape()[d] > 1;
      const bool samples = d == 0 && l.shape()[0] > 1;
      const int mine = samples ? 0 : 1;
      if ((!domain && !samples) || (kind >= 0 && (kind != mine || axes != l.axes_of(d))))
        return true;
      kind = mine;
      axes = l.axes_of(d);
    }
  }
  return false;
}

OpCase attention_case(std::vector<InputSpec> inputs, const Setting& setting = {}) {
  while (inputs.size() < 5) inputs.push_back(absent());
  return {.inputs = std::move(inputs),
          .f =
              [setting](const auto& x) {
                AttentionParameters p{.mask = x[3],
                                      .bias = x[4],
                                      .causal = setting.causal,
                                      .dropout = setting.dropout,
                                      .key = setting.key};
                if (setting.scale != 0.0) p.scale = setting.scale;
                return std::vector{scaled_dot_product_attention(x[0], x[1], x[2], p)};
              },
          .reference = [setting](const auto& x) -> std::vector<DenseArray> {
            return {reference(x, setting)};
          },
          .may_throw = may_refuse,
          .tolerance = 1e-10,
          .random_cuts = 6,
          .variants = 1};
}

}  // namespace

OP_TEST("self-attention") {
  return attention_case({uniform({2, 7, 3, 4}), uniform({2, 7, 3, 4}), uniform({2, 7, 3, 5})});
}

OP_TEST("cross-attention of two dimensions with one, grouped heads, a bias") {
  return attention_case({uniform({1, 3, 2, 4, 3}), uniform({1, 5, 2, 3}), uniform({1, 5, 2, 2}),
                         absent(), uniform({1, 4, 3, 1, 5})});
}

OP_TEST("two dimensions, causal, a mask with blind rows, a bias over keys") {
  return attention_case(
      {uniform({2, 3, 3, 2, 3}), uniform({2, 3, 3, 1, 3}), uniform({2, 3, 3, 1, 2}),
       flags({2, 1, 3, 3, 3, 3}, 0.6), uniform({1, 2, 1, 1, 3, 3})},
      {.causal = true});
}

OP_TABLE("scaled_dot_product_attention") {
  return attention_case({uniform({2, n, 3, 4}), uniform({2, n, 3, 4}), uniform({2, n, 3, 5})});
}

OP_TEST("dropout, the same weights on every mesh") {
  return attention_case({uniform({2, 5, 2, 3}), uniform({2, 6, 2, 3}), uniform({2, 6, 2, 3})},
                        {.dropout = 0.4, .key = {3, 8}, .scale = 0.7});
}
