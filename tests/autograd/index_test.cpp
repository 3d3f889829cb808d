// ranks: 1 2 3 4
// deep: 1 4

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/index.hpp>
#include <tessera/autograd/ops/lookup.hpp>
#include <tessera/autograd/ops/shape.hpp>

#include "support/cuts.hpp"
#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

DenseArray taken(const DenseArray& x, const DenseArray& index, int dim) {
  DenseArray y(index.shape);
  for_each(index.shape, [&](const Index& i) {
    Index j = i;
    j[dim] = static_cast<std::int64_t>(index[i]);
    y[i] = x[j];
  });
  return y;
}

DenseArray scattered(
    const DenseArray& x, const DenseArray& index, const DenseArray& values, int dim, bool add) {
  DenseArray y = x;
  for_each(index.shape, [&](const Index& i) {
    Index j = i;
    j[dim] = static_cast<std::int64_t>(index[i]);
    y[j] = add ? y[j] + values[i] : values[i];
  });
  return y;
}

}  // namespace

OP_TEST("take_along the middle and the last dimension") {
  return {.inputs = {uniform({3, 8, 4}), integers({3, 5, 4}, 0, 7),
                     integers({3, 8, 6}, 0, 3, DType::kInt32)},
          .f =
              [](const auto& x) {
                return std::vector{take_along(x[0], x[1], 1), take_along(x[0], x[2], -1)};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {taken(x[0], x[1], 1), taken(x[0], x[2], 2)};
          },
          .may_throw = disagree,
          .linear = {{0}}};
}

OP_TEST("take_along of integers and truth values") {
  return {.inputs = {integers({9}, -4, 4), flags({9}), integers({7}, 0, 8)},
          .f =
              [](const auto& x) {
                return std::vector{take_along(x[0], x[2], 0), take_along(x[1], x[2], 0)};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {taken(x[0], x[2], 0), taken(x[1], x[2], 0)};
          },
          .may_throw = disagree,
          .exact = true};
}

OP_TEST("index_select") {
  return {.inputs = {uniform({4, 7, 3}), integers({9}, 0, 6), integers({2}, 0, 2)},
          .f =
              [](const auto& x) {
                return std::vector{index_select(x[0], 1, x[1]), index_select(x[0], -1, x[2])};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray rows({4, 9, 3}), columns({4, 7, 2});
            for_each(rows.shape, [&](const Index& i) {
              rows[i] = x[0](i[0], static_cast<std::int64_t>(x[1](i[1])), i[2]);
            });
            for_each(columns.shape, [&](const Index& i) {
              columns[i] = x[0](i[0], i[1], static_cast<std::int64_t>(x[2](i[2])));
            });
            return {rows, columns};
          },
          .may_throw =
              [](const auto& l) {
                const AxisMask index = l[1].split_axes() | l[2].split_axes();
                return (l[0].split_axes() & index) != 0 || (l[0].is_split(1) && l[1].is_split(0)) ||
                       (l[0].is_split(2) && l[2].is_split(0));
              },
          .linear = {{0}}};
}

