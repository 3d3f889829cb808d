// ranks: 1 2 3 4
// deep: 1 4

#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/gather.hpp>
#include <tessera/autograd/ops/hermite.hpp>
#include <tessera/autograd/ops/reduce.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

/// The cubic between two knots, by its values and slopes.
std::array<double, 4> weights_at(double x, double spacing, int intervals) {
  const double end = spacing * intervals;
  if (x >= end) return {};
  const double t = x / spacing - std::floor(x / spacing);
  return {(1 + 2 * t) * (1 - t) * (1 - t), t * (1 - t) * (1 - t), t * t * (3 - 2 * t),
          t * t * (t - 1)};
}

}  // namespace

OP_TEST("weights of a Hermite table") {
  // Away from the knots, where the second derivative jumps.
  InputSpec x = uniform({9});
  x.values = [](const Shape& shape, std::uint64_t seed) {
    Rng rng(seed);
    DenseArray a(shape);
    for (double& v : a.values)
      v = 0.5 * static_cast<double>(rng.integer(0, 4)) + rng.real(0.1, 0.4);
    return a;
  };
  return {.inputs = {x},
          .f = [](const auto& in) { return std::vector{hermite_weights(in[0], 0.5, 4)}; },
          .reference = [](const auto& in) -> std::vector<DenseArray> {
            DenseArray h({9, 4});
            for (int e = 0; e < 9; ++e) {
              const auto w = weights_at(in[0].values[static_cast<std::size_t>(e)], 0.5, 4);
              for (int t = 0; t < 4; ++t) h(e, t) = w[static_cast<std::size_t>(t)];
            }
            return {h};
          },
          .exact = true,
          .bf16_tolerance = 0};
}

TEST_CASE("a table interpolates a smooth function and its slope") {
  if (test_meshes().front().size() > 1) return;
  constexpr int kIntervals = 64;
  constexpr double kEnd = 2.0, kSpacing = kEnd / kIntervals;
  const auto f = [](double x) { return std::sin(3 * x) * (2 - x) * (2 - x); };
  const auto slope = [](double x) {
    return 3 * std::cos(3 * x) * (2 - x) * (2 - x) - 2 * std::sin(3 * x) * (2 - x);
  };
  DenseArray table({2 * (kIntervals + 1), 1});
  for (int i = 0; i <= kIntervals; ++i) {
    table(2 * i, 0) = f(i * kSpacing);
    table(2 * i + 1, 0) = kSpacing * slope(i * kSpacing);
  }
  DenseArray points({6});
  points.values = {0.0, 0.7, 1.0, 1.993, 2.0, 3.5};
  const Tensor x = require_grad(to_self(points));
  const DenseArray rows = to_dense(hermite_rows(x, kSpacing, kIntervals));
  const Tensor h = hermite_weights(x, kSpacing, kIntervals);
  DenseArray picked({6, 4});
  for (int e = 0; e < 6; ++e)
    for (int t = 0; t < 4; ++t)
      picked(e, t) =
          table(static_cast<std::int64_t>(rows.values[static_cast<std::size_t>(e)]) + t, 0);
  const Tensor y = sum(h * to_self(picked), {1});
  const DenseArray values = to_dense(y);
  const DenseArray slopes = to_dense(grad({sum(y)}, {x})[0]);
  for (std::size_t e = 0; e < 6; ++e) {
    const double at = points.values[e];
    CHECK(values.values[e] == Approx(at < kEnd ? f(at) : 0.0).margin(1e-6));
    CHECK(slopes.values[e] == Approx(at < kEnd ? slope(at) : 0.0).margin(2e-4));
  }
  CHECK(rows.values == std::vector<double>{0, 44, 64, 126, 126, 126});
  CHECK_THROWS_AS(hermite_weights(x, 0.0, 4), UsageError);
  CHECK_THROWS_AS(hermite_rows(x, 0.1, 0), UsageError);
  CHECK_THROWS_AS(hermite_weights(h, 0.1, 4), ShapeError);
}

OP_TABLE("hermite_weights", TableOptions{.types = {true, true, false}}) {
  InputSpec x = uniform({n}, 0.1, 0.4);
  return {.inputs = {x},
          .f = [](const auto& in) { return std::vector{hermite_weights(in[0], 0.5, 4)}; },
          .reference = [](const auto& in) -> std::vector<DenseArray> {
            DenseArray h({in[0].shape[0], 4});
            for_each(h.shape, [&](const Index& i) {
              h[i] = weights_at(in[0](i[0]), 0.5, 4)[static_cast<std::size_t>(i[1])];
            });
            return {h};
          }};
}
OP_TABLE("hermite_rows", TableOptions{.types = {true, true, false}}) {
  return {.inputs = {away_from({n}, {0.5, 1.0, 1.5}, 0.02, 1.9)},
          .f = [](const auto& in) { return std::vector{hermite_rows(abs(in[0]), 0.5, 4)}; },
          .reference = [](const auto& in) -> std::vector<DenseArray> {
            DenseArray rows(in[0].shape);
            for (std::size_t i = 0; i < rows.values.size(); ++i)
              rows.values[i] = 2 * std::floor(std::fabs(in[0].values[i]) / 0.5);
            return {rows};
          },
          .first = false};
}
