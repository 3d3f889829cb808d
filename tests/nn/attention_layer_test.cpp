// ranks: 1 2 3 4
#include <catch2/catch.hpp>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/attention.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/attention.hpp>
#include <tessera/nn/encodings.hpp>
#include <tessera/nn/transformer.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

using nn::AttentionReach;
using nn::MultiHeadAttention;
using nn::MultiHeadAttentionOptions;
using Kind = AttentionReach::Kind;

/// Rows of [tokens..., channels] times a layer's weight, plus its bias.
DenseArray product(const nn::Linear& layer, const DenseArray& x) {
  const DenseArray w = to_dense(layer.weight.value());
  Shape shape = x.shape;
  shape.back() = w.shape[0];
  DenseArray y(shape);
  for_each(shape, [&](const Index& i) {
    Index from = i;
    double total = layer.bias.defined() ? to_dense(layer.bias.value())(i.back()) : 0.0;
    for (from.back() = 0; from.back() < w.shape[1]; ++from.back())
      total += w(i.back(), from.back()) * x[from];
    y[i] = total;
  });
  return y;
}

/// Attention of tokens [N, L, C] by head in plain loops; `sees(i, j)` says which pairs count.
DenseArray reference(const MultiHeadAttention& layer,
                     const DenseArray& x,
                     const DenseArray& context,
                     std::int64_t heads,
                     std::int64_t key_heads,
                     const std::function<bool(std::int64_t, std::int64_t)>& sees) {
  const DenseArray q = product(layer.query, x);
  const DenseArray k = product(layer.key, context);
  const DenseArray v = product(layer.value, context);
  const std::int64_t d = q.shape.back() / heads;
  DenseArray joined(q.shape);
  for (std::int64_t n = 0; n < q.shape[0]; ++n) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t g = h * key_heads / heads;
      for (std::int64_t i = 0; i < q.shape[1]; ++i) {
        double sum = 0.0;
        std::vector<double> out(static_cast<std::size_t>(d));
        for (std::int64_t j = 0; j < k.shape[1]; ++j) {
          if (!sees(i, j)) continue;
          double s = 0.0;
          for (std::int64_t c = 0; c < d; ++c) s += q(n, i, h * d + c) * k(n, j, g * d + c);
          const double p = std::exp(s / std::sqrt(static_cast<double>(d)));
          sum += p;
          for (std::int64_t c = 0; c < d; ++c)
            out[static_cast<std::size_t>(c)] += p * v(n, j, g * d + c);
        }
        for (std::int64_t c = 0; c < d; ++c)
          joined(n, i, h * d + c) = out[static_cast<std::size_t>(c)] / sum;
      }
    }
  }
  return product(layer.proj, joined);
}

DenseArray reshaped(DenseArray a, const Shape& shape) {
  a.shape = shape;
  return a;
}

/// Every mesh of all processes, with the first domain dimensions split over its axes.
template <class F>
void on_all_meshes(int domain, const F& f) {
  for (const Mesh& mesh : test_meshes()) {
    Placement placement(mesh);
    for (int a = 0; a < std::min(mesh.axis_count(), domain); ++a)
      placement = placement.domain(a, mesh.axis_name(a));
    INFO("mesh " << mesh.str());
    f(placement);
  }
}

Tensor placed(const DenseArray& a, const Placement& p) { return to_tensor(a, p.resolve(a.shape)); }

MultiHeadAttention make(const MultiHeadAttentionOptions& o, const Mesh& mesh) {
  MultiHeadAttention layer(o, mesh, DType::kFloat64);
  nn::initialize(layer, 3);
  return layer;
}

}  // namespace

TEST_CASE("attention with heads is what plain loops say") {
  const DenseArray x = random_array({2, 7, 6}, 1);
  const DenseArray context = random_array({2, 9, 5}, 2);
  on_all_meshes(1, [&](const Placement& p) {
    const auto self = make({.channels = 6, .heads = 2, .causal = true}, p.mesh());
    CHECK(compare("causal", self(placed(x, p)),
                  reference(self, x, x, 2, 2, [](auto i, auto j) { return j <= i; }), 1e-12) == "");
    const auto cross = make({.channels = 6,
                             .heads = 4,
                             .key_heads = 2,
                             .head_channels = 3,
                             .context_channels = 5,
                             .bias = false},
                            p.mesh());
    const DenseArray expected = reference(cross, x, context, 4, 2, [](auto, auto) { return true; });
    CHECK(compare("cross", cross.forward(placed(x, p), placed(context, p)), expected, 1e-12) == "");
    CHECK(compare("cross, whole context",
                  cross.forward(placed(x, p), placed(context, Placement(p.mesh()))), expected,
                  1e-12) == "");
  });
}

