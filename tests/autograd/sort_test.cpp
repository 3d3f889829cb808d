// ranks: 1 2 3 4
// deep: 1 4

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/index.hpp>
#include <tessera/autograd/ops/logical.hpp>
#include <tessera/autograd/ops/roll.hpp>
#include <tessera/autograd/ops/scan.hpp>
#include <tessera/autograd/ops/sort.hpp>
#include <tessera/core/dry_run.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

/// Values and places of the first k of each line.
std::vector<DenseArray> ordered(const DenseArray& x, int dim, bool falling, std::int64_t k) {
  Shape shape = x.shape;
  shape[dim] = k;
  DenseArray values(shape), places(shape);
  Shape lines = x.shape;
  lines[dim] = 1;
  for_each(lines, [&](const Index& line) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(x.shape[dim]));
    std::iota(order.begin(), order.end(), 0);
    const auto at = [&](std::int64_t i) {
      Index j = line;
      j[dim] = i;
      return x[j];
    };
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      // NaN is the largest.
      const double p = falling ? at(b) : at(a), q = falling ? at(a) : at(b);
      return std::isnan(q) ? !std::isnan(p) : p < q;
    });
    for (std::int64_t i = 0; i < k; ++i) {
      Index j = line;
      j[dim] = i;
      places[j] = static_cast<double>(order[static_cast<std::size_t>(i)]);
      values[j] = at(order[static_cast<std::size_t>(i)]);
    }
  });
  return {values, places};
}

DenseArray squeezed(DenseArray a, int dim) {
  a.shape.erase(dim);
  return a;
}

void append(std::vector<DenseArray>& to, std::vector<DenseArray> from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// Ties, zeros of both signs, NaN and infinities.
DenseArray odd_values(const Shape& shape, std::uint64_t seed) {
  DenseArray a(shape);
  Rng rng(seed);
  const std::vector<double> from = {0.0,
                                    -0.0,
                                    1.0,
                                    -1.0,
                                    2.5,
                                    std::nan(""),
                                    std::numeric_limits<double>::infinity(),
                                    -std::numeric_limits<double>::infinity()};
  for (double& v : a.values) v = rng.choice(from);
  return a;
}

}  // namespace

OP_TEST("sort along each dimension, both ways") {
  return {.inputs = {distinct({3, 9, 4})},
          .f =
              [](const auto& x) {
                const Ordered a = sort(x[0], 1), b = sort(x[0], -1, true), c = sort(x[0], 0);
                return std::vector{a.values, a.indices, b.values, b.indices, c.values, c.indices};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            std::vector<DenseArray> y = ordered(x[0], 1, false, 9);
            append(y, ordered(x[0], 2, true, 4));
            append(y, ordered(x[0], 0, false, 3));
            return y;
          },
          .step = 1e-4,
          .bf16_tolerance = 0};
}

OP_TEST("sort of one line, and of lines too few to be shared out") {
  return {.inputs = {distinct({23}), distinct({1, 17, 1})},
          .f =
              [](const auto& x) {
                const Ordered a = sort(x[0], 0, true), b = sort(x[1], 1);
                return std::vector{a.values, a.indices, b.values, b.indices};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            std::vector<DenseArray> y = ordered(x[0], 0, true, 23);
            append(y, ordered(x[1], 1, false, 17));
            return y;
          },
          .step = 1e-4,
          .bf16_tolerance = 0};
}

OP_TEST("integers with many ties keep the order of their indices") {
  return {.inputs = {integers({31}, 0, 3), integers({2, 14}, -2, 2, DType::kInt32)},
          .f =
              [](const auto& x) {
                return std::vector{argsort(x[0], 0), argsort(x[0], 0, true), argsort(x[1], 1),
                                   sort(x[1], 1, true).values};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {ordered(x[0], 0, false, 31)[1], ordered(x[0], 0, true, 31)[1],
                    ordered(x[1], 1, false, 14)[1], ordered(x[1], 1, true, 14)[0]};
          },
          .exact = true};
}

