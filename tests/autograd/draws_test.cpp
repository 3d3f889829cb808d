// ranks: 1 2 3 4

#include <algorithm>
#include <cmath>
#include <map>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/draws.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/logical.hpp>
#include <tessera/autograd/ops/shape.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr RandomKey kKey{0x1234567890abcdefu, 42};

DenseArray permutation_of(std::int64_t n, RandomKey key) {
  return to_dense(random_permutation(Layout::replicated(Mesh::self(), {n}), key));
}

}  // namespace

TEST_CASE("a permutation has every number once, on every cut the same") {
  Rng rng(run_seed());
  for (const std::int64_t n : {0, 1, 2, 3, 17, 4096, 4097, 5000, 8192, 8193, 100003}) {
    const DenseArray order = permutation_of(n, kKey);
    std::vector<double> sorted = order.values;
    std::sort(sorted.begin(), sorted.end());
    bool complete = true;
    for (std::int64_t i = 0; i < n; ++i)
      complete &= sorted[static_cast<std::size_t>(i)] == static_cast<double>(i);
    CAPTURE(n);
    REQUIRE(complete);
    for (const Mesh& mesh : test_meshes())
      report(compare("permutation", random_permutation(draw_layout(mesh, {n}, rng), kKey), order,
                     0.0));
  }
  const DenseArray a = permutation_of(5000, kKey), b = permutation_of(5000, {kKey.high, 43});
  REQUIRE(a.values != b.values);
}

TEST_CASE("all orders of a few, and all places of many, are equally likely") {
  std::map<std::vector<double>, int> orders;
  for (std::uint64_t k = 0; k < 24000; ++k) ++orders[permutation_of(4, {k, 7}).values];
  REQUIRE(orders.size() == 24);
  double chi = 0;
  for (const auto& [order, count] : orders) chi += std::pow(count - 1000.0, 2) / 1000.0;
  REQUIRE(chi < 60);  // 23 degrees of freedom: exceeded once in 30,000

  // Places of the first element of 5000, and steps from one to the next, in 20 bins.
  std::vector<double> place(20, 0), step(20, 0);
  constexpr int kDraws = 4000;
  for (std::uint64_t k = 0; k < kDraws; ++k) {
    const Layout layout = Layout::replicated(Mesh::self(), {5000});
    const Tensor y = random_permutation(layout, {7, k});
    const auto* const v = y.local().as<const std::int64_t>();
    ++place[static_cast<std::size_t>(v[0] * 20 / 5000)];
    ++step[static_cast<std::size_t>((v[1] - v[0] + 5000) % 5000 * 20 / 5000)];
  }
  for (const auto& bins : {place, step}) {
    double off = 0;
    for (const double count : bins) off += std::pow(count - kDraws / 20.0, 2) / (kDraws / 20.0);
    REQUIRE(off < 55);  // 19 degrees of freedom
  }
}

TEST_CASE("bernoulli: the share of true ones, on every cut the same, where dropout drops") {
  Rng rng(run_seed());
  const Shape shape{40, 50, 3};
  const Layout self = Layout::replicated(Mesh::self(), shape);
  for (const double p : {0.0, 0.1, 0.5, 1.0}) {
    const DenseArray flags = to_dense(random_bernoulli(self, kKey, p));
    double total = 0;
    for (const double v : flags.values) total += v;
    const auto n = static_cast<double>(flags.size());
    REQUIRE(std::abs(total / n - p) <= 5 * std::sqrt(p * (1 - p) / n));
    for (const Mesh& mesh : test_meshes())
      report(
          compare("flags", random_bernoulli(draw_layout(mesh, shape, rng), kKey, p), flags, 0.0));
    if (p < 1.0 && p > 0.0) {
      const Tensor kept = dropout(Tensor::full(self, 1.0, DType::kFloat64), p, kKey);
      report(compare("dropped", equal(kept, 0.0), flags, 0.0));
    }
    const Tensor chance = Tensor::full(self, p, DType::kFloat64);
    report(compare("by tensor", bernoulli(chance, kKey), flags, 0.0));
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const DenseArray y = to_dense(bernoulli(cast(chance, dtype), kKey));
      double count = 0;
      for (const double v : y.values) count += v;
      REQUIRE(std::abs(count / n - p) <= 5 * std::sqrt(p * (1 - p) / n) + 2e-3 * p * (1 - p));
    }
  }
  const Layout layout = Layout::replicated(Mesh::self(), {3});
  REQUIRE_THROWS_AS(random_bernoulli(layout, kKey, 1.5), UsageError);
  REQUIRE_THROWS_AS(bernoulli(Tensor::zeros(layout, DType::kInt32), kKey), DTypeError);
  REQUIRE_THROWS_AS(random_permutation(self, kKey), ShapeError);
}

OP_TABLE("random_bernoulli") {
  return {.inputs = {uniform({2, n, 3})},
          .f =
              [](const auto& t) {
                return std::vector{random_bernoulli(t[0].layout().dual(), kKey, 0.3)};
              },
          .first = false};
}
// A chance of eight bits is another one when it is the sum of parts.
OP_TABLE("bernoulli", TableOptions{.types = {true, true, false}}) {
  return {.inputs = {constant(uniform({2, n, 3}, 0.0, 1.0))},
          .f = [](const auto& t) { return std::vector{bernoulli(t[0], kKey)}; },
          .first = false};
}
OP_TABLE("random_permutation") {
  return {
      .inputs = {uniform({n})},
      .f =
          [](const auto& t) { return std::vector{random_permutation(t[0].layout().dual(), kKey)}; },
      .first = false};
}