TEST_CASE("attention within reach: axes, neighbourhoods, windows") {
  const std::int64_t h = 5, w = 6;
  const DenseArray x = random_array({1, h, w, 6}, 1);
  const DenseArray flat = reshaped(x, {1, h * w, 6});
  const auto row = [](std::int64_t i) { return i / w; };
  const auto column = [](std::int64_t i) { return i % w; };
  const auto near = [](std::int64_t i, std::int64_t j, std::int64_t n, std::int64_t k) {
    const std::int64_t first = std::clamp<std::int64_t>(i - k / 2, 0, n - k);
    return j >= first && j < first + k;
  };
  on_all_meshes(2, [&](const Placement& p) {
    const auto check = [&](const AttentionReach& reach, const auto& sees) {
      const auto layer = make({.channels = 6, .heads = 2, .reach = reach}, p.mesh());
      INFO(layer.describe());
      const DenseArray expected = reference(layer, flat, flat, 2, 2, sees);
      CHECK(compare("y", layer(placed(x, p)), reshaped(expected, x.shape), 1e-12) == "");
    };
    check({.kind = Kind::kAxes, .axes = {0}},
          [&](auto i, auto j) { return column(i) == column(j); });
    check({.kind = Kind::kAxes, .axes = {1}}, [&](auto i, auto j) { return row(i) == row(j); });
    check({.kind = Kind::kNeighborhood, .window = {3, 4}}, [&](auto i, auto j) {
      return near(row(i), row(j), h, 3) && near(column(i), column(j), w, 4);
    });
    check({.kind = Kind::kWindow, .window = {2, 4}, .shift = {1, 2}}, [&](auto i, auto j) {
      return (row(i) + 1) / 2 == (row(j) + 1) / 2 && (column(i) + 2) / 4 == (column(j) + 2) / 4;
    });
    // A window wider than the domain sees all of it, with the middle of its bias.
    check({.kind = Kind::kWindow, .window = {9, 9}, .shift = {4, 4}},
          [&](auto, auto) { return true; });
  });
}

TEST_CASE("a relative bias of a wider window is cut to the domain") {
  on_all_meshes(1, [&](const Placement& p) {
    const AttentionReach wide{.kind = Kind::kWindow, .window = {6}, .relative_bias = true};
    const AttentionReach fits{.kind = Kind::kWindow, .window = {4}, .relative_bias = true};
    const auto a = make({.channels = 4, .heads = 2, .reach = wide}, p.mesh());
    const auto b = make({.channels = 4, .heads = 2, .reach = fits}, p.mesh());
    CHECK(a.relative_bias.shape() == Shape{2, 11});
    const DenseArray table = to_dense(a.relative_bias.value());
    for (std::int64_t i = 0; i < 14; ++i)
      b.relative_bias.value().mutable_local().as<double>()[i] = table(i / 7, i % 7 + 2);
    const DenseArray x = random_array({1, 4, 4}, 5);
    CHECK(compare("y", a(placed(x, p)), to_dense(b(placed(x, p))), 1e-13) == "");
  });
}

TEST_CASE("queries and keys are normalised, then turned") {
  const DenseArray x = random_array({1, 9, 8}, 1);
  on_all_meshes(1, [&](const Placement& p) {
    const auto layer =
        make({.channels = 8, .heads = 2, .qk_norm = true, .rotary = RotaryOptions{}}, p.mesh());
    const Tensor t = placed(x, p);
    const auto heads = [&](const nn::Linear& linear) { return reshape(linear(t), {1, 9, 2, 4}); };
    const Tensor by_hand = scaled_dot_product_attention(
        rotary((*layer.query_norm)(heads(layer.query))),
        rotary((*layer.key_norm)(heads(layer.key))), heads(layer.value));
    CHECK(compare("y", layer(t), to_dense(layer.proj(reshape(by_hand, {1, 9, 8}))), 0.0) == "");
  });
}

