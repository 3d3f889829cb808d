// ranks: 1 2 3 4

#include <algorithm>
#include <cmath>
#include <limits>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/norms.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>

#include "support/cuts.hpp"
#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// f of the values along dimension 1 of x [a, n, b].
DenseArray along_1(const DenseArray& x,
                   const std::function<double(const std::vector<double>&)>& f) {
  DenseArray y({x.shape[0], x.shape[2]});
  for_each(y.shape, [&](const Index& i) {
    std::vector<double> values;
    for (std::int64_t j = 0; j < x.shape[1]; ++j) values.push_back(x(i[0], j, i[1]));
    y[i] = f(values);
  });
  return y;
}

double length(const std::vector<double>& values, double p) {
  double total = 0;
  for (const double v : values) {
    const double a = std::abs(v);
    total = p == kInf ? std::max(total, a) : total + (p == 0 ? (a != 0) : std::pow(a, p));
  }
  return p == kInf || p == 0 ? total : std::pow(total, 1 / p);
}

}  // namespace

OP_TEST("vector norms: 1, 2, 3, 0.5, 0, infinities") {
  return {.inputs = {away_from({3, 7, 2}, {0.0}, 0.2)},
          .f =
              [](const auto& x) {
                return std::vector{vector_norm(x[0], 1.0, {1}),
                                   vector_norm(x[0], 2.0, {1}),
                                   vector_norm(x[0], 3.0, {-2}),
                                   vector_norm(x[0], 0.5, {1}),
                                   vector_norm(x[0], 0.0, {1}),
                                   vector_norm(x[0], kInf, {1}),
                                   vector_norm(x[0])};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            std::vector<DenseArray> y;
            for (const double p : {1.0, 2.0, 3.0, 0.5, 0.0, kInf})
              y.push_back(along_1(x[0], [&](const auto& v) { return length(v, p); }));
            y.emplace_back(Shape{}, length(x[0].values, 2));
            return y;
          },
          .difference_tolerance = 1e-4,
          .fp32_tolerance = 1e-4,
          .bf16_tolerance = 8e-2};
}

OP_TEST("matrix norms") {
  return {.inputs = {away_from({3, 5, 4}, {0.0}, 0.2)},
          .f =
              [](const auto& x) {
                return std::vector{matrix_norm(x[0]), matrix_norm(x[0], MatrixNorm::kOne),
                                   matrix_norm(x[0], MatrixNorm::kInfinity),
                                   matrix_norm(x[0], MatrixNorm::kInfinity, 2, 0)};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            const DenseArray& a = x[0];
            DenseArray fro({3}), one({3}), inf({3}), across({5});
            for (int n = 0; n < 3; ++n) {
              for (int j = 0; j < 4; ++j) {
                double column = 0;
                for (int i = 0; i < 5; ++i) column += std::abs(a(n, i, j));
                one(n) = std::max(one(n), column);
              }
              for (int i = 0; i < 5; ++i) {
                double row = 0;
                for (int j = 0; j < 4; ++j) {
                  row += std::abs(a(n, i, j));
                  fro(n) += a(n, i, j) * a(n, i, j);
                }
                inf(n) = std::max(inf(n), row);
              }
              fro(n) = std::sqrt(fro(n));
            }
            for (int i = 0; i < 5; ++i)
              for (int j = 0; j < 4; ++j) {
                double row = 0;
                for (int n = 0; n < 3; ++n) row += std::abs(a(n, i, j));
                across(i) = std::max(across(i), row);
              }
            return {fro, one, inf, across};
          },
          .difference_tolerance = 1e-4,
          .bf16_tolerance = 8e-2};
}

