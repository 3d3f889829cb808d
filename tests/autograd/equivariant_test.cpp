// ranks: 1 2 3 4
// deep: 1 4

#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/equivariant.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;
using kernels::CouplingBasis;

namespace {

std::size_t z(std::int64_t i) { return static_cast<std::size_t>(i); }

double& at(DenseArray& x, std::int64_t i, std::int64_t j, std::int64_t k) {
  return x.values[z((i * x.shape[1] + j) * x.shape[2] + k)];
}
double at(const DenseArray& x, std::int64_t i, std::int64_t j, std::int64_t k) {
  return x.values[z((i * x.shape[1] + j) * x.shape[2] + k)];
}

/// Published formulas for l <= 3.
DenseArray harmonics_3(const DenseArray& v) {
  DenseArray y({v.shape[0], 16});
  for (std::int64_t e = 0; e < v.shape[0]; ++e) {
    const double r = std::sqrt(v.values[z(3 * e)] * v.values[z(3 * e)] +
                               v.values[z(3 * e + 1)] * v.values[z(3 * e + 1)] +
                               v.values[z(3 * e + 2)] * v.values[z(3 * e + 2)]);
    const double x = v.values[z(3 * e)] / r, u = v.values[z(3 * e + 1)] / r,
                 w = v.values[z(3 * e + 2)] / r;
    const double q = x * x + w * w;
    const double a = std::sqrt(15.0) * x * w, b = std::sqrt(15.0) * x * u,
                 c = std::sqrt(5.0) * (u * u - q / 2), d = std::sqrt(15.0) * u * w,
                 f = std::sqrt(15.0) / 2 * (w * w - x * x);
    const double all[16] = {1.0,
                            std::sqrt(3.0) * x,
                            std::sqrt(3.0) * u,
                            std::sqrt(3.0) * w,
                            a,
                            b,
                            c,
                            d,
                            f,
                            std::sqrt(42.0) / 6 * (a * w + f * x),
                            std::sqrt(7.0) * a * u,
                            std::sqrt(168.0) / 8 * (4 * u * u - q) * x,
                            std::sqrt(7.0) / 2 * u * (2 * u * u - 3 * q),
                            std::sqrt(168.0) / 8 * (4 * u * u - q) * w,
                            std::sqrt(7.0) * f * u,
                            std::sqrt(42.0) / 6 * (f * w - a * x)};
    std::copy(all, all + 16, y.values.begin() + e * 16);
  }
  return y;
}

/// Random vectors of lengths 0.5 to 1.5.
InputSpec vectors(std::int64_t count) {
  InputSpec spec = uniform({count, 3});
  spec.cuttable = Dims{0};
  spec.values = [](const Shape& shape, std::uint64_t seed) {
    Rng rng(seed);
    DenseArray v(shape);
    for (std::int64_t e = 0; e < shape[0]; ++e) {
      double r2 = 0.0;
      for (int c = 0; c < 3; ++c) {
        const double x = rng.real(-1.0, 1.0) + (c == 1 ? 0.1 : 0.0);
        v.values[z(3 * e + c)] = x;
        r2 += x * x;
      }
      const double scale = rng.real(0.5, 1.5) / std::sqrt(r2);
      for (int c = 0; c < 3; ++c) v.values[z(3 * e + c)] *= scale;
    }
    return v;
  };
  return spec;
}

InputSpec cut(InputSpec spec, const Dims& dims) {
  spec.cuttable = dims;
  return spec;
}

}  // namespace

