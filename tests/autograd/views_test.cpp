// ranks: 1 2 3 4

#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/shape.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

DenseArray permuted(const DenseArray& x, const Dims& order) {
  Shape shape;
  for (const std::int64_t d : order) shape.push_back(x.shape[static_cast<int>(d)]);
  DenseArray y(shape);
  for_each(shape, [&](const Index& j) {
    Index i = j;
    for (int d = 0; d < order.size(); ++d) i[static_cast<int>(order[d])] = j[d];
    y[j] = x[i];
  });
  return y;
}

DenseArray with_shape(DenseArray x, const Shape& shape) {
  x.shape = shape;
  return x;
}

DenseArray expanded(const DenseArray& x, const Shape& shape) {
  DenseArray y(shape);
  for_each(shape, [&](const Index& j) {
    Index i;
    for (int d = 0; d < x.shape.size(); ++d)
      i.push_back(x.shape[d] == 1 ? 0 : j[d + shape.size() - x.shape.size()]);
    y[j] = x[i];
  });
  return y;
}

/// Splits that flattening cannot keep: of an inner dimension, or of a divided one at odd places.
bool awkward(const std::vector<Layout>& layouts) { return layouts[0].split_axes() != 0; }

OpCase reshape_case(const Shape& from, const Shape& to, Dims cuttable) {
  InputSpec x = uniform(from);
  x.cuttable = cuttable;
  return {
      .inputs = {x},
      .f = [=](const auto& t) { return std::vector{reshape(t[0], to)}; },
      .reference = [=](const auto& t) -> std::vector<DenseArray> { return {with_shape(t[0], to)}; },
      .linear = {{0}}};
}

}  // namespace

OP_TEST("permute") {
  return {.inputs = {uniform({2, 3, 4, 5})},
          .f =
              [](const auto& x) {
                return std::vector{permute(x[0], {0, 2, 3, 1}), permute(x[0], {3, -2, 0, 1})};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {permuted(x[0], {0, 2, 3, 1}), permuted(x[0], {3, 2, 0, 1})};
          },
          .linear = {{0}}};
}

OP_TEST("reshape: flatten behind an outer dimension") {
  return reshape_case({4, 3, 5}, {12, 5}, {0, 2});
}
OP_TEST("reshape: equal dimensions keep any split") {
  return reshape_case({4, 3, 2, 5}, {4, 6, 5}, {0, 1, 3});
}
OP_TEST("reshape: ones come and go") { return reshape_case({4, 3}, {1, 4, 1, 3, 1}, {0, 1}); }

OP_TEST("reshape: a divided dimension keeps a split at multiples of the inner size") {
  OpCase c = reshape_case({12, 2}, {4, 3, 2}, {0, 1});
  c.may_throw = [](const std::vector<Layout>& l) {
    for (const std::int64_t b : l[0].split(0).bounds)
      if (b % 3 != 0) return true;
    return false;
  };
  return c;
}

OP_TEST("reshape: splits that would move elements are errors, never wrong") {
  OpCase c = reshape_case({4, 3, 6}, {12, 2, 3}, {-1});
  c.may_throw = awkward;
  return c;
}

OP_TEST("reshape of an expanded dimension joined with others") {
  return {.inputs = {uniform({2, 3, 1, 4})},
          .f =
              [](const auto& x) {
                const Tensor t = expand(x[0], Shape{2, 3, 5, 4});
                return std::vector{reshape(t, {2, 15, 4}), reshape(t, {2, 3, 20})};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            const DenseArray t = expanded(x[0], {2, 3, 5, 4});
            return {with_shape(t, {2, 15, 4}), with_shape(t, {2, 3, 20})};
          },
          .may_throw = [](const auto& l) { return l[0].is_split(2) || l[0].is_split(3); },
          .linear = {{0}},
          .exact = true};
}
OP_TEST("reshape of a permuted tensor") {
  return {.inputs = {uniform({4, 3, 5})},
          .f =
              [](const auto& x) {
                return std::vector{reshape(permute(x[0], {0, 2, 1}), {4, 15})};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {with_shape(permuted(x[0], {0, 2, 1}), {4, 15})};
          },
          .may_throw = [](const auto& l) { return l[0].is_split(1); },
          .linear = {{0}}};
}

OP_TEST("expand") {
  InputSpec x = uniform({3, 1, 4});
  x.cuttable = {0, 2};
  return {.inputs = {x},
          .f =
              [](const auto& t) {
                return std::vector{expand(t[0], Shape{2, 3, 5, 4})};
              },
          .reference = [](const auto& t) -> std::vector<DenseArray> {
            return {expanded(t[0], {2, 3, 5, 4})};
          },
          .linear = {{0}}};
}

