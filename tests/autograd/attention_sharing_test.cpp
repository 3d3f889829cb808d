// ranks: 1 2 3 4 6 8
// Ways to share one attention out: rings, exchanged heads, both, causal balance, rows only. Each
// gives what one rank gives; bytes are those that the boxes need.

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/attention.hpp>

#include "support/op_test.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

struct Values {
  DenseArray q, k, v, g, mask, bias;
};

struct Layouts {
  Layout q, k, pairs;
};

Values draw_values(const Shape& q, const Shape& k, const Shape& pairs, std::uint64_t seed) {
  Values x{random_array(q, seed),     random_array(k, seed + 1),     random_array(k, seed + 2),
           random_array(q, seed + 3), random_array(pairs, seed + 4), random_array(pairs, seed + 5)};
  for (double& m : x.mask.values) m = m > -0.4 ? 1.0 : 0.0;
  return x;
}

/// Result and gradients of q, k, v and the bias.
std::vector<Tensor> solve(const Values& x,
                          const Layouts& l,
                          bool pairs,
                          AttentionParameters parameters,
                          DType dtype = DType::kFloat64) {
  std::vector<Tensor> leaves{require_grad(to_tensor(x.q, l.q, dtype)),
                             require_grad(to_tensor(x.k, l.k, dtype)),
                             require_grad(to_tensor(x.v, l.k, dtype))};
  if (pairs) {
    parameters.mask = to_tensor(x.mask, l.pairs, DType::kBool);
    parameters.bias = require_grad(to_tensor(x.bias, l.pairs, dtype));
    leaves.push_back(parameters.bias);
  }
  const Tensor o = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], parameters);
  std::vector<Tensor> result{o};
  const Tensor g = to_tensor(x.g, o.layout(), dtype);
  for (const Tensor& t : grad({o}, leaves, {}, {g})) result.push_back(t);
  return result;
}

std::string differences(const Values& x,
                        const Layouts& l,
                        bool pairs,
                        const AttentionParameters& parameters,
                        double tolerance = 1e-10,
                        DType dtype = DType::kFloat64) {
  const Mesh self = Mesh::self();
  AttentionParameters alone = parameters;
  alone.exchange.reset();
  const auto whole = [&](const DenseArray& a) { return Layout::replicated(self, a.shape); };
  const auto expected = solve(x, {whole(x.q), whole(x.k), whole(x.bias)}, pairs, alone);
  const auto actual = solve(x, l, pairs, parameters, dtype);
  std::string failure;
  const char* const names[] = {"out", "dq", "dk", "dv", "dbias"};
  for (std::size_t i = 0; i < actual.size(); ++i)
    failure += compare(names[i], actual[i], to_dense(expected[i]), tolerance, 0.1);
  return failure;
}

/// All subsets of the axes, by name.
std::vector<std::vector<std::string>> subsets(const Mesh& mesh) {
  std::vector<std::vector<std::string>> all;
  for (unsigned bits = 0; bits < 1u << mesh.axis_count(); ++bits) {
    std::vector<std::string> names;
    for (int a = 0; a < mesh.axis_count(); ++a)
      if (bits >> a & 1u) names.push_back(mesh.axis_name(a));
    all.push_back(names);
  }
  return all;
}

std::string text(const std::vector<std::string>& names) {
  std::string t;
  for (const std::string& n : names) t += n + " ";
  return t;
}

}  // namespace

