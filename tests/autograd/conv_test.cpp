// ranks: 1 2 3 4 6 8
// deep: 1 4
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/conv.hpp>
#include <tessera/autograd/ops/elementwise.hpp>

#include "support/op_table.hpp"
#include "window_call.hpp"

namespace tessera::test {
namespace {

std::int64_t of(const Dims& values, int d, std::int64_t standard) {
  return values.empty() ? standard : values[values.size() == 1 ? 0 : d];
}
EdgeRule of(const std::vector<EdgeRule>& edges, int d) {
  return edges.empty() ? EdgeRule::kZero
                       : edges[edges.size() == 1 ? 0 : static_cast<std::size_t>(d)];
}

/// The geometry that conv and its transpose share, all lists full.
struct Geometry {
  Dims kernel, stride, pad_lo, pad_hi, dilation;
  std::vector<EdgeRule> edges;
  std::int64_t groups;

  template <class Options>
  Geometry(const Shape& w, const Options& o) : groups(o.groups) {
    for (int d = 0; d < w.size() - 2; ++d) {
      kernel.push_back(w[d + 1]);
      stride.push_back(of(o.stride, d, 1));
      pad_lo.push_back(of(o.pad_lo, d, 0));
      pad_hi.push_back(o.pad_hi.empty() ? pad_lo[d] : of(o.pad_hi, d, 0));
      dilation.push_back(of(o.dilation, d, 1));
      edges.push_back(of(o.edges, d));
    }
  }
  int dims() const { return kernel.size(); }
};

/// f(x index, w index, y index) for every product x[...] w[...] that belongs to y[...].
void for_each_product(const Geometry& g,
                      const Shape& x,
                      const Shape& w,
                      const Shape& y,
                      const std::function<void(const Index&, const Index&, const Index&)>& f) {
  const std::int64_t in = w.back(), out = w[0] / g.groups;
  for_each(y, [&](const Index& yi) {
    for_each(g.kernel, [&](const Index& t) {
      Index xi{yi[0]}, wi{yi.back()};
      for (int d = 0; d < g.dims(); ++d) {
        const std::int64_t i =
            map_edge(g.edges[static_cast<std::size_t>(d)],
                     yi[d + 1] * g.stride[d] - g.pad_lo[d] + t[d] * g.dilation[d], x[d + 1]);
        if (i < 0) return;
        xi.push_back(i);
        wi.push_back(t[d]);
      }
      xi.push_back(0);
      wi.push_back(0);
      for (std::int64_t c = 0; c < in; ++c) {
        xi.back() = yi.back() / out * in + c;
        wi.back() = c;
        f(xi, wi, yi);
      }
    });
  });
}

DenseArray conv_reference(const std::vector<DenseArray>& in, const ConvOptions& o) {
  const DenseArray &x = in[0], &w = in[1];
  const Geometry g(w.shape, o);
  Shape shape = x.shape;
  for (int d = 0; d < g.dims(); ++d)
    shape[d + 1] =
        (x.shape[d + 1] + g.pad_lo[d] + g.pad_hi[d] - g.dilation[d] * (g.kernel[d] - 1) - 1) /
            g.stride[d] +
        1;
  shape.back() = w.shape[0];
  DenseArray y(shape);
  for_each_product(
      g, x.shape, w.shape, shape,
      [&](const Index& xi, const Index& wi, const Index& yi) { y[yi] += x[xi] * w[wi]; });
  if (in.size() > 2 && !in[2].absent)
    for_each(shape, [&](const Index& i) { y[i] += in[2][Index{i.back()}]; });
  return y;
}

DenseArray transpose_reference(const std::vector<DenseArray>& in, const ConvTransposeOptions& o) {
  const DenseArray &x = in[0], &w = in[1];
  const Geometry g(w.shape, o);
  Shape shape = x.shape;
  for (int d = 0; d < g.dims(); ++d)
    shape[d + 1] = (x.shape[d + 1] - 1) * g.stride[d] - g.pad_lo[d] - g.pad_hi[d] +
                   g.dilation[d] * (g.kernel[d] - 1) + of(o.output_padding, d, 0) + 1;
  shape.back() = w.shape.back() * g.groups;
  DenseArray y(shape);
  for_each_product(
      g, shape, w.shape, x.shape,
      [&](const Index& yi, const Index& wi, const Index& xi) { y[yi] += x[xi] * w[wi]; });
  if (in.size() > 2 && !in[2].absent)
    for_each(shape, [&](const Index& i) { y[i] += in[2][Index{i.back()}]; });
  return y;
}

InputSpec whole(InputSpec spec) {
  spec.partial = false;
  return spec;
}
InputSpec cut_along(InputSpec spec, const Dims& dims) {
  spec.cuttable = dims;
  return spec;
}
/// Samples and domain may be split, not the channels.
InputSpec domain_input(const Shape& shape) {
  InputSpec spec = uniform(shape);
  spec.cuttable = {};
  for (int d = 0; d + 1 < shape.size(); ++d) spec.cuttable.push_back(d);
  return spec;
}

constexpr int kBias = 2;

/// Split samples and domain, weights whole: values have the bits of one rank.
OpCase domain_case(const Shape& x, const Shape& w, const ConvOptions& o, bool bias = false) {
  OpCase c;
  c.inputs = {whole(domain_input(x)), whole(cut_along(uniform(w), {}))};
  if (bias) c.inputs.push_back(whole(cut_along(uniform({w[0]}), {})));
  c.f = [o](const std::vector<Tensor>& in) {
    return std::vector{conv(in[0], in[1], in.size() > kBias ? in[2] : Tensor(), o)};
  };
  c.reference = [o](const std::vector<DenseArray>& in) {
    return std::vector{conv_reference(in, o)};
  };
  c.linear = bias ? std::vector<std::vector<int>>{{0, 2}, {1, 2}}
                  : std::vector<std::vector<int>>{{0}, {1}};
  if (bias) c.linear.clear();
  c.exact = true;
  c.terms = 1;
  c.random_cuts = 4;
  return c;
}

OpCase transpose_case(const Shape& x,
                      const Shape& w,
                      const ConvTransposeOptions& o,
                      bool bias = false) {
  OpCase c = domain_case(x, w, {}, false);
  if (bias) c.inputs.push_back(whole(cut_along(uniform({w.back() * o.groups}), {})));
  c.f = [o](const std::vector<Tensor>& in) {
    return std::vector{conv_transpose(in[0], in[1], in.size() > kBias ? in[2] : Tensor(), o)};
  };
  c.reference = [o](const std::vector<DenseArray>& in) {
    return std::vector{transpose_reference(in, o)};
  };
  if (bias) c.linear.clear();
  return c;
}

/// Takes either way through a windowed op, whatever its size.
struct OverlapThreshold {
  explicit OverlapThreshold(std::int64_t bytes) { set_overlap_threshold(bytes); }
  ~OverlapThreshold() { set_overlap_threshold(kOverlapThreshold); }
};

constexpr EdgeRule kZero = EdgeRule::kZero, kCircular = EdgeRule::kCircular,
                   kReflect = EdgeRule::kReflect, kReplicate = EdgeRule::kReplicate;

}  // namespace

OP_TEST("conv, 3x3 with padding") {
  return domain_case({2, 7, 5, 2}, {3, 3, 3, 2}, {.pad_lo = {1}}, true);
}
OP_TEST("conv, one dimension, even kernel, padding on one side") {
  return domain_case({2, 11, 3}, {2, 4, 3}, {.pad_lo = {3}, .pad_hi = {0}});
}
OP_TEST("conv, three dimensions") {
  return domain_case({1, 4, 5, 3, 2}, {2, 3, 2, 3, 2}, {.pad_lo = {1}});
}
OP_TEST("conv, stride 2") {
  return domain_case({2, 9, 6, 2}, {2, 3, 3, 2}, {.stride = {2}, .pad_lo = {1}});
}
OP_TEST("conv, stride as large as the kernel") {
  return domain_case({1, 9, 8, 2}, {3, 2, 2, 2}, {.stride = {2}}, true);
}
OP_TEST("conv, stride above the kernel") {
  return domain_case({1, 13, 2}, {2, 2, 2}, {.stride = {4}});
}
OP_TEST("conv, dilation wider than a part") {
  return domain_case({1, 10, 4, 1}, {2, 3, 2, 1}, {.pad_lo = {3, 1}, .dilation = {3, 2}});
}
OP_TEST("conv, kernel larger than the input") {
  return domain_case({1, 3, 2}, {2, 7, 2}, {.pad_lo = {3}});
}
OP_TEST("conv, circular") {
  return domain_case({2, 6, 5, 2}, {2, 3, 3, 2}, {.pad_lo = {1}, .edges = {kCircular}}, true);
}
OP_TEST("conv, circular beyond one turn") {
  return domain_case({1, 3, 2}, {1, 5, 2}, {.pad_lo = {5}, .pad_hi = {4}, .edges = {kCircular}});
}
OP_TEST("conv, reflect and replicate, stride 2") {
  return domain_case({1, 8, 7, 2}, {2, 3, 5, 2},
                     {.stride = {2}, .pad_lo = {1, 2}, .edges = {kReflect, kReplicate}});
}
OP_TEST("conv, another edge rule in each dimension") {
  return domain_case({1, 4, 4, 5, 1}, {2, 3, 3, 3, 1},
                     {.pad_lo = {1}, .edges = {kCircular, kZero, kReplicate}});
}
OP_TEST("conv, groups") {
  return domain_case({1, 6, 5, 6}, {4, 3, 3, 3}, {.pad_lo = {1}, .groups = 2}, true);
}
OP_TEST("conv, one filter per channel") {
  return domain_case({1, 7, 5, 4}, {4, 3, 3, 1}, {.stride = {2, 1}, .pad_lo = {1}, .groups = 4});
}

OP_TABLE("conv") {
  return domain_case({2, n, 4, 3}, {4, 3, 3, 3}, {.stride = {2, 1}, .pad_lo = {2, 1}}, true);
}
OP_TABLE("conv_transpose", TableOptions{.refuses = [](auto n) { return n == 0; }}) {
  return transpose_case({2, n, 4, 2}, {2, 3, 3, 3}, {.stride = {2}, .pad_lo = {1}}, true);
}

RANDOM_OP_TEST("conv, random geometry") {
  const int dims = static_cast<int>(rng.integer(1, 3));
  ConvOptions o;
  Shape x{rng.integer(1, 2)}, w;
  const std::int64_t in = rng.integer(1, 3), out = rng.integer(1, 3);
  o.groups = rng.coin(0.3) ? 2 : 1;
  w.push_back(out * o.groups);
  for (int d = 0; d < dims; ++d) {
    const std::int64_t k = rng.integer(1, dims == 3 ? 2 : 4);
    const std::int64_t dilation = rng.integer(1, 2);
    const std::int64_t reach = dilation * (k - 1);
    w.push_back(k);
    o.stride.push_back(rng.integer(1, 3));
    o.dilation.push_back(dilation);
    o.pad_lo.push_back(rng.integer(0, reach + 1));
    o.pad_hi.push_back(rng.integer(0, reach + 1));
    o.edges.push_back(static_cast<EdgeRule>(rng.integer(0, 3)));
    x.push_back(std::max<std::int64_t>(rng.integer(1, dims == 1   ? 16
                                                      : dims == 2 ? 7
                                                                  : 4),
                                       reach + 1 - o.pad_lo[d] - o.pad_hi[d]));
  }
  x.push_back(in * o.groups);
  w.push_back(in);
  return domain_case(x, w, o, rng.coin());
}

OP_TEST("conv_transpose, stride 2") {
  return transpose_case({2, 5, 4, 2}, {2, 3, 3, 3},
                        {.stride = {2}, .pad_lo = {1}, .output_padding = {1}}, true);
}
OP_TEST("conv_transpose, stride as large as the kernel") {
  return transpose_case({1, 5, 4, 3}, {3, 2, 2, 2}, {.stride = {2}}, true);
}
OP_TEST("conv_transpose, stride above the kernel leaves gaps") {
  return transpose_case({1, 5, 2}, {2, 2, 3}, {.stride = {4}, .output_padding = {2}});
}
OP_TEST("conv_transpose, dilation, cut on one side") {
  return transpose_case({1, 6, 3, 2}, {2, 3, 2, 1},
                        {.pad_lo = {2, 0}, .pad_hi = {0, 1}, .dilation = {2, 1}});
}
OP_TEST("conv_transpose, what is cut off returns at the other end") {
  return transpose_case({1, 6, 2}, {2, 3, 2}, {.pad_lo = {1}, .edges = {kCircular}});
}
OP_TEST("conv_transpose, groups in three dimensions") {
  return transpose_case({1, 3, 4, 2, 4}, {4, 2, 2, 2, 3}, {.stride = {2, 1, 2}, .groups = 2});
}

RANDOM_OP_TEST("conv_transpose, random geometry") {
  const int dims = static_cast<int>(rng.integer(1, 2));
  ConvTransposeOptions o;
  o.groups = rng.coin(0.3) ? 2 : 1;
  Shape x{rng.integer(1, 2)}, w{rng.integer(1, 3) * o.groups};
  for (int d = 0; d < dims; ++d) {
    const std::int64_t k = rng.integer(1, 4), dilation = rng.integer(1, 2),
                       stride = rng.integer(1, 3);
    const std::int64_t n = rng.integer(1, dims == 1 ? 9 : 4);
    const std::int64_t full = (n - 1) * stride + dilation * (k - 1) + 1;
    w.push_back(k);
    x.push_back(n);
    o.stride.push_back(stride);
    o.dilation.push_back(dilation);
    o.pad_lo.push_back(rng.integer(0, std::min<std::int64_t>(3, full - 1)));
    o.pad_hi.push_back(rng.integer(0, std::min<std::int64_t>(3, full - 1 - o.pad_lo[d])));
    o.output_padding.push_back(rng.integer(0, std::max(stride, dilation) - 1));
  }
  x.push_back(w[0]);
  w.push_back(rng.integer(1, 3));
  return transpose_case(x, w, o, rng.coin());
}

TEST_CASE("convolutions compute the interior first where that pays: the same bits") {
  const OverlapThreshold always(0);
  report(check_op(domain_case({2, 9, 8, 2}, {3, 3, 3, 2}, {.pad_lo = {1}}, true)));
  report(check_op(domain_case({1, 13, 7, 2}, {2, 4, 3, 2},
                              {.stride = {2, 1}, .pad_lo = {2}, .edges = {kReflect, kCircular}})));
  report(
      check_op(transpose_case({2, 7, 5, 2}, {2, 3, 3, 3}, {.stride = {2}, .pad_lo = {1}}, true)));
}

// ---- split channels and weights ----

namespace {

/// The tensor dimension that the mesh axis splits: -1 none, -2 a pending sum.
int role(const Layout& l, int axis) {
  if (!l.defined()) return -1;
  if (l.partial_axes() >> axis & 1u) return -2;
  for (int d = 0; d < l.dims(); ++d)
    if (l.axes_of(d) >> axis & 1u) return d;
  return -1;
}

bool one_axis(const std::vector<Layout>& in) { return in[0].mesh().axis_count() == 1; }

}  // namespace

OP_TEST("conv, split input channels make a pending sum") {
  OpCase c = domain_case({2, 4, 5, 6}, {3, 3, 3, 6}, {.pad_lo = {1}});
  c.inputs = {cut_along(uniform({2, 4, 5, 6}), {0, 1, 2, 3}),
              cut_along(uniform({3, 3, 3, 6}), {3})};
  c.exact = false;
  // The weight's channels win: samples or rows of x are cut again along their channels. On several
  // axes two of them may then split the same dimension.
  c.may_throw = [](const std::vector<Layout>& in) { return !one_axis(in); };
  return c;
}

OP_TEST("conv, split output channels and bias") {
  OpCase c = domain_case({2, 4, 5, 3}, {6, 3, 3, 3}, {.pad_lo = {1}}, true);
  c.inputs = {cut_along(uniform({2, 4, 5, 3}), {0, 1, 2}), cut_along(uniform({6, 3, 3, 3}), {0}),
              cut_along(uniform({6}), {0})};
  c.exact = false;
  c.unsupported = [](const std::vector<Layout>& in) {
    if (!one_axis(in)) return false;
    const int x = role(in[0], 0), w = role(in[1], 0), b = role(in[2], 0);
    // one axis cannot split the rows of x and the outputs at once
    if (x >= 0 && (w == 0 || b == 0)) return true;
    return false;
  };
  c.may_throw = [](const std::vector<Layout>& in) { return !one_axis(in) || role(in[2], 0) == 0; };
  return c;
}

OP_TEST("conv, split groups") {
  OpCase c = domain_case({1, 4, 8}, {12, 3, 2}, {.pad_lo = {1}, .groups = 4}, true);
  c.inputs = {cut_along(uniform({1, 4, 8}), {1, 2}), cut_along(uniform({12, 3, 2}), {0}),
              cut_along(uniform({12}), {})};
  c.exact = false;
  c.may_throw = [](const std::vector<Layout>& in) {
    for (int a = 0; a < in[0].mesh().axis_count(); ++a)
      if (role(in[0], a) == 2 || role(in[1], a) == 0)
        return true;  // only boundaries between groups work
    return false;
  };
  return c;
}

TEST_CASE("conv, aligned groups are computed where they lie") {
  const int n = process().count;
  const Mesh mesh = Mesh::world({{"c", n}});
  const Layout x_layout = Layout::make(mesh, {1, 5, 4 * n}, {{}, {}, {{0}, {}}});
  const Layout w_layout = Layout::make(mesh, {6 * n, 3, 2}, {{{0}, {}}, {}, {}});
  const DenseArray x = random_array({1, 5, 4 * n}, 1), w = random_array({6 * n, 3, 2}, 2);
  const ConvOptions o{.pad_lo = {1}, .groups = 2 * n};
  const Tensor tx = require_grad(to_tensor(x, x_layout)), tw = require_grad(to_tensor(w, w_layout));
  Tensor y;
  expect_traffic(0, 0, [&] { y = conv(tx, tw, {}, o); });
  report(compare("y", y, conv_reference({x, w}, o), 1e-12));
  const Tensor dy = to_tensor(random_array(y.shape(), 3), y.layout());
  expect_traffic(0, 0, [&] { grad({y}, {tx, tw}, {}, {dy}); });
}

OP_TEST("conv_transpose, split input channels make a pending sum") {
  OpCase c = transpose_case({2, 4, 6}, {6, 3, 2}, {.stride = {2}});
  c.inputs = {cut_along(uniform({2, 4, 6}), {0, 1, 2}), cut_along(uniform({6, 3, 2}), {0})};
  c.exact = false;
  c.may_throw = [](const std::vector<Layout>& in) { return !one_axis(in); };
  return c;
}

OP_TEST("conv_transpose, split output channels") {
  OpCase c = transpose_case({2, 4, 3}, {3, 3, 6}, {.stride = {2}, .pad_lo = {1}});
  c.inputs = {cut_along(uniform({2, 4, 3}), {0, 1}), cut_along(uniform({3, 3, 6}), {2})};
  c.exact = false;
  c.unsupported = [](const std::vector<Layout>& in) {
    return one_axis(in) && role(in[0], 0) >= 0 && role(in[1], 0) == 2;
  };
  c.may_throw = [](const std::vector<Layout>& in) { return !one_axis(in); };
  return c;
}

TEST_CASE("conv sends the faces that it needs, forward and backward") {
  const int n = process().count;
  const Mesh mesh = Mesh::world({{"h", n}});
  const Layout layout = Layout::make(mesh, {1, 8 * n, 5, 2}, {{}, {{0}, {}}, {}, {}});
  const Tensor x = require_grad(to_tensor(random_array(layout.shape(), 1), layout));
  const Tensor w = to_tensor(random_array({3, 3, 3, 2}, 2), Layout::replicated(mesh, {3, 3, 3, 2}));
  const std::int64_t row = 5 * 8;
  Tensor y;
  const ConvOptions same{.pad_lo = {1}};
  expect_traffic(2 * (n - 1) * row * 2, 2 * (n - 1), [&] { y = conv(x, w, {}, same); });
  const Tensor dy = to_tensor(random_array(y.shape(), 3), y.layout());
  expect_traffic(2 * (n - 1) * row * 3, 2 * (n - 1), [&] { grad({y}, {x}, {}, {dy}); });
  // boundaries are multiples of the stride: windows of kernel 2 never cross them
  const Tensor half =
      to_tensor(random_array({3, 2, 2, 2}, 4), Layout::replicated(mesh, {3, 2, 2, 2}));
  expect_traffic(0, 0, [&] { y = conv(x, half, {}, {.stride = {2}}); });
  const Tensor back =
      to_tensor(random_array({3, 2, 2, 2}, 5), Layout::replicated(mesh, {3, 2, 2, 2}));
  Tensor up;
  expect_traffic(0, 0, [&] { up = conv_transpose(y, back, {}, {.stride = {2}}); });
  CHECK(up.layout().split(1).bounds == layout.split(1).bounds);
}

TEST_CASE("conv explains what does not fit") {
  const auto zeros = [](const Shape& s) {
    return Tensor::zeros(Layout::replicated(Mesh::self(), s));
  };
  const Tensor x = zeros({1, 4, 4, 2});
  CHECK_THROWS_WITH(conv(x, zeros({3, 5, 5, 2})),
                    Catch::Contains("kernel 5 does not fit input size 4"));
  CHECK_THROWS_AS(conv(x, zeros({3, 3, 2})), ShapeError);
  CHECK_THROWS_AS(conv(x, zeros({3, 3, 3, 3})), ShapeError);
  CHECK_THROWS_AS(conv(x, zeros({3, 3, 3, 1}), {}, {.groups = 2}), ShapeError);
  CHECK_THROWS_AS(conv(x, zeros({3, 3, 3, 2}), zeros({2})), ShapeError);
  CHECK_THROWS_AS(conv(x, zeros({3, 3, 3, 2}), {}, {.stride = {0}}), ShapeError);
  CHECK_THROWS_AS(conv(x, zeros({3, 3, 3, 2}), {}, {.stride = {1, 1, 1}}), ShapeError);
  CHECK_THROWS_AS(conv(zeros({4, 2}), zeros({3, 3, 2})), ShapeError);
  CHECK_THROWS_AS(conv_transpose(x, zeros({2, 2, 2, 1}), {}, {.pad_lo = {3}}), ShapeError);
  CHECK_THROWS_AS(
      conv_transpose(x, zeros({2, 2, 2, 1}), {}, {.stride = {2}, .output_padding = {2}}),
      ShapeError);
}

}  // namespace tessera::test