OP_TEST("dot") {
  return {.inputs = {uniform({4, 9}), uniform({4, 9})},
          .f = [](const auto& x) { return std::vector{dot(x[0], x[1])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {DenseArray({}, test::dot(x[0], x[1]))};
          },
          .may_throw = disagree,
          .linear = {{0}, {1}}};
}

OP_TEST("outer") {
  return {.inputs = {uniform({7}), uniform({5})},
          .f = [](const auto& x) { return std::vector{outer(x[0], x[1])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray y({7, 5});
            for_each(y.shape, [&](const Index& i) { y[i] = x[0](i[0]) * x[1](i[1]); });
            return {y};
          },
          .may_throw = [](const auto& l) { return (l[0].split_axes() & l[1].split_axes()) != 0; },
          .linear = {{0}, {1}}};
}

OP_TEST("logsumexp") {
  return {.inputs = {uniform({3, 8, 2}, -30.0, 30.0)},
          .f =
              [](const auto& x) {
                return std::vector{logsumexp(x[0], {1}), logsumexp(x[0], {0, 2}, true),
                                   logsumexp(x[0])};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray inner(Shape{1, 8, 1}), total(Shape{});
            for_each(x[0].shape, [&](const Index& i) {
              inner(0, i[1], 0) += std::exp(x[0][i]);
              total.values[0] += std::exp(x[0][i]);
            });
            for (double& v : inner.values) v = std::log(v);
            total.values[0] = std::log(total.values[0]);
            return {along_1(x[0],
                            [](const auto& values) {
                              double sum = 0;
                              for (const double v : values) sum += std::exp(v);
                              return std::log(sum);
                            }),
                    inner, total};
          }};
}

TEST_CASE("logsumexp of what is large or infinite; a norm of zeros has the gradient zero") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const Layout layout = Placement(mesh).shard(1, {"a"}).resolve({4, 6});
  const Tensor x = Tensor::from_function(layout, [](const Index& i) {
    if (i[0] == 0) return 1e30;
    if (i[0] == 1) return -kInf;
    if (i[0] == 2) return i[1] == 5 ? kInf : 0.0;
    return i[1] == 2 ? 3.0 : -kInf;
  });
  const DenseArray y = to_dense(logsumexp(x, {1}));
  REQUIRE(y(0) == Approx(1e30));
  REQUIRE(y(1) == -kInf);
  REQUIRE(y(2) == kInf);
  REQUIRE(y(3) == Approx(3.0));
  for (const double p : {0.5, 1.0, 1.5, 2.0, 3.0}) {
    const Tensor zero = require_grad(Tensor::zeros(layout));
    report(compare(str("p ", p), grad({sum(vector_norm(zero, p, {1}))}, {zero})[0],
                   DenseArray({4, 6}), 0.0));
  }
  REQUIRE_THROWS_AS(vector_norm(x, -1.0), UsageError);
  REQUIRE_THROWS_AS(matrix_norm(x, MatrixNorm::kFrobenius, 1, -1), ShapeError);
  REQUIRE_THROWS_AS(dot(x, sum(x, {0})), ShapeError);
  REQUIRE_THROWS_AS(outer(x, x), ShapeError);
  REQUIRE_THROWS_AS(logsumexp(cast(x, DType::kInt32)), DTypeError);
}

OP_TABLE("vector_norm") {
  return {.inputs = {away_from({2, n, 3}, {0.0}, 0.2)},
          .f = [](const auto& x) { return std::vector{vector_norm(x[0], 2.0, {1})}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {along_1(x[0], [](const auto& v) { return length(v, 2); })};
          }};
}
OP_TABLE("matrix_norm") {
  return {.inputs = {away_from({2, n, 3}, {0.0}, 0.2)},
          .f = [](const auto& x) { return std::vector{matrix_norm(x[0])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray y({2});
            for_each(x[0].shape, [&](const Index& i) { y(i[0]) += x[0][i] * x[0][i]; });
            for (double& v : y.values) v = std::sqrt(v);
            return {y};
          }};
}
OP_TABLE("dot") {
  return {.inputs = {uniform({2, n}), uniform({2, n})},
          .f = [](const auto& x) { return std::vector{dot(x[0], x[1])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {DenseArray({}, test::dot(x[0], x[1]))};
          },
          .may_throw = several_split,
          .terms = 1 /* 18 products of both signs */};
}
OP_TABLE("outer") {
  return {.inputs = {uniform({n}), uniform({5})},
          .f = [](const auto& x) { return std::vector{outer(x[0], x[1])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray y({x[0].shape[0], 5});
            for_each(y.shape, [&](const Index& i) { y[i] = x[0](i[0]) * x[1](i[1]); });
            return {y};
          },
          .may_throw = [](const auto& l) { return (l[0].split_axes() & l[1].split_axes()) != 0; },
          .terms = 1 /* 5 products of both signs */};
}
OP_TABLE("logsumexp") {
  return {.inputs = {uniform({2, n, 3}, -3.0, 3.0)},
          .f = [](const auto& x) { return std::vector{logsumexp(x[0], {2})}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray y({2, x[0].shape[1]});
            for_each(x[0].shape, [&](const Index& i) { y(i[0], i[1]) += std::exp(x[0][i]); });
            for (double& v : y.values) v = std::log(v);
            return {y};
          }};
}
