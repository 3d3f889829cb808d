// ranks: 1 2 3 4
// Keys and values that are split walk around: what they send, what they hold, and that sizes, parts
// and number ranges of every kind give what one rank gives.

#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/attention.hpp>
#include <tessera/core/memory.hpp>

#include "support/op_test.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

Mesh line() { return Mesh::world({{"s", process().count}}); }
Layout along(const Mesh& mesh, const Shape& shape) {
  return Placement(mesh).domain(0, "s").resolve(shape);
}

struct Values {
  DenseArray q, k, v, g;
  Values(const Shape& queries, const Shape& keys, std::uint64_t seed)
      : q(random_array(queries, seed)),
        k(random_array(keys, seed + 1)),
        v(random_array(keys, seed + 2)),
        g(random_array(queries, seed + 3)) {}
};

/// Result and gradients with these layouts of queries and keys.
std::vector<Tensor> solve(const Values& x,
                          const Layout& queries,
                          const Layout& keys,
                          DType dtype,
                          const AttentionParameters& parameters = {}) {
  const Tensor q = require_grad(to_tensor(x.q, queries, dtype));
  const Tensor k = require_grad(to_tensor(x.k, keys, dtype));
  const Tensor v = require_grad(to_tensor(x.v, keys, dtype));
  const Tensor o = scaled_dot_product_attention(q, k, v, parameters);
  std::vector<Tensor> result{o};
  const Tensor g = to_tensor(x.g, o.layout(), dtype);
  for (const Tensor& t : grad({o}, {q, k, v}, {}, {g})) result.push_back(t);
  return result;
}

void check_against_one(const Values& x,
                       const Layout& queries,
                       const Layout& keys,
                       DType dtype,
                       double tolerance,
                       const AttentionParameters& parameters = {}) {
  const Mesh self = Mesh::self();
  const auto expected = solve(x, Layout::replicated(self, x.q.shape),
                              Layout::replicated(self, x.k.shape), DType::kFloat64, parameters);
  const auto actual = solve(x, queries, keys, dtype, parameters);
  std::string failure;
  const char* const names[] = {"out", "dq", "dk", "dv"};
  for (std::size_t i = 0; i < 4; ++i)
    failure += compare(names[i], actual[i], to_dense(expected[i]), tolerance, 0.1);
  report(agreed(failure));
}

}  // namespace

TEST_CASE("keys and values go around once, and with their gradients in backward") {
  const int ranks = process().count;
  const Mesh mesh = line();
  const std::int64_t tokens = 12 * ranks, heads = 3, depth = 5, kv_heads = 1;
  const Values x({2, tokens, heads, depth}, {2, tokens, kv_heads, depth}, 1);
  const Tensor q = require_grad(to_tensor(x.q, along(mesh, x.q.shape)));
  const Tensor k = require_grad(to_tensor(x.k, along(mesh, x.k.shape)));
  const Tensor v = require_grad(to_tensor(x.v, along(mesh, x.v.shape)));
  // Of all ranks together; notes: 2 (P - 1) (S / P) H_kv d elements per rank forward,
  // (4 P - 2) (S / P) H_kv d backward; gradients walk in two units.
  const std::int64_t all = 2 * tokens * kv_heads * depth * 8;
  const std::int64_t p = ranks, forward = ranks > 1 ? 2 * (p - 1) * all : 0;
  const std::int64_t backward = ranks > 1 ? (4 * p - 2) * all : 0;
  Tensor o;
  expect_traffic(forward, ranks > 1 ? p * 2 * (p - 1) : 0,
                 [&] { o = scaled_dot_product_attention(q, k, v); });
  const Tensor g = to_tensor(x.g, o.layout());
  expect_traffic(backward, ranks > 1 ? p * (2 * (p - 1) + 4 * p) : 0, [&] {
    grad({o}, {q, k, v}, {}, {g});
  });
}

