// ranks: 1 2 3 4

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/linear.hpp>

#include "support/cuts.hpp"
#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

/// y[..., o] = sum_i x[..., i] w[o, i] + b[o]; b may be absent.
DenseArray linear_of(const DenseArray& x, const DenseArray& w, const DenseArray& b) {
  Shape shape = x.shape;
  shape.back() = w.shape[0];
  DenseArray y(shape);
  for_each(shape, [&](const Index& j) {
    Index i = j;
    double sum = b.absent ? 0.0 : b(j.back());
    for (std::int64_t k = 0; k < w.shape[1]; ++k) {
      i.back() = k;
      sum += x[i] * w(j.back(), k);
    }
    y[j] = sum;
  });
  return y;
}

DenseArray product(const DenseArray& a, const DenseArray& b, bool ta, bool tb) {
  const int d = a.shape.size();
  const int bd = b.shape.size();
  Shape shape = a.shape;
  shape[d - 2] = a.shape[ta ? d - 1 : d - 2];
  shape[d - 1] = b.shape[tb ? bd - 2 : bd - 1];
  const std::int64_t depth = a.shape[ta ? d - 2 : d - 1];
  DenseArray y(shape);
  for_each(shape, [&](const Index& j) {
    for (std::int64_t k = 0; k < depth; ++k) {
      Index ia = j, ib;
      ia[d - 2] = ta ? k : j[d - 2];
      ia[d - 1] = ta ? j[d - 2] : k;
      for (int e = 0; e < bd - 2; ++e) ib.push_back(j[e]);
      ib.push_back(tb ? j[d - 1] : k);
      ib.push_back(tb ? k : j[d - 1]);
      y[j] += a[ia] * b[ib];
    }
  });
  return y;
}

/// The bias is split although the weight's outputs are not, or the like.
bool bias_split(const std::vector<Layout>& layouts) {
  return several_split(layouts) || (layouts[2].defined() && layouts[2].split_axes() != 0);
}

}  // namespace

OP_TEST("linear with bias") {
  return {.inputs = {uniform({2, 5, 4}), uniform({6, 4}), uniform({6})},
          .f = [](const auto& x) { return std::vector{linear(x[0], x[1], x[2])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {linear_of(x[0], x[1], x[2])};
          },
          .may_throw = bias_split,
          .linear = {{0, 2}, {1, 2}}};
}

OP_TEST("linear without bias") {
  return {.inputs = {uniform({7, 5}), uniform({3, 5})},
          .f = [](const auto& x) { return std::vector{linear(x[0], x[1])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray none;
            none.absent = true;
            return {linear_of(x[0], x[1], none)};
          },
          .may_throw = several_split,
          .linear = {{0}, {1}}};
}

OP_TEST("linear on one row") {
  return {.inputs = {uniform({5}), uniform({3, 5}), uniform({3})},
          .f = [](const auto& x) { return std::vector{linear(x[0], x[1], x[2])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {linear_of(x[0], x[1], x[2])};
          },
          .may_throw = bias_split,
          .linear = {{0, 2}, {1, 2}}};
}

TEST_CASE("matmul: batches, shared right factors, every transposition") {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      for (const bool shared : {false, true}) {
        const Shape a = ta ? Shape{2, 4, 5} : Shape{2, 5, 4};
        Shape b = tb ? Shape{2, 3, 4} : Shape{2, 4, 3};
        if (shared) b.erase(0);
        INFO("transposed " << ta << tb << ", shared " << shared);
        report(
            check_op({.inputs = {uniform(a), uniform(b)},
                      .f = [=](const auto& x) { return std::vector{matmul(x[0], x[1], ta, tb)}; },
                      .reference = [=](const auto& x) -> std::vector<DenseArray> {
                        return {product(x[0], x[1], ta, tb)};
                      },
                      .may_throw = several_split,
                      .linear = {{0}, {1}},
                      .random_cuts = 4,
                      .variants = 1}));
      }
    }
  }
}

TEST_CASE("splits give the placements that tensor parallelism is made of") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const auto split = [&](const Shape& shape, int dim) {
    return Tensor::full(Placement(mesh).shard(dim, {"a"}).resolve(shape), 0.5);
  };
  const Tensor x = Tensor::full(Layout::replicated(mesh, {3, 8}), 1.0);
  expect_traffic(0, 0, [&] {
    const Tensor hidden = linear(x, split({8, 8}, 0));
    REQUIRE(hidden.layout().is_split(1) == (mesh.size() > 1));
    const Tensor y = linear(hidden, split({4, 8}, 1));
    REQUIRE((y.layout().partial_axes() != 0) == (mesh.size() > 1));
  });
  // Rows split: the gradient of the weight is a pending sum, of the input split.
  const Tensor rows = require_grad(split({2, 8 * mesh.size(), 8}, 1));
  const Tensor w = require_grad(Tensor::full(Layout::replicated(mesh, {4, 8}), 0.25));
  expect_traffic(0, 0, [&] { REQUIRE(linear(rows, w).layout().is_split(1) == (mesh.size() > 1)); });
}

TEST_CASE("factors that do not fit throw on every rank") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const auto zeros = [&](const Shape& s) { return Tensor::zeros(Layout::replicated(mesh, s)); };
  REQUIRE_THROWS_AS(linear(zeros({2, 3}), zeros({4, 5})), ShapeError);
  REQUIRE_THROWS_AS(linear(zeros({2, 3}), zeros({4, 3}), zeros({3})), ShapeError);
  REQUIRE_THROWS_AS(matmul(zeros({2, 3}), zeros({4, 5})), ShapeError);
  REQUIRE_THROWS_AS(matmul(zeros({2, 2, 3}), zeros({3, 3, 5})), ShapeError);
  REQUIRE_THROWS_AS(matmul(zeros({3}), zeros({3})), ShapeError);
}

OP_TABLE("linear") {
  return {.inputs = {uniform({2, n, 4}), uniform({6, 4}), uniform({6})},
          .f = [](const auto& x) { return std::vector{linear(x[0], x[1], x[2])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {linear_of(x[0], x[1], x[2])};
          },
          .may_throw = bias_split};
}
OP_TABLE("matmul") {
  return {.inputs = {uniform({2, n, 4}), uniform({2, 4, n})},
          .f = [](const auto& x) { return std::vector{matmul(x[0], x[1])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {product(x[0], x[1], false, false)};
          },
          .may_throw = several_split};
}
