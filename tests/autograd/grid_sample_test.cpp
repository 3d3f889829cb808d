// ranks: 1 2 3 4

#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/grid_sample.hpp>
#include <tessera/autograd/ops/reduce.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

double cubic(double s) {
  constexpr double a = -0.75;
  s = std::abs(s);
  if (s <= 1) return ((a + 2) * s - (a + 3)) * s * s + 1;
  return s < 2 ? ((a * s - 5 * a) * s + 8 * a) * s - 4 * a : 0;
}

double weight(InterpolateMode mode, double distance) {
  if (mode == InterpolateMode::kCubic) return cubic(distance);
  return std::max(0.0, 1.0 - std::abs(distance));
}

/// Place of a coordinate in elements.
double place(double g, std::int64_t size, bool align) {
  const auto n = static_cast<double>(size);
  return align ? (g + 1) / 2 * (n - 1) : ((g + 1) * n - 1) / 2;
}

DenseArray sampled(const DenseArray& x, const DenseArray& grid, const GridSampleOptions& options) {
  const int dims = x.shape.size() - 2;
  const std::int64_t channels = x.shape.back();
  Shape shape = grid.shape;
  shape.back() = channels;
  DenseArray y(shape);
  Shape points = grid.shape;
  points.resize(points.size() - 1);
  const int reach = options.mode == InterpolateMode::kCubic ? 2 : 1;
  for_each(points, [&](const Index& p) {
    Shape window;
    std::vector<double> at;
    for (int d = 0; d < dims; ++d) {
      Index i = p;
      i.push_back(d);
      at.push_back(place(grid[i], x.shape[d + 1], options.align_corners));
      window.push_back(options.mode == InterpolateMode::kNearest ? 1 : 2 * reach);
    }
    for_each(window, [&](const Index& w) {
      double factor = 1;
      Index from{p[0]};
      for (int d = 0; d < dims; ++d) {
        std::int64_t i = 0;
        const double u = at[static_cast<std::size_t>(d)];
        if (options.mode == InterpolateMode::kNearest) {
          i = static_cast<std::int64_t>(std::nearbyint(u));
        } else {
          i = static_cast<std::int64_t>(std::floor(u)) - reach + 1 + w[d];
          factor *= weight(options.mode, u - static_cast<double>(i));
        }
        const EdgeRule edge =
            options.edge[options.edge.size() == 1 ? 0 : static_cast<std::size_t>(d)];
        from.push_back(map_edge(edge, i, x.shape[d + 1]));
        if (from.back() < 0) factor = 0;
      }
      for (std::int64_t c = 0; factor != 0 && c < channels; ++c) {
        Index i = from, j = p;
        i.push_back(c);
        j.push_back(c);
        y[j] += factor * x[i];
      }
    });
  });
  return y;
}

/// Points on the domain and a little beyond, not where elements meet.
InputSpec points(const Shape& shape, const Dims& size, bool align) {
  InputSpec spec{.shape = shape};
  spec.values = [=](const Shape& s, std::uint64_t seed) {
    DenseArray a(s);
    Rng rng(seed);
    for_each(s, [&](const Index& i) {
      const auto n = static_cast<double>(size[static_cast<int>(i.back())]);
      const double u = static_cast<double>(rng.integer(-2, static_cast<std::int64_t>(n))) +
                       (rng.coin() ? rng.real(0.1, 0.4) : rng.real(0.6, 0.9));
      a[i] = align ? (n > 1 ? 2 * u / (n - 1) - 1 : 0.3) : (2 * u + 1) / n - 1;
    });
    return a;
  };
  return spec;
}

/// Whether x and the grid do not share their axes dimension by dimension.
bool disagree(const std::vector<Layout>& l) {
  const Layout& x = l[0];
  const Layout& grid = l[1];
  if (grid.is_split(grid.dims() - 1)) return true;
  if (x.is_split(0) && grid.is_split(0) && x.axes_of(0) != grid.axes_of(0)) return true;
  for (int i = 0; i < x.dims(); ++i)
    for (int j = 0; j < grid.dims(); ++j) {
      const AxisMask p = x.axes_of(i), q = grid.axes_of(j);
      if ((p & q) != 0 && (p != q || i == x.dims() - 1 || (i == 0) != (j == 0))) return true;
    }
  return false;
}