OP_TEST("scatter_add_along, many to one place") {
  return {.inputs = {uniform({3, 6, 2}), integers({3, 9, 2}, 1, 5), uniform({3, 9, 2})},
          .f = [](const auto& x) { return std::vector{scatter_add_along(x[0], x[1], x[2], 1)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {scattered(x[0], x[1], x[2], 1, true)};
          },
          .may_throw = disagree,
          .linear = {{0, 2}}};
}

OP_TEST("scatter_along: the last one counts") {
  return {.inputs = {uniform({2, 7, 3}), integers({2, 6, 3}, 0, 6), uniform({2, 6, 3})},
          .f = [](const auto& x) { return std::vector{scatter_along(x[0], x[1], x[2], 1)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {scattered(x[0], x[1], x[2], 1, false)};
          },
          .may_throw = disagree,
          .linear = {{0, 2}}};
}

RANDOM_OP_TEST("one dimension: take and scatter of random sizes") {
  const std::int64_t n = rng.integer(1, 12), m = rng.integer(0, 15);
  return {.inputs = {uniform({n}), integers({m}, 0, n - 1), uniform({m})},
          .f =
              [](const auto& x) {
                return std::vector{take_along(x[0], x[1], 0),
                                   scatter_add_along(x[0], x[1], x[2], 0),
                                   scatter_along(x[0], x[1], x[2], 0)};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {taken(x[0], x[1], 0), scattered(x[0], x[1], x[2], 0, true),
                    scattered(x[0], x[1], x[2], 0, false)};
          },
          .may_throw = disagree};
}

OP_TEST("masked_fill") {
  return {.inputs = {uniform({4, 6, 2}), flags({6, 1})},
          .f = [](const auto& x) { return std::vector{masked_fill(x[0], x[1], 2.5)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray y = x[0];
            for_each(y.shape, [&](const Index& i) {
              if (x[1](i[1], 0) != 0) y[i] = 2.5;
            });
            return {y};
          },
          .may_throw =
              [](const auto& l) {
                return (l[0].split_axes() & l[1].split_axes()) != 0 ||
                       (l[0].is_split(1) && l[1].is_split(0)) || l[1].is_split(1);
              }};
}

OP_TEST("masked_select") {
  return {.inputs = {uniform({3, 8, 2}), flags({3, 8, 2}, 0.4)},
          .f = [](const auto& x) { return std::vector{masked_select(x[0], x[1])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            std::vector<double> chosen;
            for_each(x[0].shape, [&](const Index& i) {
              if (x[1][i] != 0) chosen.push_back(x[0][i]);
            });
            DenseArray y({static_cast<std::int64_t>(chosen.size())});
            y.values = chosen;
            return {y};
          },
          .may_throw = disagree,
          .linear = {{0}}};
}

OP_TEST("masked_select by rows, and of all and nothing") {
  return {.inputs = {uniform({7, 3}), flags({7, 1}, 0.6), uniform({5})},
          .f =
              [](const auto& x) {
                const Layout l = Layout::replicated(x[2].mesh(), {5});
                return std::vector{masked_select(x[0], x[1]),
                                   masked_select(x[2], Tensor::full(l, 1.0, DType::kBool)),
                                   masked_select(x[2], Tensor::full(l, 0.0, DType::kBool))};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            std::vector<double> chosen;
            for_each(x[0].shape, [&](const Index& i) {
              if (x[1](i[0], 0) != 0) chosen.push_back(x[0][i]);
            });
            DenseArray y({static_cast<std::int64_t>(chosen.size())});
            y.values = chosen;
            return {y, x[2], DenseArray({0})};
          },
          .may_throw =
              [](const auto& l) {
                return disagree({l[0], l[1]}) || l[1].is_split(1);
              }};
}

OP_TEST("lookup: weighted sums of points of a grid, some of them outside") {
  return {.inputs = {uniform({2, 4, 5, 3}), integers({2, 7, 4}, -1, 19), uniform({2, 7, 4})},
          .f = [](const auto& x) { return std::vector{lookup(x[0], x[1], x[2], 1)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray y({2, 7, 3});
            for_each({2, 7, 4}, [&](const Index& i) {
              const auto at = static_cast<std::int64_t>(x[1][i]);
              for (int c = 0; at >= 0 && c < 3; ++c)
                y(i[0], i[1], c) += x[2][i] * x[0](i[0], at / 5, at % 5, c);
            });
            return {y};
          },
          .may_throw =
              [](const auto& l) {
                return (l[0].split_axes() & (l[1].split_axes() | l[2].split_axes())) != 0 ||
                       (l[0].is_split(0) && (l[1].is_split(0) || l[2].is_split(0))) ||
                       disagree({l[1], l[2]});
              },
          .linear = {{0}, {2}}};
}

TEST_CASE("a mask over a domain that is split along several dimensions is never refused") {
  Rng rng(9);
  const Shape shape{2, 6, 5};
  OpCase c{.inputs = {uniform(shape), flags(shape, 0.5)},
           .f = [](const auto& x) { return std::vector{masked_select(x[0], x[1])}; }};
  for (const Mesh& mesh : test_meshes()) {
    for (const std::vector<int>& order : {std::vector{1, 2, 0}, std::vector{2, 0, 1}}) {
      const std::vector<int> dims(order.begin(), order.begin() + mesh.axis_count());
      for (const int variant : {0, 1}) {
        const Layout layout = draw_layout(mesh, shape, dims, variant, rng);
        report(check_layouts(c, {layout, layout}));
      }
    }
  }
}

TEST_CASE("elements are routed where both sides are split; the layout is that of the index") {
  const int ranks = process().count;
  const Mesh mesh = Mesh::world({{"a", ranks}});
  const Placement columns = Placement(mesh).shard(1, {"a"});
  const Tensor x = Tensor::from_function(columns.resolve({3, 4 * ranks}), [](const Index& i) {
    return static_cast<double>(100 * i[0] + i[1]);
  });
  const Tensor index = Tensor::from_function(
      columns.resolve({3, 2 * ranks}),
      [&](const Index& i) { return static_cast<double>((5 * i[1] + i[0] + 4) % (4 * ranks)); },
      DType::kInt64);
  const Tensor y = take_along(x, index, 1);
  REQUIRE(y.layout() == index.layout());
  DenseArray expected({3, 2 * ranks});
  for_each(expected.shape, [&](const Index& i) {
    expected[i] = static_cast<double>(100 * i[0] + (5 * i[1] + i[0] + 4) % (4 * ranks));
  });
  report(compare("taken", y, expected, 0.0));
  const Tensor base = Tensor::zeros(columns.resolve({3, 4 * ranks}));
  REQUIRE(scatter_add_along(base, index, y, 1).layout() == base.layout());
  REQUIRE(scatter_along(base, index, y, 1).layout() == base.layout());
  const Tensor no_index = Tensor::zeros(columns.resolve({3, 0}), DType::kInt64);
  const Tensor no_values = Tensor::zeros(columns.resolve({3, 0}), x.dtype());
  report(compare("of nothing", scatter_along(x, no_index, no_values, 1), to_dense(x), 0.0));

  // Nothing but counts moves where the outermost dimension alone is split.
  const Layout rows = Placement(mesh).shard(0, {"a"}).resolve({4 * ranks, 3});
  const Tensor z = Tensor::full(rows, 1.0);
  const Tensor chosen = masked_select(z, greater(z, z - 1.0));
  REQUIRE(chosen.shape() == Shape{12 * ranks});
  REQUIRE(chosen.local_shape() == Shape{12});
}

TEST_CASE("wrong indices, shapes and types throw") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const Placement rows = Placement(mesh).shard(0, {"a"});
  const Tensor x = Tensor::zeros(rows.resolve({10, 2}));
  const Tensor far = Tensor::from_function(
      rows.resolve({12, 2}), [](const Index& i) { return i[0] == 7 ? 10.0 : 3.0; }, DType::kInt64);
  REQUIRE_THROWS_AS(take_along(x, far, 0), ShapeError);
  REQUIRE_THROWS_AS(take_along(x, far, 1), ShapeError);
  REQUIRE_THROWS_AS(take_along(x, cast(far, DType::kFloat32), 0), DTypeError);
  REQUIRE_THROWS_AS(scatter_add_along(x, far, x, 0), ShapeError);
  REQUIRE_THROWS_AS(scatter_along(x, far, cast(far, DType::kFloat64), 0), DTypeError);
  REQUIRE_THROWS_AS(index_select(x, 1, far), ShapeError);
  REQUIRE_THROWS_AS(masked_fill(x, far, 1.0), DTypeError);
  REQUIRE_THROWS_AS(masked_select(x, greater(far, far)), ShapeError);
  REQUIRE_THROWS_AS(lookup(x, far, x, 0), ShapeError);
}

OP_TABLE("take_along") {
  return {
      .inputs = {uniform({2, n, 3}), integers({2, n, 3}, 0, n - 1)},
      .f = [](const auto& x) { return std::vector{take_along(x[0], x[1], 1)}; },
      .reference = [](const auto& x) -> std::vector<DenseArray> { return {taken(x[0], x[1], 1)}; },
      .may_throw = disagree};
}

OP_TABLE("scatter_add_along") {
  return {.inputs = {uniform({2, n, 3}), integers({2, n, 3}, 0, n - 1), uniform({2, n, 3})},
          .f = [](const auto& x) { return std::vector{scatter_add_along(x[0], x[1], x[2], 1)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {scattered(x[0], x[1], x[2], 1, true)};
          },
          .may_throw = disagree};
}

OP_TABLE("scatter_along") {
  return {.inputs = {uniform({2, n, 3}), integers({2, n, 3}, 0, n - 1), uniform({2, n, 3})},
          .f = [](const auto& x) { return std::vector{scatter_along(x[0], x[1], x[2], 1)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {scattered(x[0], x[1], x[2], 1, false)};
          },
          .may_throw = disagree};
}

OP_TABLE("index_select") {
  return {.inputs = {uniform({2, 5, 3}), integers({n}, 0, 4)},
          .f = [](const auto& x) { return std::vector{index_select(x[0], 1, x[1])}; },
          .reference = [n](const auto& x) -> std::vector<DenseArray> {
            DenseArray y({2, n, 3});
            for_each(y.shape, [&](const Index& i) {
              y[i] = x[0](i[0], static_cast<std::int64_t>(x[1](i[1])), i[2]);
            });
            return {y};
          },
          .may_throw = several_split};
}
OP_TABLE("masked_fill") {
  return {.inputs = {uniform({2, n, 3}), flags({2, n, 3})},
          .f = [](const auto& x) { return std::vector{masked_fill(x[0], x[1], 2.5)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray y = x[0];
            for (std::size_t i = 0; i < y.values.size(); ++i)
              if (x[1].values[i] != 0) y.values[i] = 2.5;
            return {y};
          },
          .may_throw = disagree};
}
OP_TABLE("masked_select") {
  return {.inputs = {uniform({2, n, 3}), flags({2, n, 3}, 0.4)},
          .f = [](const auto& x) { return std::vector{masked_select(x[0], x[1])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            std::vector<double> chosen;
            for (std::size_t i = 0; i < x[0].values.size(); ++i)
              if (x[1].values[i] != 0) chosen.push_back(x[0].values[i]);
            DenseArray y({static_cast<std::int64_t>(chosen.size())});
            y.values = chosen;
            return {y};
          },
          .may_throw = disagree};
}

OP_TABLE("lookup") {
  return {.inputs = {uniform({2, 3, 4, 3}), integers({2, n, 4}, -1, 11), uniform({2, n, 4})},
          .f = [](const auto& x) { return std::vector{lookup(x[0], x[1], x[2], 1)}; },
          .reference = [n](const auto& x) -> std::vector<DenseArray> {
            DenseArray y({2, n, 3});
            for_each({2, n, 3, 4}, [&](const Index& i) {
              const auto at = static_cast<std::int64_t>(x[1](i[0], i[1], i[3]));
              if (at >= 0)
                y(i[0], i[1], i[2]) += x[2](i[0], i[1], i[3]) * x[0](i[0], at / 4, at % 4, i[2]);
            });
            return {y};
          },
          .may_throw = several_split};
}
OP_TABLE("lookup_add") {
  return {.inputs = {uniform({2, n, 3}), integers({2, n, 4}, -1, 11), uniform({2, n, 4})},
          .f =
              [](const auto& x) {
                return std::vector{
                    lookup_add(x[0], x[1], x[2], Layout::replicated(x[0].mesh(), {2, 3, 4, 3}), 1)};
              },
          .reference = [n](const auto& x) -> std::vector<DenseArray> {
            DenseArray y({2, 3, 4, 3});
            for_each({2, n, 3, 4}, [&](const Index& i) {
              const auto at = static_cast<std::int64_t>(x[1](i[0], i[1], i[3]));
              if (at >= 0)
                y(i[0], at / 4, at % 4, i[2]) += x[2](i[0], i[1], i[3]) * x[0](i[0], i[1], i[2]);
            });
            return {y};
          },
          .may_throw = several_split};
}
OP_TABLE("lookup_max") {
  return {.inputs = {constant(uniform({2, n, 3}, 0.5, 1.0)), integers({2, n, 4}, -1, 11)},
          .f =
              [](const auto& x) {
                return std::vector{
                    lookup_max(x[0], x[1], Layout::replicated(x[0].mesh(), {2, 3, 4, 3}), 1)};
              },
          .reference = [n](const auto& x) -> std::vector<DenseArray> {
            DenseArray y({2, 3, 4, 3});
            for_each({2, n, 3, 4}, [&](const Index& i) {
              const auto at = static_cast<std::int64_t>(x[1](i[0], i[1], i[3]));
              if (at < 0) return;
              double& to = y(i[0], at / 4, at % 4, i[2]);
              to = std::max(to, x[0](i[0], i[1], i[2]));
            });
            return {y};
          },
          .may_throw = several_split,
          .first = false};
}
