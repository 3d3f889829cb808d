// ranks: 1 2 3 4

#include <algorithm>
#include <cmath>
#include <limits>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/reduce.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

/// Folds x into a result of shape `kept` (size 1 where reduced), later given the shape `out`.
DenseArray folded(const DenseArray& x,
                  const Shape& kept,
                  const Shape& out,
                  double start,
                  const std::function<double(double, double)>& f) {
  DenseArray y(kept, start);
  for_each(x.shape, [&](const Index& i) {
    Index j = i;
    for (int d = 0; d < j.size(); ++d)
      if (kept[d] == 1) j[d] = 0;
    y[j] = f(y[j], x[i]);
  });
  y.shape = out;
  return y;
}

double plus(double a, double b) { return a + b; }
double larger(double a, double b) { return std::max(a, b); }
double smaller(double a, double b) { return std::min(a, b); }
constexpr double kInf = std::numeric_limits<double>::infinity();

}  // namespace

OP_TEST("sum of everything") {
  return {.inputs = {uniform({5, 7, 3})},
          .f = [](const auto& x) { return std::vector{sum(x[0])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {folded(x[0], {1, 1, 1}, {}, 0, plus)};
          },
          .linear = {{0}}};
}

OP_TEST("sum over inner dimensions") {
  return {.inputs = {uniform({4, 6, 3, 2})},
          .f =
              [](const auto& x) {
                return std::vector{sum(x[0], {1, -1})};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {folded(x[0], {4, 1, 3, 1}, {4, 3}, 0, plus)};
          },
          .linear = {{0}}};
}

OP_TEST("sum over the leading dimensions, kept") {
  return {.inputs = {uniform({4, 6, 3})},
          .f =
              [](const auto& x) {
                return std::vector{sum(x[0], {0, 1}, true)};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {folded(x[0], {1, 1, 3}, {1, 1, 3}, 0, plus)};
          },
          .linear = {{0}}};
}

OP_TEST("mean") {
  return {.inputs = {uniform({3, 8, 2})},
          .f =
              [](const auto& x) {
                return std::vector{mean(x[0], {1}), mean(x[0])};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray rows = folded(x[0], {3, 1, 2}, {3, 2}, 0, plus);
            DenseArray all = folded(x[0], {1, 1, 1}, {}, 0, plus);
            for (double& v : rows.values) v /= 8;
            all.values[0] /= 48;
            return {rows, all};
          },
          .linear = {{0}}};
}

OP_TEST("largest and smallest") {
  return {.inputs = {distinct({4, 9, 3})},
          .f =
              [](const auto& x) {
                return std::vector{amax(x[0], {1}), amin(x[0], {0, 2}, true), amax(x[0])};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {folded(x[0], {4, 1, 3}, {4, 3}, -kInf, larger),
                    folded(x[0], {1, 9, 1}, {1, 9, 1}, kInf, smaller),
                    folded(x[0], {1, 1, 1}, {}, -kInf, larger)};
          },
          .difference_tolerance = 1e-5};
}

TEST_CASE("equal elements share the gradient of the largest") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const Layout layout = Placement(mesh).shard(1, {"a"}).resolve({2, 6});
  const Tensor x = require_grad(Tensor::from_function(
      layout, [](const Index& i) { return i[1] % 2 == 0 ? 3.0 : static_cast<double>(i[0]); }));
  const Tensor g = grad({sum(amax(x, {1}))}, {x})[0];
  report(compare("gradient", g,
                 to_dense(Tensor::from_function(
                     layout, [](const Index& i) { return i[1] % 2 == 0 ? 1.0 / 3.0 : 0.0; })),
                 1e-6));
}

OP_TEST("variance") {
  return {.inputs = {uniform({3, 7, 4}, 2.0, 3.0)},
          .f =
              [](const auto& x) {
                return std::vector{var(x[0], {1}), var(x[0], {0, 1, 2}, 0.0, true)};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            const auto variance = [&](const Shape& kept, const Shape& out, double count, double c) {
              DenseArray centre = folded(x[0], kept, kept, 0, plus);
              DenseArray deviation(x[0].shape);
              for_each(x[0].shape, [&](const Index& i) {
                Index j = i;
                for (int d = 0; d < j.size(); ++d)
                  if (kept[d] == 1) j[d] = 0;
                deviation[i] = std::pow(x[0][i] - centre[j] / count, 2) / (count - c);
              });
              return folded(deviation, kept, out, 0, plus);
            };
            return {variance({3, 1, 4}, {3, 4}, 7, 1), variance({1, 1, 1}, {1, 1, 1}, 84, 0)};
          },
          .bf16_tolerance = 0.3};
}