TEST_CASE("whole keys with split queries, split samples and split heads send nothing") {
  const int ranks = process().count;
  const Mesh mesh = line();
  const Values x({ranks, 4 * ranks, 2 * ranks, 3}, {ranks, 7, ranks, 3}, 1);
  const auto split = [&](const DenseArray& a, int dim) {
    return to_tensor(a, dim < 0 ? Layout::replicated(mesh, a.shape)
                                : Placement(mesh).shard(dim, {"s"}).resolve(a.shape));
  };
  for (const auto& [q_dim, k_dim] : {std::pair{1, -1}, {0, 0}, {2, 2}}) {
    const Tensor q = split(x.q, q_dim), k = split(x.k, k_dim), v = split(x.v, k_dim);
    expect_traffic(0, 0, [&] {
      const Tensor o = scaled_dot_product_attention(q, k, v);
      CHECK((ranks == 1 || o.layout().is_split(q_dim)));
    });
  }
}

TEST_CASE("one block is worked on while one arrives, and no more") {
  const int ranks = process().count;
  const Mesh mesh = line();
  const Shape shape{1, 256 * ranks, 4, 32};
  const Tensor x = Tensor::full(along(mesh, shape), 0.1);
  scaled_dot_product_attention(x, x, x);
  MemoryPool& pool = MemoryPool::of(Device{});
  pool.reset_peak();
  const std::int64_t before = pool.stats().live_bytes;
  const Tensor o = scaled_dot_product_attention(x, x, x);
  // Result, statistics, and two blocks of keys and values; the pool rounds up by an eighth.
  const std::int64_t part = x.local_bytes();
  const std::int64_t blocks = ranks > 1 ? 2 : 0;
  CHECK(pool.stats().peak_bytes - before <= (part + 2 * blocks * part + part / 8) * 9 / 8);
}

TEST_CASE("gradients of blocks take one and a half blocks more") {
  const int ranks = process().count;
  const Mesh mesh = line();
  const Shape shape{1, 256 * ranks, 4, 32};
  const Tensor x = require_grad(Tensor::full(along(mesh, shape), 0.1));
  const Tensor k = require_grad(Tensor::full(along(mesh, shape), 0.2));
  const Tensor v = require_grad(Tensor::full(along(mesh, shape), 0.3));
  const Tensor o = scaled_dot_product_attention(x, k, v);
  const Tensor g = Tensor::full(o.layout(), 1.0);
  MemoryPool& pool = MemoryPool::of(Device{});
  pool.reset_peak();
  const std::int64_t before = pool.stats().live_bytes;
  const std::vector<Tensor> grads = grad({o}, {x, k, v}, {}, {g});
  // The gradients; keys and values that arrive and that are worked on; units of their gradients.
  const std::int64_t part = x.local_bytes();
  const std::int64_t parts = ranks > 1 ? 3 + 4 + 3 : 3;
  CHECK(pool.stats().peak_bytes - before <= parts * part * 9 / 8);
}

TEST_CASE("uneven and empty parts, fewer tokens than ranks, on every mesh") {
  Rng rng(5);
  for (const Mesh& mesh : test_meshes()) {
    for (int draw = 0; draw < 6; ++draw) {
      const bool plane = mesh.axis_count() == 2;
      const Shape domain = plane ? Shape{rng.integer(1, 6), rng.integer(1, 6)}
                                 : Shape{draw < 2 ? 2 : rng.integer(1, 40)};
      const Shape other =
          plane ? Shape{rng.integer(1, 6), rng.integer(1, 6)} : Shape{rng.integer(1, 40)};
      if (mesh.axis_count() > 2) continue;
      const bool causal = draw % 2 == 0;
      const auto shape_of = [](const Shape& d, std::int64_t heads) {
        Shape s{2};
        for (int i = 0; i < d.size(); ++i) s.push_back(d[i]);
        s.push_back(heads);
        s.push_back(4);
        return s;
      };
      const Shape queries = shape_of(domain, 7);
      const Shape keys = shape_of(causal ? domain : other, 7);
      const Values x(queries, keys, rng.bits());
      const std::vector<int> dims = plane ? std::vector{1, 2} : std::vector{1};
      check_against_one(x, draw_layout(mesh, queries, dims, draw, rng),
                        draw_layout(mesh, keys, dims, draw, rng), DType::kFloat64, 1e-10,
                        {.causal = causal});
      // The axes of queries and keys in another order.
      if (plane)
        check_against_one(x, draw_layout(mesh, queries, {2, 1}, draw, rng),
                          draw_layout(mesh, keys, dims, draw, rng), DType::kFloat64, 1e-10,
                          {.causal = causal});
    }
  }
}