OP_TEST("spherical harmonics") {
  return {.inputs = {vectors(9)},
          .f = [](const auto& x) { return std::vector{spherical_harmonics(x[0], 3)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> { return {harmonics_3(x[0])}; },
          .exact = true,
          .bf16_tolerance = 0};
}

OP_TEST("channels mixed per l") {
  return {.inputs = {cut(uniform({5, 9, 6}), {0}), cut(uniform({2, 6, 7}), {})},
          .f = [](const auto& x) { return std::vector{irreps_linear(x[0], x[1])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray y({5, 4, 7});
            for (int n = 0; n < 5; ++n)
              for (int lm = 0; lm < 4; ++lm)
                for (int k = 0; k < 6; ++k)
                  for (int j = 0; j < 7; ++j)
                    at(y, n, lm, j) += at(x[0], n, lm, k) * at(x[1], lm > 0, k, j);
            return {y};
          },
          .linear = {{0}, {1}},
          .bf16_tolerance = 0};
}

OP_TEST("channels mixed per l and element") {
  return {.inputs = {cut(uniform({11, 4, 5}), {0}), cut(uniform({2, 3, 5, 4}), {}),
                     cut(integers({11}, 0, 2, DType::kInt32), {0})},
          .f = [](const auto& x) { return std::vector{irreps_linear(x[0], x[1], x[2])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray y({11, 4, 4});
            for (int n = 0; n < 11; ++n)
              for (int lm = 0; lm < 4; ++lm)
                for (int k = 0; k < 5; ++k)
                  for (int j = 0; j < 4; ++j)
                    at(y, n, lm, j) +=
                        at(x[0], n, lm, k) *
                        x[1](lm > 0, static_cast<std::int64_t>(x[2].values[z(n)]), k, j);
            return {y};
          },
          .may_throw = [](const auto& l) { return l[0].axes_of(0) != l[2].axes_of(0); },
          .linear = {{0}, {1}},
          .bf16_tolerance = 0};
}

OP_TEST("paths mixed into one feature per l") {
  return {.inputs = {cut(uniform({4, 8, 5}), {0}), cut(uniform({4, 5, 3}), {})},
          .f =
              [](const auto& x) {
                return std::vector{path_linear(x[0], x[1], {1, 1, 1})};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            const auto& paths = kernels::tensor_paths(1, 1, 1);
            DenseArray y({4, 4, 3});
            for (int n = 0; n < 4; ++n)
              for (std::size_t p = 0; p < paths.paths.size(); ++p)
                for (int c = 0; c <= 2 * paths.paths[p].l3; ++c)
                  for (int k = 0; k < 5; ++k)
                    for (int j = 0; j < 3; ++j)
                      at(y, n, paths.paths[p].l3 * paths.paths[p].l3 + c, j) +=
                          at(x[0], n, paths.paths[p].row + c, k) *
                          at(x[1], static_cast<std::int64_t>(p), k, j);
            return {y};
          },
          .linear = {{0}, {1}},
          .bf16_tolerance = 0};
}

namespace {

DenseArray contracted(const DenseArray& a,
                      const DenseArray& w,
                      const DenseArray& species,
                      const ContractionSpec& spec) {
  const std::int64_t nodes = a.shape[0], d = a.shape[1], channels = a.shape[2];
  const int l_out = static_cast<int>(spec.l_out);
  DenseArray b({nodes, kernels::irreps_rows(l_out), channels});
  for (const auto& block : kernels::contraction_blocks(
           static_cast<int>(spec.lmax), l_out, static_cast<int>(spec.correlation), spec.basis)) {
    const auto u =
        kernels::couplings(static_cast<int>(spec.lmax), block.l, block.order, spec.basis);
    std::int64_t size = 1;
    for (int i = 0; i < block.order; ++i) size *= d;
    for (std::int64_t eta = 0; eta < u.count; ++eta)
      for (std::int64_t m = 0; m <= 2 * block.l; ++m)
        for (std::int64_t i = 0; i < size; ++i) {
          const double value = u.values[z((eta * (2 * block.l + 1) + m) * size + i)];
          if (value == 0.0) continue;
          for (std::int64_t n = 0; n < nodes; ++n)
            for (std::int64_t k = 0; k < channels; ++k) {
              double product = value * at(w, static_cast<std::int64_t>(species.values[z(n)]),
                                          block.first + eta, k);
              for (std::int64_t rest = i, o = 0; o < block.order; ++o, rest /= d)
                product *= at(a, n, rest % d, k);
              at(b, n, block.l * block.l + m, k) += product;
            }
        }
  }
  return b;
}

OpCase contraction_case(const ContractionSpec& spec, std::int64_t nodes, std::int64_t channels) {
  const int lmax = static_cast<int>(spec.lmax);
  const std::int64_t weights = kernels::contraction_weights(
      lmax, static_cast<int>(spec.l_out), static_cast<int>(spec.correlation), spec.basis);
  return {.inputs = {cut(uniform({nodes, kernels::irreps_rows(lmax), channels}), {0, 2}),
                     cut(uniform({2, weights, channels}), {2}), cut(integers({nodes}, 0, 1), {0})},
          .f =
              [spec](const auto& x) {
                return std::vector{symmetric_contraction(x[0], x[1], x[2], spec)};
              },
          .reference = [spec](const auto& x) -> std::vector<DenseArray> {
            return {contracted(x[0], x[1], x[2], spec)};
          },
          .may_throw =
              [](const auto& l) {
                return l[0].split_axes() != l[2].split_axes() || l[0].is_split(2) ||
                       l[1].is_split(2);
              },
          .linear = {{1}},
          .bf16_tolerance = 0};
}

}  // namespace

OP_TEST("symmetric contraction of third order") { return contraction_case({2, 1, 3}, 7, 3); }
OP_TEST("symmetric contraction of second order, up to l = 2") {
  return contraction_case({2, 2, 2}, 5, 9);
}
OP_TEST("symmetric contraction in the reduced basis") {
  return contraction_case({2, 1, 3, CouplingBasis::kReduced}, 3, 2);
}

// ---- convolution ----

namespace {

/// A random graph whose edges stay within the parts of the given boundaries.
struct Graph {
  Bounds nodes, rows, edges;
  std::vector<double> senders, receivers;
};

Graph random_graph(int parts, int variant, Rng& rng) {
  Graph g{{0}, {0}, {0}, {}, {}};
  for (int p = 0; p < parts; ++p) {
    // Empty parts, parts without edges, and a node with more edges than a block.
    const std::int64_t kind = variant == 0 ? 1 : rng.integer(0, 3);
    const std::int64_t nodes = kind == 0 ? 0 : rng.integer(2, 5);
    const std::int64_t rows = kind == 0 ? rng.integer(0, 2) : rng.integer(2, 6);
    std::int64_t edges = 0;
    if (kind != 0 && kind != 3) {
      for (std::int64_t i = 0; i < nodes; ++i) {
        const std::int64_t degree = i == 1 && variant == 2 && p == 0 ? 130 : rng.integer(0, 5);
        for (std::int64_t e = 0; e < degree; ++e) {
          g.receivers.push_back(static_cast<double>(g.nodes.back() + i));
          g.senders.push_back(static_cast<double>(g.rows.back() + rng.integer(0, rows - 1)));
          ++edges;
        }
      }
    }
    g.nodes.push_back(g.nodes.back() + nodes);
    g.rows.push_back(g.rows.back() + rows);
    g.edges.push_back(g.edges.back() + edges);
  }
  return g;
}

DenseArray column(const std::vector<double>& values) {
  DenseArray a({static_cast<std::int64_t>(values.size())});
  a.values = values;
  return a;
}

DenseArray convolved(const std::vector<DenseArray>& x,
                     const ConvolutionPaths& p,
                     std::int64_t nodes) {
  const auto& paths = kernels::tensor_paths(static_cast<int>(p.l_in), static_cast<int>(p.l_edge),
                                            static_cast<int>(p.l_out));
  const DenseArray &u = x[0], &y = x[1], &h = x[2], &w = x[3];
  const std::int64_t channels = u.shape[2], hidden = h.shape[1];
  DenseArray m({nodes, paths.rows, channels});
  for (std::int64_t e = 0; e < y.shape[0]; ++e)
    for (std::size_t i = 0; i < paths.paths.size(); ++i) {
      const auto& path = paths.paths[i];
      const auto& c = kernels::wigner_3j(path.l1, path.l2, path.l3);
      for (std::int64_t k = 0; k < channels; ++k) {
        double radial = 0.0;
        for (std::int64_t j = 0; j < hidden; ++j) {
          const std::int64_t row =
              j + (x.size() > 6 ? static_cast<std::int64_t>(x[6].values[z(e)]) : 0);
          radial += h.values[z(e * hidden + j)] *
                    w.values[z(row * w.shape[1] + static_cast<std::int64_t>(i) * channels + k)];
        }
        std::size_t at3 = 0;
        for (int a = 0; a <= 2 * path.l1; ++a)
          for (int b = 0; b <= 2 * path.l2; ++b)
            for (int o = 0; o <= 2 * path.l3; ++o, ++at3)
              at(m, static_cast<std::int64_t>(x[5].values[z(e)]), path.row + o, k) +=
                  std::sqrt(2.0 * path.l3 + 1.0) * c[at3] * radial *
                  at(u, static_cast<std::int64_t>(x[4].values[z(e)]), path.l1 * path.l1 + a, k) *
                  y.values[z(e * y.shape[1] + path.l2 * path.l2 + b)];
      }
    }
  return m;
}

struct ConvolutionCase {
  OpCase op;
  std::vector<Layout> layouts;
};

/// All nodes, rows and edges cut over all axes of a mesh at the boundaries of a graph.
ConvolutionCase convolution_case(const Mesh& mesh,
                                 const Graph& g,
                                 const ConvolutionPaths& paths,
                                 std::int64_t channels,
                                 std::int64_t hidden,
                                 bool table) {
  const auto edges = static_cast<std::int64_t>(g.senders.size());
  const auto& list = kernels::tensor_paths(
      static_cast<int>(paths.l_in), static_cast<int>(paths.l_edge), static_cast<int>(paths.l_out));
  ConvolutionCase c;
  c.op.inputs = {
      uniform({g.rows.back(), kernels::irreps_rows(static_cast<int>(paths.l_in)), channels}),
      uniform({edges, kernels::irreps_rows(static_cast<int>(paths.l_edge))}),
      uniform({edges, hidden}),
      uniform({table ? hidden + 3 : hidden, list.count() * channels}),
      given(column(g.senders), DType::kInt32),
      given(column(g.receivers), DType::kInt64)};
  if (table) {
    std::vector<double> first;
    for (std::int64_t e = 0; e < edges; ++e) first.push_back(static_cast<double>(e % 4));
    c.op.inputs.push_back(given(column(first), DType::kInt64));
  }
  std::vector<int> axes;
  for (int a = 0; a < mesh.axis_count(); ++a) axes.push_back(a);
  const auto split = [&](const Shape& shape, const Bounds& bounds) {
    return Layout::replicated(mesh, shape).with_dim(0, shape[0], {axes, bounds});
  };
  const Layout nodes =
      axes.empty() ? Layout::replicated(mesh, {g.nodes.back()}) : split({g.nodes.back()}, g.nodes);
  for (std::size_t i = 0; i < c.op.inputs.size(); ++i) {
    const Shape& shape = c.op.inputs[i].shape;
    c.layouts.push_back(axes.empty() || i == 3 ? Layout::replicated(mesh, shape)
                        : i == 0               ? split(shape, g.rows)
                                               : split(shape, g.edges));
  }
  c.op.f = [paths, nodes, n = g.nodes.back()](const std::vector<Tensor>& x) -> std::vector<Tensor> {
    const Layout like = x[0].mesh() == nodes.mesh() ? nodes : Layout::replicated(x[0].mesh(), {n});
    return {equivariant_convolution(x[0], x[1], x[2], x[3], x[4], x[5], paths, like,
                                    x.size() > 6 ? x[6] : Tensor())};
  };
  c.op.reference = [paths, n = g.nodes.back()](const auto& x) -> std::vector<DenseArray> {
    return {convolved(x, paths, n)};
  };
  c.op.linear = {{0}, {1}, {2}, {3}};
  c.op.bf16_tolerance = 0;
  return c;
}

}  // namespace

TEST_CASE("convolution over edges: values and derivatives") {
  // One process is enough for these.
  if (test_meshes().front().size() > 1) return;
  Rng rng(5);
  const Graph g = random_graph(1, 0, rng);
  const Graph large = random_graph(1, 2, rng);
  const auto check_all = [&](const ConvolutionCase& c) {
    report(check_value(c.op));
    report(check_first_derivatives(c.op));
    report(check_second_derivatives(c.op));
    report(check_low_precision(c.op));
  };
  const Mesh self = Mesh::self();
  check_all(convolution_case(self, g, {0, 2, 2}, 3, 4, false));
  check_all(convolution_case(self, g, {1, 3, 3}, 2, 5, false));
  check_all(convolution_case(self, g, {2, 2, 3}, 1, 3, false));
  check_all(convolution_case(self, g, {1, 2, 2}, 3, 4, true));
  check_all(convolution_case(self, g, {4, 4, 4}, 1, 2, false));
  // Whole registers, in one and two per panel, and more edges than a block.
  report(check_value(convolution_case(self, large, {1, 3, 3}, 32, 6, false).op));
  report(check_value(convolution_case(self, large, {1, 1, 1}, 8, 20, true).op));
}

TEST_CASE("convolution over edges: any cut of nodes, rows and edges together") {
  Rng rng(7);
  for (const Mesh& mesh : test_meshes()) {
    for (int variant = 0; variant < 3; ++variant) {
      const Graph g = random_graph(mesh.size(), variant, rng);
      if (g.senders.empty()) continue;
      const ConvolutionCase c = convolution_case(mesh, g, {1, 2, 2}, 3, 4, variant == 1);
      report(check_layouts(c.op, c.layouts));
    }
  }
}

// ---- tables ----

namespace {

const TableOptions wide{.types = {true, true, false}};

}  // namespace

OP_TABLE("spherical_harmonics", wide) {
  return {
      .inputs = {vectors(n)},
      .f = [](const auto& x) { return std::vector{spherical_harmonics(x[0], 3)}; },
      .reference = [](const auto& x) -> std::vector<DenseArray> { return {harmonics_3(x[0])}; }};
}

OP_TABLE("irreps_linear", wide) {
  return {.inputs = {cut(uniform({n, 4, 6}), {0}), cut(uniform({2, 6, 7}), {})},
          .f = [](const auto& x) { return std::vector{irreps_linear(x[0], x[1])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray y({x[0].shape[0], 4, 7});
            for_each(y.shape, [&](const Index& i) {
              for (int k = 0; k < 6; ++k) y[i] += x[0](i[0], i[1], k) * x[1](i[1] > 0, k, i[2]);
            });
            return {y};
          }};
}

OP_TABLE("path_linear", wide) {
  return {.inputs = {cut(uniform({n, 8, 5}), {0}), cut(uniform({4, 5, 3}), {})},
          .f =
              [](const auto& x) {
                return std::vector{path_linear(x[0], x[1], {1, 1, 1})};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            const auto& paths = kernels::tensor_paths(1, 1, 1);
            DenseArray y({x[0].shape[0], 4, 3});
            for_each({x[0].shape[0], 5, 3}, [&](const Index& i) {
              for (std::size_t p = 0; p < paths.paths.size(); ++p) {
                const int l = paths.paths[p].l3;
                for (int c = 0; c <= 2 * l; ++c)
                  y(i[0], l * l + c, i[2]) +=
                      x[0](i[0], paths.paths[p].row + c, i[1]) * x[1](p, i[1], i[2]);
              }
            });
            return {y};
          }};
}

OP_TABLE("symmetric_contraction", wide) { return contraction_case({2, 1, 3}, n, 3); }

// Every node sends to itself, so that any cut of all together is legal.
OP_TABLE("equivariant_convolution", TableOptions{.types = {true, true, false}, .apart = false}) {
  const ConvolutionPaths paths{1, 2, 2};
  const std::int64_t channels = 3, hidden = 4;
  std::vector<double> itself(z(n));
  for (std::size_t i = 0; i < itself.size(); ++i) itself[i] = static_cast<double>(i);
  return {.inputs = {cut(uniform({n, 4, channels}), {0}), cut(uniform({n, 9}), {0}),
                     cut(uniform({n, hidden}), {0}),
                     cut(uniform({hidden, kernels::tensor_paths(1, 2, 2).count() * channels}), {}),
                     cut(given(column(itself), DType::kInt64), {0}),
                     cut(given(column(itself), DType::kInt64), {0})},
          .f =
              [paths](const auto& x) {
                return std::vector{equivariant_convolution(x[0], x[1], x[2], x[3], x[4], x[5],
                                                           paths, x[5].layout())};
              },
          .reference = [paths, n](const auto& x) -> std::vector<DenseArray> {
            return {convolved(x, paths, n)};
          }};
}

// ---- the whole chain turns with its input ----

namespace {

/// D_l with Y_l(Q v) = D_l Y_l(v): from that of l = 1, Q itself, by coupling.
std::vector<std::vector<double>> turns(const double (&q)[3][3], int lmax) {
  std::vector<std::vector<double>> d{{1.0}, {}};
  for (const auto& row : q) d[1].insert(d[1].end(), row, row + 3);
  for (int l = 2; l <= lmax; ++l) {
    const auto& c = kernels::wigner_3j(1, l - 1, l);
    const std::int64_t n = 2 * l + 1, b = 2 * l - 1;
    std::vector<double> next(z(n * n));
    for (std::int64_t i = 0; i < 3; ++i)
      for (std::int64_t j = 0; j < b; ++j)
        for (std::int64_t k = 0; k < n; ++k)
          for (std::int64_t i2 = 0; i2 < 3; ++i2)
            for (std::int64_t j2 = 0; j2 < b; ++j2)
              for (std::int64_t k2 = 0; k2 < n; ++k2)
                next[z(k * n + k2)] += static_cast<double>(n) * c[z((i * b + j) * n + k)] *
                                       c[z((i2 * b + j2) * n + k2)] * d[1][z(i * 3 + i2)] *
                                       d[z(l - 1)][z(j * b + j2)];
    d.push_back(std::move(next));
  }
  return d;
}

DenseArray turned(const DenseArray& x, const std::vector<std::vector<double>>& d, int lmax) {
  DenseArray y(x.shape);
  for (std::int64_t n = 0; n < x.shape[0]; ++n)
    for (int l = 0; l <= lmax; ++l)
      for (int i = 0; i <= 2 * l; ++i)
        for (int j = 0; j <= 2 * l; ++j)
          for (std::int64_t k = 0; k < x.shape[2]; ++k)
            at(y, n, l * l + i, k) += d[z(l)][z(i * (2 * l + 1) + j)] * at(x, n, l * l + j, k);
  return y;
}

double difference(const DenseArray& a, const DenseArray& b) {
  double worst = 0.0;
  for (std::size_t i = 0; i < a.values.size(); ++i)
    worst = std::max(worst, std::abs(a.values[i] - b.values[i]));
  return worst / b.largest();
}

}  // namespace

TEST_CASE("harmonics, convolution, contraction and linear turn and mirror with their input") {
  if (test_meshes().front().size() > 1) return;
  Rng rng(11);
  const std::int64_t nodes = 5, edges = 40, channels = 3, hidden = 4;
  const auto draw = [&](const Shape& shape) {
    DenseArray a(shape);
    for (double& x : a.values) x = rng.real(-1.0, 1.0);
    return a;
  };
  const DenseArray v = draw({edges, 3}), h = draw({nodes, 9, channels}),
                   mlp = draw({edges, hidden});
  const DenseArray w = draw({hidden, kernels::tensor_paths(2, 3, 3).count() * channels});
  const DenseArray mix = draw({kernels::tensor_paths(2, 3, 3).count(), channels, channels});
  const DenseArray product =
      draw({2, kernels::contraction_weights(3, 2, 3, CouplingBasis::kFull), channels});
  const DenseArray last = draw({3, 2, channels, channels});
  DenseArray senders({edges}), receivers({edges}), species({nodes});
  for (std::int64_t e = 0; e < edges; ++e) {
    senders.values[z(e)] = static_cast<double>(rng.integer(0, nodes - 1));
    receivers.values[z(e)] = static_cast<double>(e * nodes / edges);
  }
  for (std::int64_t n = 0; n < nodes; ++n) species.values[z(n)] = static_cast<double>(n % 2);
  const auto chain = [&](const DenseArray& vectors, const DenseArray& features) {
    const ConvolutionPaths paths{2, 3, 3};
    const Tensor z_n = to_self(species, DType::kInt64);
    const Tensor m = equivariant_convolution(
        to_self(features), spherical_harmonics(to_self(vectors), 3), to_self(mlp), to_self(w),
        to_self(senders, DType::kInt64), to_self(receivers, DType::kInt64), paths,
        Layout::replicated(Mesh::self(), {nodes}));
    const Tensor b = symmetric_contraction(path_linear(m, to_self(mix), paths), to_self(product),
                                           z_n, {3, 2, 3});
    return to_dense(irreps_linear(b, to_self(last), z_n));
  };
  // A rotation from a random quaternion, and its product with the inversion.
  double s[4], norm = 0.0;
  for (double& x : s) {
    x = rng.real(-1.0, 1.0);
    norm += x * x;
  }
  for (double& x : s) x /= std::sqrt(norm);
  for (const double parity : {1.0, -1.0}) {
    const double q[3][3] = {
        {parity * (1 - 2 * (s[2] * s[2] + s[3] * s[3])), parity * 2 * (s[1] * s[2] - s[0] * s[3]),
         parity * 2 * (s[1] * s[3] + s[0] * s[2])},
        {parity * 2 * (s[1] * s[2] + s[0] * s[3]), parity * (1 - 2 * (s[1] * s[1] + s[3] * s[3])),
         parity * 2 * (s[2] * s[3] - s[0] * s[1])},
        {parity * 2 * (s[1] * s[3] - s[0] * s[2]), parity * 2 * (s[2] * s[3] + s[0] * s[1]),
         parity * (1 - 2 * (s[1] * s[1] + s[2] * s[2]))}};
    const auto d = turns(q, 3);
    DenseArray moved({edges, 3});
    for (std::int64_t e = 0; e < edges; ++e)
      for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j) moved.values[z(3 * e + i)] += q[i][j] * v.values[z(3 * e + j)];
    DenseArray y({edges, 16, 1});
    y.values = to_dense(spherical_harmonics(to_self(v), 3)).values;
    DenseArray y_moved({edges, 16, 1});
    y_moved.values = to_dense(spherical_harmonics(to_self(moved), 3)).values;
    CHECK(difference(y_moved, turned(y, d, 3)) < 1e-13);
    CHECK(difference(chain(moved, turned(h, d, 2)), turned(chain(v, h), d, 2)) < 1e-12);
  }
}

TEST_CASE("equivariant ops refuse what does not fit, with advice") {
  if (test_meshes().front().size() > 1) return;
  const auto zeros = [](const Shape& shape, DType dtype = DType::kFloat64) {
    return to_self(DenseArray(shape), dtype);
  };
  CHECK_THROWS_AS(spherical_harmonics(zeros({4, 2}), 2), ShapeError);
  CHECK_THROWS_AS(spherical_harmonics(zeros({4, 3}, DType::kBFloat16), 2), DTypeError);
  CHECK_THROWS_AS(spherical_harmonics(zeros({4, 3}), 11), UsageError);
  CHECK_THROWS_AS(irreps_linear(zeros({4, 4, 3}), zeros({3, 3, 3})), ShapeError);
  CHECK_THROWS_AS(irreps_linear(zeros({4, 4, 3}), zeros({2, 3, 3}, DType::kFloat32)), DTypeError);
  CHECK_THROWS_AS(symmetric_contraction(zeros({4, 4, 3}), zeros({1, 5, 3}),
                                        zeros({4}, DType::kInt64), {1, 1, 3}),
                  ShapeError);
  CHECK_THROWS_AS(symmetric_contraction(zeros({4, 4, 3}), zeros({1, 5, 3}),
                                        zeros({4}, DType::kInt64), {1, 1, 4}),
                  UsageError);
  CHECK_THROWS_AS(
      equivariant_convolution(zeros({4, 4, 3}), zeros({6, 4}), zeros({6, 2}), zeros({3, 12}),
                              zeros({6}, DType::kInt64), zeros({6}, DType::kInt64), {1, 1, 1},
                              Layout::replicated(Mesh::self(), {4})),
      ShapeError);
  CHECK_THROWS_AS(equivariant_convolution(zeros({4, 4, 3}), zeros({6, 4}), zeros({6, 2}),
                                          zeros({2, 12}), zeros({6}), zeros({6}, DType::kInt64),
                                          {1, 1, 1}, Layout::replicated(Mesh::self(), {4})),
                  DTypeError);
}
