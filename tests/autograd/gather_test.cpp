// ranks: 1 2 3 4
// deep: 1 4

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/gather.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

std::size_t row_size(const DenseArray& x) {
  std::size_t size = 1;
  for (int d = 1; d < x.shape.size(); ++d) size *= static_cast<std::size_t>(x.shape[d]);
  return size;
}

DenseArray rows_of(const DenseArray& x, const DenseArray& index) {
  Shape shape = x.shape;
  shape[0] = index.shape[0];
  DenseArray y(shape);
  const std::size_t width = row_size(x);
  for (std::size_t i = 0; i < index.values.size(); ++i)
    for (std::size_t j = 0; j < width; ++j)
      y.values[i * width + j] = x.values[static_cast<std::size_t>(index.values[i]) * width + j];
  return y;
}

DenseArray added_rows(const DenseArray& x, const DenseArray& index, std::int64_t rows) {
  Shape shape = x.shape;
  shape[0] = rows;
  DenseArray y(shape);
  const std::size_t width = row_size(x);
  for (std::size_t i = 0; i < index.values.size(); ++i)
    for (std::size_t j = 0; j < width; ++j)
      y.values[static_cast<std::size_t>(index.values[i]) * width + j] += x.values[i * width + j];
  return y;
}

/// Some dimension of the rows is split by the axes that split the index.
bool same_axes(const std::vector<Layout>& layouts) {
  const Layout& x = layouts[0];
  const Layout& index = layouts[1];
  for (int d = 0; d < x.dims(); ++d) {
    const bool aligned = d == 0 && x.axes_of(0) == index.axes_of(0);
    if ((x.axes_of(d) & index.axes_of(0)) != 0 && !aligned) return true;
  }
  return false;
}

/// The index is split by other axes than dimension 0 of the rows.
bool crossed(const std::vector<Layout>& layouts) {
  return layouts[0].is_split(0) && layouts[1].is_split(0) &&
         layouts[0].axes_of(0) != layouts[1].axes_of(0);
}

}  // namespace

OP_TEST("gather rows") {
  return {
      .inputs = {uniform({9, 4}), integers({14}, 0, 8)},
      .f = [](const auto& x) { return std::vector{gather(x[0], x[1])}; },
      .reference = [](const auto& x) -> std::vector<DenseArray> { return {rows_of(x[0], x[1])}; },
      .may_throw = [](const auto& l) { return same_axes(l) || crossed(l); },
      .linear = {{0}}};
}

OP_TEST("gather numbers, and rows of several dimensions, by 32-bit indices") {
  return {.inputs = {uniform({7}), uniform({7, 2, 3}), integers({5}, 0, 6, DType::kInt32)},
          .f =
              [](const auto& x) {
                return std::vector{gather(x[0], x[2]), gather(x[1], x[2])};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {rows_of(x[0], x[2]), rows_of(x[1], x[2])};
          },
          .may_throw =
              [](const auto& l) {
                return same_axes({l[0], l[2]}) || same_axes({l[1], l[2]}) ||
                       crossed({l[0], l[2]}) || crossed({l[1], l[2]});
              },
          .linear = {{0, 1}}};
}

OP_TEST("scatter_add rows, many to one row and none to others") {
  return {.inputs = {uniform({14, 3}), integers({14}, 2, 6)},
          .f =
              [](const auto& x) {
                const Mesh mesh = x[0].mesh();
                const Layout like =
                    mesh.axis_count() == 0
                        ? Layout::replicated(mesh, {9, 3})
                        : Placement(mesh).shard(0, {mesh.axis_name(0)}).resolve({9, 3});
                return std::vector{scatter_add(x[0], x[1], like)};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {added_rows(x[0], x[1], 9)};
          },
          .may_throw = [](const auto& l) { return same_axes(l) || crossed(l) || l[0].is_split(1); },
          .linear = {{0}}};
}

OP_TEST("scatter_add into a replicated tensor") {
  return {
      .inputs = {uniform({14, 3}), integers({14}, 0, 4)},
      .f =
          [](const auto& x) {
            return std::vector{scatter_add(x[0], x[1], Layout::replicated(x[0].mesh(), {5, 3}))};
          },
      .reference = [](const auto& x) -> std::vector<DenseArray> {
        return {added_rows(x[0], x[1], 5)};
      },
      .may_throw = [](const auto& l) { return same_axes(l) || crossed(l); },
      .linear = {{0}}};
}