TEST_CASE("heads split over ranks by the placement of the weights alone") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  const std::int64_t heads = 2 * process().count;
  const MultiHeadAttentionOptions o{
      .channels = 4 * heads, .heads = heads, .qk_norm = true, .rotary = RotaryOptions{}};
  const DenseArray x = random_array({2, 5, 4 * heads}, 1);
  const auto run = [&](MultiHeadAttention& layer, const Mesh& on) {
    const Tensor t = require_grad(to_tensor(x, Layout::replicated(on, x.shape)));
    const Tensor y = reduced(layer(t));
    backward(sum(y * to_tensor(random_array(y.shape(), 2), y.layout())));
    std::vector<Tensor> all = {y, gradient(t)};
    for (const nn::Parameter& p : layer.parameters()) all.push_back(gradient(p.value()));
    return all;
  };
  MultiHeadAttention one = make(o, Mesh::self());
  MultiHeadAttention many = make(o, mesh);
  const Placement rows = Placement(mesh).shard(0, {"x"});
  const Placement columns = Placement(mesh).shard(1, {"x"});
  nn::place(many, {{"query.*", {.rest = rows, .use = rows}},
                   {"key.*", {.rest = rows, .use = rows}},
                   {"value.*", {.rest = rows, .use = rows}},
                   {"proj.weight", {.rest = columns, .use = columns}}});
  const std::vector<Tensor> expected = run(one, Mesh::self());
  const std::vector<Tensor> actual = run(many, mesh);
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(compare(str("tensor ", i), actual[i], to_dense(expected[i]), 1e-12, 1e-2) == "");
  if (mesh.size() > 1) CHECK(actual[2].layout().is_split(0));
}

TEST_CASE("what attention layers refuse") {
  const Mesh mesh = Mesh::self();
  const auto refused = [&](const MultiHeadAttentionOptions& o) {
    CHECK_THROWS_AS(MultiHeadAttention(o, mesh), UsageError);
  };
  refused({.channels = 6, .heads = 4});
  refused({.channels = 8, .heads = 4, .key_heads = 3});
  refused({.channels = 8, .heads = 0});
  refused({.channels = 8, .reach = {.kind = Kind::kWindow}});
  refused({.channels = 8, .reach = {.kind = Kind::kWindow, .window = {2}}, .dropout = 0.1});
  refused({.channels = 8, .reach = {.kind = Kind::kWindow, .window = {2}}, .causal = true});
  refused({.channels = 8, .reach = {.kind = Kind::kAxes}});
  refused({.channels = 8, .reach = {.axes = {1}}});
  refused({.channels = 8, .reach = {.relative_bias = true}});
  const auto layer = make({.channels = 8, .reach = {.kind = Kind::kWindow, .window = {2}}}, mesh);
  CHECK_THROWS_AS(layer(to_self(DenseArray({1, 3, 4, 8}))), ShapeError);
}

TEST_CASE("a block with a condition starts as the identity; without one it refuses to run") {
  const Mesh mesh = Mesh::self();
  nn::TransformerBlock block({.attention = {.channels = 6, .heads = 2}, .condition_channels = 3},
                             mesh, DType::kFloat64);
  nn::initialize(block, 1);
  const DenseArray x = random_array({2, 4, 6}, 1);
  const Tensor condition = to_self(random_array({2, 3}, 2));
  CHECK(compare("y", block.forward(to_self(x), condition), x, 0.0) == "");
  CHECK_THROWS_AS(block(to_self(x)), UsageError);

  // Computed again in backward, the gradients are the same to the bit.
  for (const nn::Parameter& p : block.parameters()) {
    const View v = p.value().mutable_local();
    for (std::int64_t i = 0; i < v.size(); ++i)
      v.as<double>()[i] += 0.01 * static_cast<double>(i % 7);
  }
  const auto gradients = [&] {
    std::vector<Tensor> leaves;
    for (const nn::Parameter& p : block.parameters()) leaves.push_back(p.value());
    return grad({sum(square(block.forward(to_self(x), condition)))}, leaves);
  };
  const std::vector<Tensor> kept = gradients();
  nn::recompute(block, "");
  const std::vector<Tensor> again = gradients();
  for (std::size_t i = 0; i < kept.size(); ++i)
    CHECK(compare(str("gradient ", i), again[i], to_dense(kept[i]), 0.0) == "");
}

TEST_CASE("gated and plain mlp") {
  const Mesh mesh = Mesh::self();
  const DenseArray x = random_array({1, 3, 4}, 1);
  nn::Mlp plain({.channels = 4, .hidden = 6}, mesh, DType::kFloat64);
  nn::Mlp gated({.channels = 4, .out = 2, .activation = Activation::kSilu, .gated = true}, mesh,
                DType::kFloat64);
  nn::initialize(plain, 1);
  nn::initialize(gated, 1);
  DenseArray h = product(plain.fc1, x);
  for (double& v : h.values) v *= 0.5 * (1.0 + std::erf(v / std::sqrt(2.0)));
  CHECK(compare("plain", plain(to_self(x)), product(plain.fc2, h), 1e-12) == "");
  h = product(gated.fc1, x);
  const DenseArray g = product(*gated.gate, x);
  for (std::size_t i = 0; i < h.values.size(); ++i)
    h.values[i] *= g.values[i] / (1.0 + std::exp(-g.values[i]));
  CHECK(h.shape.back() == 16);
  CHECK(compare("gated", gated(to_self(x)), product(gated.fc2, h), 1e-12) == "");
}

}  // namespace tessera::test