TEST_CASE("2,999 tokens and 7 heads, causal") {
  const Mesh mesh = line();
  const Shape shape{1, 2999, 7, 4};
  const Values x(shape, shape, 3);
  const Layout layout = along(mesh, shape);
  check_against_one(x, layout, layout, DType::kFloat64, 1e-10, {.causal = true});
}

TEST_CASE("fp32 on a ring, 7 heads") {
  const Mesh mesh = line();
  const Shape shape{1, 299, 7, 8};
  const Values x(shape, shape, 7);
  const Layout layout = along(mesh, shape);
  check_against_one(x, layout, layout, DType::kFloat32, 1e-5);
  check_against_one(x, layout, layout, DType::kFloat32, 1e-5, {.causal = true});
}

TEST_CASE("dropout and a bias on a ring are those of one rank") {
  const Mesh mesh = line();
  const Shape shape{2, 11, 3, 4}, pair{2, 1, 11, 11};
  const Values x(shape, shape, 4);
  const Layout layout = along(mesh, shape);
  check_against_one(x, layout, layout, DType::kFloat64, 1e-10, {.dropout = 0.3, .key = {2, 5}});

  const DenseArray bias = random_array(pair, 9);
  const auto gradient_of_bias = [&](const Layout& rows, const Layout& pairs) {
    const Tensor b = require_grad(to_tensor(bias, pairs));
    const Tensor o = scaled_dot_product_attention(to_tensor(x.q, rows), to_tensor(x.k, rows),
                                                  to_tensor(x.v, rows), {.bias = b});
    return grad({o}, {b}, {}, {to_tensor(x.g, o.layout())})[0];
  };
  const DenseArray expected = to_dense(gradient_of_bias(Layout::replicated(Mesh::self(), shape),
                                                        Layout::replicated(Mesh::self(), pair)));
  for (const Layout& pairs :
       {Layout::replicated(mesh, pair), Placement(mesh).shard(2, {"s"}).resolve(pair)}) {
    report(agreed(compare("dbias", gradient_of_bias(layout, pairs), expected, 1e-10)));
  }
}

TEST_CASE("large logits and bf16 on a ring") {
  const Mesh mesh = line();
  const Shape shape{1, 21, 2, 8};
  const Values x(shape, shape, 6);
  const Layout layout = along(mesh, shape);
  for (const double scale : {80.0, 1e4})
    check_against_one(x, layout, layout, DType::kFloat64, 1e-9, {.scale = scale});
  check_against_one(x, layout, layout, DType::kFloat32, 2e-4, {.scale = 80.0});
  check_against_one(x, layout, layout, DType::kBFloat16, 3e-2);
}

TEST_CASE("what does not fit throws on every rank") {
  const Mesh mesh = line();
  const auto tensor = [&](const Shape& s) { return Tensor::zeros(Layout::replicated(mesh, s)); };
  const Tensor x = tensor({2, 5, 4, 3});
  REQUIRE_THROWS_AS(scaled_dot_product_attention(x, tensor({2, 5, 3, 3}), tensor({2, 5, 3, 3})),
                    ShapeError);
  REQUIRE_THROWS_AS(scaled_dot_product_attention(x, x, tensor({2, 6, 4, 3})), ShapeError);
  REQUIRE_THROWS_AS(scaled_dot_product_attention(x, x, x, {.mask = tensor({1, 1, 5, 5})}),
                    DTypeError);
  REQUIRE_THROWS_AS(scaled_dot_product_attention(x, x, x, {.bias = tensor({1, 3, 5, 5})}),
                    ShapeError);
  REQUIRE_THROWS_AS(scaled_dot_product_attention(x, x, x, {.dropout = 1.0}), UsageError);
}