OP_TEST("topk, few and many") {
  return {.inputs = {distinct({3, 12, 2})},
          .f =
              [](const auto& x) {
                const Ordered a = topk(x[0], 2, 1), b = topk(x[0], 11, 1, false),
                              c = topk(x[0], 1, 0);
                return std::vector{a.values, a.indices, b.values, b.indices, c.values, c.indices};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            std::vector<DenseArray> y = ordered(x[0], 1, true, 2);
            append(y, ordered(x[0], 1, false, 11));
            append(y, ordered(x[0], 0, true, 1));
            return y;
          },
          .step = 1e-4,
          .bf16_tolerance = 0};
}

OP_TEST("extremes and their places") {
  return {.inputs = {distinct({3, 7, 4})},
          .f =
              [](const auto& x) {
                const Ordered most = max_along(x[0], 1), least = min_along(x[0], -1, true);
                return std::vector{most.values,   most.indices,    least.values,
                                   least.indices, argmax(x[0], 0), argmin(x[0], 1, true)};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            const auto most = ordered(x[0], 1, true, 1), least = ordered(x[0], 2, false, 1);
            return {squeezed(most[0], 1),
                    squeezed(most[1], 1),
                    least[0],
                    least[1],
                    squeezed(ordered(x[0], 0, true, 1)[1], 0),
                    ordered(x[0], 1, false, 1)[1]};
          },
          .step = 1e-4,
          .bf16_tolerance = 0};
}

RANDOM_OP_TEST("order of random sizes with ties, NaN and infinities") {
  const Shape shape{rng.integer(1, 40), rng.integer(1, 3)};
  const bool falling = rng.coin();
  const std::int64_t k = rng.integer(0, shape[0]);
  InputSpec spec = constant(uniform(shape));
  spec.partial = false;
  spec.values = odd_values;
  return {.inputs = {spec},
          .f =
              [=](const auto& x) {
                return std::vector{argsort(x[0], 0, falling), topk(x[0], k, 0, falling).indices,
                                   argmax(x[0], 0), argmin(x[0], 0)};
              },
          .reference = [=](const auto& x) -> std::vector<DenseArray> {
            return {ordered(x[0], 0, falling, shape[0])[1], ordered(x[0], 0, falling, k)[1],
                    squeezed(ordered(x[0], 0, true, 1)[1], 0),
                    squeezed(ordered(x[0], 0, false, 1)[1], 0)};
          },
          .exact = true};
}

TEST_CASE("long lines; the first of equal ones gets the gradient") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const Layout layout = Placement(mesh).shard(0, {"a"}).resolve({20000});
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kInt64}) {
    const double scale = is_floating(dtype) ? 1.0 : 1e6;
    const DenseArray values = rounded_to(random_array({20000}, 3, -scale, scale), dtype);
    const Ordered o = sort(to_tensor(values, layout, dtype), 0);
    REQUIRE(o.values.layout() == layout);
    REQUIRE(o.indices.layout() == layout);
    const auto expected = ordered(to_dense(to_tensor(values, layout, dtype)), 0, false, 20000);
    report(compare("values", o.values, expected[0], 0.0));
    report(compare("places", o.indices, expected[1], 0.0));
  }
  const Tensor same = require_grad(Tensor::full(layout, 2.0));
  DenseArray first({20000});
  first(0) = 1.0;
  report(compare("gradient", grad({max_along(same, 0).values}, {same})[0], first, 0.0));
}

TEST_CASE("a plan needs no data, where these decide nothing") {
  if (process().count > 1) return;  // one process takes the place of three
  const DryRun dry(3);
  const Mesh mesh = dry.mesh({{"a", 3}}, 1);
  const Placement rows = Placement(mesh).shard(0, {"a"});
  const Tensor x = Tensor::zeros(rows.resolve({900000000, 4}));
  REQUIRE(cumsum(x, 0).layout() == x.layout());
  REQUIRE(flip(roll(x, {1}, {0}), {0}).layout() == x.layout());
  REQUIRE(max_along(x, 0).values.shape() == Shape{4});
  REQUIRE(topk(x, 5, 0).indices.shape() == Shape{5, 4});
  REQUIRE(sort(x, 0).values.layout() == x.layout());
  REQUIRE_THROWS_AS(argsort(Tensor::zeros(rows.resolve({30})), 0), NotSupported);
  REQUIRE_THROWS_AS(masked_select(x, less(x, 1.0)), NotSupported);
}