OP_TEST("sum to the shape of a stretched operand") {
  return {.inputs = {uniform({3, 4, 5})},
          .f =
              [](const auto& x) {
                return std::vector{sum_to(x[0], {4, 1}), sum_to(x[0], {5}), sum_to(x[0], {3, 1, 5}),
                                   sum_to(x[0], {})};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {folded(x[0], {1, 4, 1}, {4, 1}, 0, plus), folded(x[0], {1, 1, 5}, {5}, 0, plus),
                    folded(x[0], {3, 1, 5}, {3, 1, 5}, 0, plus),
                    folded(x[0], {1, 1, 1}, {}, 0, plus)};
          },
          .linear = {{0}}};
}

TEST_CASE("integers sum exactly; wrong dimensions and types throw") {
  const Layout layout = Layout::replicated(Mesh::world({{"a", process().count}}), {4, 3});
  const Tensor total = sum(Tensor::full(layout, 7.0, DType::kInt32));
  REQUIRE(total.dtype() == DType::kInt32);
  REQUIRE(total.item() == 84.0);
  const Tensor x = Tensor::zeros(layout);
  REQUIRE_THROWS_AS(sum(x, {1, -1}), ShapeError);
  REQUIRE_THROWS_AS(sum(x, {2}), ShapeError);
  REQUIRE_THROWS_AS(sum_to(x, {2, 3}), ShapeError);
  const Tensor nothing = Tensor::zeros(Layout::replicated(layout.mesh(), {0, 3}));
  REQUIRE_THROWS_AS(amax(nothing, {0}), ShapeError);
  REQUIRE(sum(nothing).item() == 0.0);
}

TEST_CASE("a sum over a split dimension moves nothing until it is needed") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const Layout layout = Placement(mesh).shard(0, {"a"}).resolve({12, 4});
  const Tensor x = Tensor::full(layout, 1.0);
  expect_traffic(0, 0,
                 [&] { REQUIRE((sum(x, {0}).layout().partial_axes() != 0) == (mesh.size() > 1)); });
}

OP_TABLE("sum") {
  return {.inputs = {uniform({2, n, 3})},
          .f = [](const auto& x) { return std::vector{sum(x[0], {1})}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {folded(x[0], {2, 1, 3}, {2, 3}, 0, plus)};
          }};
}
OP_TABLE("mean", TableOptions{.refuses = [](auto n) { return n == 0; }}) {
  return {.inputs = {uniform({2, n, 3})},
          .f = [](const auto& x) { return std::vector{mean(x[0], {1})}; },
          .reference = [n](const auto& x) -> std::vector<DenseArray> {
            DenseArray rows = folded(x[0], {2, 1, 3}, {2, 3}, 0, plus);
            for (double& v : rows.values) v /= static_cast<double>(n);
            return {rows};
          }};
}
OP_TABLE("amax", TableOptions{.refuses = [](auto n) { return n == 0; }}) {
  return {.inputs = {distinct({2, n, 3})},
          .f = [](const auto& x) { return std::vector{amax(x[0], {1})}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {folded(x[0], {2, 1, 3}, {2, 3}, -kInf, larger)};
          }};
}
OP_TABLE("amin", TableOptions{.refuses = [](auto n) { return n == 0; }}) {
  return {.inputs = {distinct({2, n, 3})},
          .f = [](const auto& x) { return std::vector{amin(x[0], {1})}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {folded(x[0], {2, 1, 3}, {2, 3}, kInf, smaller)};
          }};
}
OP_TABLE("var", TableOptions{.refuses = [](auto n) { return n == 0; }}) {
  return {.inputs = {uniform({2, n, 3})},
          .f = [](const auto& x) { return std::vector{var(x[0], {1}, 0.0)}; },
          .reference = [n](const auto& x) -> std::vector<DenseArray> {
            const auto count = static_cast<double>(n);
            const DenseArray total = folded(x[0], {2, 1, 3}, {2, 3}, 0, plus);
            DenseArray y({2, 3});
            for_each(x[0].shape, [&](const Index& i) {
              y(i[0], i[2]) += std::pow(x[0][i] - total(i[0], i[2]) / count, 2) / count;
            });
            return {y};
          }};
}
OP_TABLE("sum_to") {
  return {.inputs = {uniform({2, n, 3})},
          .f =
              [](const auto& x) {
                return std::vector{sum_to(x[0], {1, 3})};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {folded(x[0], {1, 1, 3}, {1, 3}, 0, plus)};
          }};
}