OpCase sample_case(const Shape& x, const Shape& grid, const GridSampleOptions& options) {
  Dims size;
  for (int d = 1; d + 1 < x.size(); ++d) size.push_back(x[d]);
  const bool nearest = options.mode == InterpolateMode::kNearest;
  InputSpec where = points(grid, size, options.align_corners);
  return {.inputs = {uniform(x), nearest ? constant(where) : where},
          .f = [=](const auto& t) { return std::vector{grid_sample(t[0], t[1], options)}; },
          .reference = [=](const auto& t) -> std::vector<DenseArray> {
            return {sampled(t[0], t[1], options)};
          },
          .may_throw = disagree,
          .linear = {{0}},
          .difference_tolerance = 1e-5,
          .step = 3e-4,
          .fp32_tolerance = 1e-4,
          .bf16_tolerance = 0,
          .random_cuts = 8};
}

}  // namespace

OP_TEST("linear in two dimensions, nothing outside") {
  return sample_case({2, 5, 6, 3}, {2, 4, 3, 2}, {});
}
OP_TEST("linear, borders and circles, corners aligned") {
  return sample_case({1, 6, 5, 2}, {1, 5, 4, 2},
                     {.edge = {EdgeRule::kReplicate, EdgeRule::kCircular}, .align_corners = true});
}
OP_TEST("nearest in one dimension") {
  return sample_case({2, 9, 3}, {2, 11, 1},
                     {.mode = InterpolateMode::kNearest, .edge = {EdgeRule::kReplicate}});
}
OP_TEST("cubic in two dimensions, reflected") {
  return sample_case({1, 6, 7, 2}, {1, 9, 2},
                     {.mode = InterpolateMode::kCubic, .edge = {EdgeRule::kReflect}});
}
OP_TEST("linear in three dimensions, at a list of points") {
  return sample_case({2, 3, 4, 5, 2}, {2, 7, 3}, {.edge = {EdgeRule::kCircular}});
}

TEST_CASE("x and grid split over the same axes, in the same or in other dimensions") {
  Rng rng(5);
  OpCase c = sample_case({2, 6, 5, 3}, {2, 5, 7, 2}, {.edge = {EdgeRule::kCircular}});
  c.may_throw = {};
  for (const Mesh& mesh : test_meshes()) {
    const std::vector<std::vector<int>> orders = {{1, 2, 0}, {2, 1, 0}};
    for (const auto& of_grid : orders) {
      std::vector<int> x, grid;
      for (std::size_t a = 0; a < static_cast<std::size_t>(mesh.axis_count()); ++a) {
        x.push_back(orders[0][a]);
        grid.push_back(of_grid[a]);
      }
      for (const int variant : {0, 1}) {
        const Layout at = draw_layout(mesh, {2, 5, 7, 2}, grid, variant, rng);
        const Layout from = draw_layout(mesh, {2, 6, 5, 3}, x, variant, rng);
        report(check_layouts(c, {from, at}));
      }
    }
  }
}

TEST_CASE("the identity grid, bf16 values, and grids that do not fit") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const Placement rows = Placement(mesh).shard(1, {"a"});
  const Tensor x =
      to_tensor(random_array({1, 8, 6, 2}, 5), rows.resolve({1, 8, 6, 2}), DType::kBFloat16);
  const Tensor grid = Tensor::from_function(rows.resolve({1, 8, 6, 2}), [](const Index& i) {
    return i[3] == 0 ? (2.0 * static_cast<double>(i[1]) + 1.0) / 8.0 - 1.0
                     : (2.0 * static_cast<double>(i[2]) + 1.0) / 6.0 - 1.0;
  });
  const Tensor y = grid_sample(x, grid);
  REQUIRE(y.dtype() == DType::kBFloat16);
  REQUIRE(y.layout() == x.layout());
  report(compare("identity", y, to_dense(x), 1e-2));
  REQUIRE_THROWS_AS(grid_sample(grid, x), DTypeError);
  REQUIRE_THROWS_AS(grid_sample(x, sum(grid, {0})), ShapeError);
  REQUIRE_THROWS_AS(grid_sample(x, grid, {.edge = {}}), ShapeError);
  // A point that is no number has no value.
  const Tensor nowhere = Tensor::full(Layout::replicated(mesh, {1, 2, 2}), std::nan(""));
  REQUIRE(std::isnan(to_dense(grid_sample(x, nowhere)).values[0]));
}

namespace {

/// A point of eight bits lies elsewhere when it is the sum of parts.
const TableOptions coarse{.refuses = [](std::int64_t n) { return n == 0; },
                          .tolerance = {1e-12, 2e-5, 0.2}};

}  // namespace

OP_TABLE("grid_sample", coarse) {
  return sample_case({2, n, 4, 3}, {2, n, 3, 2}, {.edge = {EdgeRule::kReplicate}});
}