TEST_CASE("wrong counts and dimensions throw") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const Tensor x = Tensor::zeros(Placement(mesh).shard(0, {"a"}).resolve({5, 0}));
  REQUIRE_THROWS_AS(topk(x, 6, 0), ShapeError);
  REQUIRE_THROWS_AS(topk(x, -1, 0), ShapeError);
  REQUIRE_THROWS_AS(argmax(x, 1), ShapeError);
  REQUIRE_THROWS_AS(sort(x, 2), ShapeError);
  REQUIRE(sort(x, 0).values.shape() == Shape{5, 0});
}

OP_TABLE("sort") {
  return {.inputs = {distinct({2, n, 3})},
          .f =
              [n](const auto& x) {
                (void)n;
                return std::vector{sort(x[0], 1).values};
              },
          .reference = [n](const auto& x) -> std::vector<DenseArray> {
            (void)n;
            return {ordered(x[0], 1, false, n)[0]};
          }};
}

OP_TABLE("argsort") {
  return {.inputs = {distinct({2, n, 3})},
          .f =
              [n](const auto& x) {
                (void)n;
                return std::vector{argsort(x[0], 1)};
              },
          .reference = [n](const auto& x) -> std::vector<DenseArray> {
            (void)n;
            return {ordered(x[0], 1, false, n)[1]};
          },
          .first = false};
}

OP_TABLE("topk") {
  return {.inputs = {distinct({2, n, 3})},
          .f =
              [n](const auto& x) {
                (void)n;
                return std::vector{topk(x[0], std::min<std::int64_t>(n, 3), 1).values};
              },
          .reference = [n](const auto& x) -> std::vector<DenseArray> {
            (void)n;
            return {ordered(x[0], 1, true, std::min<std::int64_t>(n, 3))[0]};
          }};
}

OP_TABLE("argmax", TableOptions{.refuses = [](auto n) { return n == 0; }}) {
  return {.inputs = {distinct({2, n, 3})},
          .f =
              [n](const auto& x) {
                (void)n;
                return std::vector{argmax(x[0], 1)};
              },
          .reference = [n](const auto& x) -> std::vector<DenseArray> {
            (void)n;
            return {squeezed(ordered(x[0], 1, true, 1)[1], 1)};
          },
          .first = false};
}

OP_TABLE("argmin", TableOptions{.refuses = [](auto n) { return n == 0; }}) {
  return {.inputs = {distinct({2, n, 3})},
          .f =
              [n](const auto& x) {
                (void)n;
                return std::vector{argmin(x[0], 1)};
              },
          .reference = [n](const auto& x) -> std::vector<DenseArray> {
            (void)n;
            return {squeezed(ordered(x[0], 1, false, 1)[1], 1)};
          },
          .first = false};
}

OP_TABLE("max_along", TableOptions{.refuses = [](auto n) { return n == 0; }}) {
  return {.inputs = {distinct({2, n, 3})},
          .f =
              [n](const auto& x) {
                (void)n;
                return std::vector{max_along(x[0], 1).values};
              },
          .reference = [n](const auto& x) -> std::vector<DenseArray> {
            (void)n;
            return {squeezed(ordered(x[0], 1, true, 1)[0], 1)};
          }};
}

OP_TABLE("min_along", TableOptions{.refuses = [](auto n) { return n == 0; }}) {
  return {.inputs = {distinct({2, n, 3})},
          .f =
              [n](const auto& x) {
                (void)n;
                return std::vector{min_along(x[0], 1).values};
              },
          .reference = [n](const auto& x) -> std::vector<DenseArray> {
            (void)n;
            return {squeezed(ordered(x[0], 1, false, 1)[0], 1)};
          }};
}