TEST_CASE("rings, exchanged heads and hybrids on every mesh") {
  Rng rng(run_seed());
  for (const Mesh& mesh : test_meshes()) {
    const int axes = mesh.axis_count();
    for (int draw = 0; draw < 4; ++draw) {
      // Heads: fewer than ranks, no multiple of them, grouped.
      const std::int64_t groups[] = {1, 1, 2, 3};
      const std::int64_t key_heads = rng.integer(1, 4), ratio = groups[rng.integer(0, 3)];
      Shape q{rng.integer(1, 2)};
      for (int d = 0; d < axes; ++d) q.push_back(rng.integer(1, axes == 1 ? 20 : 8 - axes));
      Shape k = q;
      const bool causal = draw % 2 == 0;
      if (!causal) k[1] = rng.integer(1, 9);
      Shape pairs{q[0], rng.integer(0, 1) == 0 ? 1 : key_heads * ratio};
      for (const Shape& s : {q, k})
        for (int d = 1; d < s.size(); ++d) pairs.push_back(rng.integer(0, 3) == 0 ? 1 : s[d]);
      for (Shape* const s : {&q, &k}) {
        s->push_back(s == &q ? key_heads * ratio : key_heads);
        s->push_back(3);
      }
      const Values x = draw_values(q, k, pairs, rng.bits());
      std::vector<int> dims;
      for (int d = 0; d < axes; ++d) dims.push_back(1 + d);
      const Layouts l{draw_layout(mesh, q, dims, draw, rng), draw_layout(mesh, k, dims, draw, rng),
                      Layout::replicated(mesh, pairs)};
      for (const std::vector<std::string>& exchange : subsets(mesh)) {
        for (const bool balance : {false, true}) {
          if (balance && !causal) continue;
          AttentionParameters p{.causal = causal, .exchange = exchange, .balance = balance};
          if (draw > 1) {
            p.dropout = 0.3;
            p.key = {7, 9};
          }
          const std::string failure = differences(x, l, draw > 0, p);
          report(agreed(failure.empty() ? ""
                                        : str(mesh.str(), ": q ", l.q, " k ", l.k, " pairs ", pairs,
                                              " exchange ", text(exchange), "balance ", balance,
                                              "\n", failure)));
        }
      }
    }
  }
}

TEST_CASE("inner axes exchange heads, outer ones ring: three axes, one dimension") {
  const int ranks = process().count;
  if (ranks != 4 && ranks != 6) return;
  Rng rng(3);
  const Mesh mesh = Mesh::world({{"a", ranks / 2}, {"b", 2}});
  const Shape q{2, 23, 5, 4}, pairs{2, 1, 23, 23};
  const Values x = draw_values(q, q, pairs, 8);
  for (int variant = 0; variant < 3; ++variant) {
    const Bounds bounds = variant == 0 ? balanced_bounds(23, ranks)
                          : ranks == 4 ? Bounds{0, 9, 9, 10, 23}
                                       : Bounds{0, 1, 1, 7, 9, 22, 23};
    const Layout tokens = Layout::make(mesh, q, {{}, {{0, 1}, bounds}, {}, {}});
    const Layouts l{tokens, tokens, Layout::make(mesh, pairs, {{}, {}, {{0, 1}, bounds}, {}})};
    for (const bool causal : {false, true}) {
      for (const std::vector<std::string>& exchange :
           {std::vector<std::string>{}, {"b"}, {"a", "b"}}) {
        report(agreed(differences(x, l, true, {.causal = causal, .exchange = exchange})));
        report(agreed(
            differences(x, l, false, {.causal = causal, .exchange = exchange, .balance = true})));
      }
    }
    REQUIRE_THROWS_AS(scaled_dot_product_attention(to_tensor(x.q, tokens), to_tensor(x.k, tokens),
                                                   to_tensor(x.v, tokens),
                                                   {.exchange = std::vector<std::string>{"a"}}),
                      LayoutError);
  }
}

TEST_CASE("attention along some dimensions of the domain") {
  Rng rng(run_seed());
  for (const Mesh& mesh : test_meshes()) {
    if (mesh.axis_count() > 2) continue;
    for (const std::vector<int>& attended : {std::vector{0}, {1}, {0, 2}, {2}}) {
      const Shape q{2, 5, 4, 3, 2, 3};
      Shape k = q;
      for (const int d : attended) k[1 + d] = rng.integer(2, 6);
      Shape pairs{2};
      const auto attends = [&](int d) {
        return std::find(attended.begin(), attended.end(), d) != attended.end();
      };
      for (int d = 0; d < 3; ++d)
        if (!attends(d)) pairs.push_back(rng.integer(0, 1) == 0 ? 1 : q[1 + d]);
      pairs.push_back(rng.integer(1, 2));
      for (const Shape& s : {q, k})
        for (const int d : attended) pairs.push_back(s[1 + d]);
      const Values x = draw_values(q, k, pairs, rng.bits());
      std::vector<int> dims;
      for (int a = 0; a < mesh.axis_count(); ++a) dims.push_back(1 + (a + int(rng.bits() % 2)) % 3);
      if (dims.size() == 2 && dims[0] == dims[1]) dims[1] = dims[0] % 3 + 1;
      const Layouts l{draw_layout(mesh, q, dims, 1, rng), draw_layout(mesh, k, dims, 1, rng),
                      Layout::replicated(mesh, pairs)};
      const std::string failure = differences(x, l, true, {.dims = attended});
      report(agreed(failure.empty() ? "" : str(l.q, " ", l.k, " ", pairs, "\n", failure)));
    }
  }
}