OP_TEST("views of views, and values made from them") {
  return {.inputs = {uniform({6, 4})},
          .f =
              [](const auto& x) {
                const Tensor t = permute(x[0], {1, 0});
                return std::vector{square(t) + t, expand(reshape(t, {4, 1, 6}), Shape{4, 3, 6})};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray t = permuted(x[0], {1, 0});
            DenseArray s = t;
            for (double& v : s.values) v = v * v + v;
            return {s, expanded(with_shape(t, {4, 1, 6}), {4, 3, 6})};
          }};
}

TEST_CASE("cast: values, gradients in the type of the input, pending sums") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const Layout layout = Placement(mesh).shard(0, {"a"}).resolve({7, 3});
  const Tensor x = require_grad(
      Tensor::from_function(layout, [](const Index& i) { return 0.5 * double(i[0] - i[1]); }));
  const Tensor wide = cast(x, DType::kFloat64);
  REQUIRE(wide.dtype() == DType::kFloat64);
  REQUIRE(cast(x, DType::kFloat32).id() == x.id());
  const Tensor half = Tensor::full(layout, 0.25, DType::kFloat64);
  const Tensor g = grad({wide * wide}, {x}, {}, {half})[0];
  REQUIRE(g.dtype() == DType::kFloat32);
  report(compare("gradient", g,
                 to_dense(Tensor::from_function(
                     layout, [](const Index& i) { return 0.25 * double(i[0] - i[1]); })),
                 1e-6));
  const Tensor integers = cast(x, DType::kInt64);
  report(compare("towards zero", integers,
                 to_dense(Tensor::from_function(
                     layout, [](const Index& i) { return std::trunc(0.5 * double(i[0] - i[1])); })),
                 0.0));
  const Tensor pending = Tensor::full(layout.with_partial(0), 1.0);
  REQUIRE(cast(pending, DType::kBFloat16).dtype() == DType::kBFloat16);
}

TEST_CASE("views share memory, and wrong ones throw on every rank") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const Tensor x = Tensor::zeros(Placement(mesh).shard(0, {"a"}).resolve({8, 6}));
  REQUIRE(permute(x, {1, 0}).buffer() == x.buffer());
  REQUIRE(reshape(x, {8, 2, 3}).buffer() == x.buffer());
  REQUIRE(expand(x, Shape{4, 8, 6}).buffer() == x.buffer());
  REQUIRE(reshape(x, {-1, 3}).shape() == Shape{16, 3});
  REQUIRE_THROWS_AS(permute(x, {0, 0}), ShapeError);
  REQUIRE_THROWS_AS(reshape(x, {7, 7}), ShapeError);
  REQUIRE_THROWS_AS(reshape(x, {-1, -1}), ShapeError);
  REQUIRE_THROWS_AS(reshape(x, {-1, 5}), ShapeError);
  REQUIRE_THROWS_AS(expand(x, Shape{4, 6}), ShapeError);
}

OP_TABLE("permute") {
  return {.inputs = {uniform({2, n, 3})},
          .f =
              [](const auto& x) {
                return std::vector{permute(x[0], {2, 0, 1})};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {permuted(x[0], {2, 0, 1})};
          }};
}
OP_TABLE("reshape") {
  OpCase c = reshape_case({2, n, 3, 2}, {2, n, 6}, {-1});
  c.may_throw = [](const auto& l) { return l[0].is_split(3); };
  return c;
}
OP_TABLE("expand") {
  InputSpec x = uniform({n, 1, 3});
  x.cuttable = {0, 2};
  return {.inputs = {x},
          .f =
              [n](const auto& t) {
                return std::vector{expand(t[0], Shape{2, n, 5, 3})};
              },
          .reference = [n](const auto& t) -> std::vector<DenseArray> {
            return {expanded(t[0], {2, n, 5, 3})};
          }};
}
OP_TABLE("cast") {
  return {.inputs = {uniform({2, n, 3})},
          .f = [](const auto& t) { return std::vector{cast(t[0], DType::kFloat64)}; },
          .reference = [](const auto& t) -> std::vector<DenseArray> { return {t[0]}; }};
}
OP_TABLE("cast_again") {
  return {.inputs = {uniform({2, n, 3})},
          .f = [](const auto& t) { return std::vector{cast_again(t[0], DType::kFloat64)}; },
          .reference = [](const auto& t) -> std::vector<DenseArray> { return {t[0]}; }};
}