OP_TEST("a message pass: gather, change, scatter_add over one index") {
  return {.inputs = {uniform({8, 3}), integers({20}, 0, 7), integers({20}, 0, 7)},
          .f =
              [](const auto& x) {
                const Tensor messages = square(gather(x[0], x[1]));
                return std::vector{scatter_add(messages, x[2], x[0].layout().dual())};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray messages = rows_of(x[0], x[1]);
            for (double& v : messages.values) v *= v;
            return {added_rows(messages, x[2], 8)};
          },
          .may_throw =
              [](const auto& l) {
                return same_axes({l[0], l[1]}) || same_axes({l[0], l[2]}) ||
                       crossed({l[0], l[1]}) || crossed({l[0], l[2]}) || crossed({l[1], l[2]});
              }};
}

RANDOM_OP_TEST("gather of random sizes") {
  const std::int64_t n = rng.integer(1, 12);
  return {
      .inputs = {uniform({n, rng.integer(1, 3)}), integers({rng.integer(0, 20)}, 0, n - 1)},
      .f = [](const auto& x) { return std::vector{gather(x[0], x[1])}; },
      .reference = [](const auto& x) -> std::vector<DenseArray> { return {rows_of(x[0], x[1])}; },
      .may_throw = [](const auto& l) { return same_axes(l) || crossed(l); },
      .linear = {{0}}};
}

TEST_CASE("an index out of range on one rank throws on all") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const Placement rows = Placement(mesh).shard(0, {"a"});
  const Tensor x = Tensor::zeros(rows.resolve({10, 2}));
  const Layout split = rows.resolve({12});
  const Tensor index = Tensor::from_function(
      split, [](const Index& i) { return i[0] == 7 ? 10.0 : 3.0; }, DType::kInt64);
  REQUIRE_THROWS_AS(gather(x, index), ShapeError);
  REQUIRE_THROWS_AS(gather(x, Tensor::zeros(split)), DTypeError);
  REQUIRE_THROWS_AS(scatter_add(x, index, rows.resolve({4, 2})), ShapeError);
}

TEST_CASE("rows travel once, by a route that is made once") {
  const int ranks = process().count;
  const Mesh mesh = Mesh::world({{"a", ranks}});
  const Placement rows = Placement(mesh).shard(0, {"a"});
  const std::int64_t n = 4 * ranks;
  const Tensor x = Tensor::from_function(
      rows.resolve({n, 2}), [](const Index& i) { return static_cast<double>(10 * i[0] + i[1]); });
  // Each rank names the first row of the next one three times, and its own last row.
  const Tensor index = Tensor::from_function(
      rows.resolve({4 * ranks}),
      [&](const Index& i) {
        const std::int64_t rank = i[0] / 4;
        return static_cast<double>(i[0] % 4 < 3 ? (4 * rank + 4) % n : 4 * rank + 3);
      },
      DType::kInt64);
  const Tensor first = gather(x, index);
  Tensor second;
  const Traffic again = traffic_of([&] { second = gather(x, index); });
  report(compare("rows", second, to_dense(first), 0.0));
  if (ranks > 1) {
    // One row of 8 bytes per rank, beside the agreement of 4 bytes.
    const Traffic agreement = traffic_of([&] {
      const Tensor flag =
          Tensor::full(Layout::replicated(mesh, {}).with_partial(mesh.all_axes(), ReduceOp::kMin),
                       1.0, DType::kInt32);
      reduced(flag);
    });
    REQUIRE(again.bytes - agreement.bytes <= 8 * ranks);
  }
  // A change in place is seen.
  if (index.local_shape()[0] > 0) index.mutable_local().as<std::int64_t>()[0] = 0;
  const Tensor third = gather(x, index);
  if (mesh.rank() >= 0) REQUIRE(third.local().as<float>()[0] == 0.0f);
}

OP_TABLE("gather") {
  return {
      .inputs = {uniform({9, 4}), integers({n}, 0, 8)},
      .f = [](const auto& x) { return std::vector{gather(x[0], x[1])}; },
      .reference = [](const auto& x) -> std::vector<DenseArray> { return {rows_of(x[0], x[1])}; },
      .may_throw = [](const auto& l) { return same_axes(l) || crossed(l); }};
}
OP_TABLE("scatter_add") {
  return {
      .inputs = {uniform({n, 3}), integers({n}, 0, 4)},
      .f =
          [](const auto& x) {
            return std::vector{scatter_add(x[0], x[1], Layout::replicated(x[0].mesh(), {5, 3}))};
          },
      .reference = [](const auto& x) -> std::vector<DenseArray> {
        return {added_rows(x[0], x[1], 5)};
      },
      .may_throw = [](const auto& l) { return same_axes(l) || crossed(l); }};
}