TEST_CASE("an axis at a time is attention over rows") {
  // Against the rows one by one.
  const Shape shape{1, 3, 4, 2, 3};
  const Values x = draw_values(shape, shape, {1, 1}, 5);
  const Tensor all = scaled_dot_product_attention(to_self(x.q), to_self(x.k), to_self(x.v),
                                                  {.causal = true, .dims = {1}});
  for (std::int64_t row = 0; row < 3; ++row) {
    const auto part = [&](const DenseArray& a) {
      DenseArray y({1, 4, 2, 3});
      for_each(y.shape, [&](const Index& i) { y[i] = a[{0, row, i[1], i[2], i[3]}]; });
      return y;
    };
    const Tensor one = scaled_dot_product_attention(to_self(part(x.q)), to_self(part(x.k)),
                                                    to_self(part(x.v)), {.causal = true});
    report(compare("row", one, part(to_dense(all)), 1e-12));
  }
}

TEST_CASE("exchanged heads: bytes are the heads of others' tokens") {
  const int ranks = process().count;
  const Mesh mesh = Mesh::world({{"s", ranks}});
  const std::int64_t p = ranks, tokens = 3 * p, depth = 4;
  const Shape q{2, tokens, 2 * p, depth}, k{2, tokens, 1, depth};
  const Values x = draw_values(q, k, {1, 1}, 2);
  const Layout lq = Placement(mesh).domain(0, "s").resolve(q);
  const Layout lk = Placement(mesh).domain(0, "s").resolve(k);
  const Tensor tq = require_grad(to_tensor(x.q, lq)), tk = require_grad(to_tensor(x.k, lk)),
               tv = require_grad(to_tensor(x.v, lk));
  const AttentionParameters parameters{.exchange = std::vector<std::string>{"s"}};
  Tensor o;
  // Of q, out and log-sum-exp (P - 1) / P travels; the one key head goes from every rank to all.
  const std::int64_t rows = q.product() / depth;
  const std::int64_t queries = rows * (p - 1) / p * 8, keys = k.product() * (p - 1) * 8;
  expect_traffic(queries * (2 * depth + 1) + 2 * keys, ranks > 1 ? p * (p - 1) * 5 : 0,
                 [&] { o = scaled_dot_product_attention(tq, tk, tv, parameters); });
  const Tensor g = to_tensor(x.g, o.layout());
  // q, out, dout, log-sum-exp, k, v there; dq, dk, dv back.
  expect_traffic(queries * (4 * depth + 1) + 4 * keys, ranks > 1 ? p * (p - 1) * 9 : 0, [&] {
    grad({o}, {tq, tk, tv}, {}, {g});
  });
}

TEST_CASE("fp32 and bf16, balanced and exchanged") {
  const Mesh mesh = Mesh::world({{"s", process().count}});
  const Shape q{1, 77, 7, 8};
  const Values x = draw_values(q, q, {1, 1}, 6);
  const Layout l = Placement(mesh).domain(0, "s").resolve(q);
  for (const std::vector<std::string>& exchange : {std::vector<std::string>{}, {"s"}}) {
    const AttentionParameters p{.causal = true, .exchange = exchange, .balance = true};
    report(agreed(differences(x, {l, l, {}}, false, p, 1e-5, DType::kFloat32)));
    report(agreed(differences(x, {l, l, {}}, false, p, 3e-2, DType::kBFloat16)));
  }
}
