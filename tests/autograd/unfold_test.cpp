// ranks: 1 2 3 4
// deep: 1 4
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/unfold.hpp>

#include "support/op_table.hpp"

namespace tessera::test {
namespace {

/// Options with all lists full.
struct Full {
  Dims kernel, stride, pad_lo, pad_hi, dilation;

  Full(const UnfoldOptions& o, int dims) {
    const auto of = [](const Dims& values, int d, std::int64_t standard) {
      return values.empty() ? standard : values[values.size() == 1 ? 0 : d];
    };
    for (int d = 0; d < dims; ++d) {
      kernel.push_back(of(o.kernel, d, 1));
      stride.push_back(of(o.stride, d, 1));
      pad_lo.push_back(of(o.pad_lo, d, 0));
      pad_hi.push_back(o.pad_hi.empty() ? pad_lo[d] : of(o.pad_hi, d, 0));
      dilation.push_back(of(o.dilation, d, 1));
    }
  }
  /// [N, out..., taps, C], the number of windows by trying one after the other.
  Shape windows(const Shape& x) const {
    Shape shape = {x[0]};
    for (int d = 0; d < kernel.size(); ++d) {
      std::int64_t m = 0;
      while (m * stride[d] - pad_lo[d] + dilation[d] * (kernel[d] - 1) < x[d + 1] + pad_hi[d]) ++m;
      shape.push_back(m);
    }
    shape.push_back(kernel.product());
    shape.push_back(x.back());
    return shape;
  }
  /// f(index of the window's element, index in x) for all that lie in the domain.
  void visit(const Shape& x, const std::function<void(const Index&, const Index&)>& f) const {
    const int dims = kernel.size();
    for_each(windows(x), [&](const Index& y) {
      Index i = {y[0]};
      bool inside = true;
      std::int64_t tap = y[dims + 1], below = kernel.product();
      for (int d = 0; d < dims; ++d) {
        below /= kernel[d];
        i.push_back(y[d + 1] * stride[d] - pad_lo[d] + tap / below * dilation[d]);
        tap %= below;
        inside = inside && i[d + 1] >= 0 && i[d + 1] < x[d + 1];
      }
      i.push_back(y[dims + 2]);
      if (inside) f(y, i);
    });
  }
};

OpCase unfold_case(const Shape& x, const UnfoldOptions& o) {
  OpCase c;
  c.inputs = {uniform(x)};
  c.f = [=](const std::vector<Tensor>& in) { return std::vector{unfold(in[0], o)}; };
  c.reference = [=](const std::vector<DenseArray>& in) {
    const Full full(o, x.size() - 2);
    DenseArray y(full.windows(x));
    full.visit(x, [&](const Index& j, const Index& i) { y[j] = in[0][i]; });
    return std::vector{y};
  };
  c.linear = {{0}};
  c.exact = true;
  c.inputs[0].partial = false;
  c.random_cuts = 4;
  return c;
}

OpCase fold_case(const Shape& x, const UnfoldOptions& o) {
  const int dims = x.size() - 2;
  const Full full(o, dims);
  Dims size;
  for (int d = 0; d < dims; ++d) size.push_back(x[d + 1]);
  OpCase c;
  c.inputs = {uniform(full.windows(x))};
  c.inputs[0].partial = false;
  c.inputs[0].cuttable = {0};
  for (int d = 0; d < dims; ++d) c.inputs[0].cuttable.push_back(d + 1);
  c.inputs[0].cuttable.push_back(dims + 2);  // the taps of a window stay together
  c.f = [=](const std::vector<Tensor>& in) { return std::vector{fold(in[0], size, o)}; };
  c.reference = [=](const std::vector<DenseArray>& in) {
    DenseArray y(x);
    full.visit(x, [&](const Index& j, const Index& i) { y[i] += in[0][j]; });
    return std::vector{y};
  };
  c.linear = {{0}};
  c.exact = true;
  c.random_cuts = 4;
  return c;
}

}  // namespace

OP_TEST("unfold, 3x3 with padding") {
  return unfold_case({2, 6, 5, 2}, {.kernel = {3}, .pad_lo = {1}});
}
OP_TEST("unfold, patches") {
  return unfold_case({1, 8, 6, 3}, {.kernel = {2, 3}, .stride = {2, 3}});
}
OP_TEST("unfold, windows with gaps, padding on one side") {
  return unfold_case({2, 13, 2}, {.kernel = {2}, .stride = {5}, .pad_lo = {1}, .pad_hi = {0}});
}
OP_TEST("unfold, dilation, three dimensions") {
  return unfold_case({1, 4, 5, 3, 2}, {.kernel = {2, 2, 1}, .dilation = {2, 1, 1}});
}
OP_TEST("unfold of a pending sum") {
  OpCase c = unfold_case({2, 7, 2}, {.kernel = {3}});
  c.inputs[0].partial = true;
  c.exact = false;
  return c;
}
OP_TEST("fold, 3x3 with padding") {
  return fold_case({2, 6, 5, 2}, {.kernel = {3}, .pad_lo = {1}});
}
OP_TEST("fold, patches, and rows that no window reaches") {
  return fold_case({1, 9, 6, 3}, {.kernel = {2, 3}, .stride = {2, 3}});
}
OP_TEST("fold, dilation and stride") {
  return fold_case({2, 11, 2}, {.kernel = {3}, .stride = {2}, .pad_lo = {2}, .dilation = {2}});
}

OP_TABLE("unfold", TableOptions{.refuses = [](auto n) { return n == 0; }}) {
  return unfold_case({2, n, 4, 2}, {.kernel = {3}, .stride = {2}, .pad_lo = {1}});
}
OP_TABLE("fold", TableOptions{.refuses = [](auto n) { return n == 0; }}) {
  return fold_case({2, n, 4, 2}, {.kernel = {3}, .stride = {2}, .pad_lo = {1}});
}

RANDOM_OP_TEST("unfold and fold, random geometry") {
  const int dims = static_cast<int>(rng.integer(1, 3));
  UnfoldOptions o;
  Shape x{rng.integer(1, 2)};
  for (int d = 0; d < dims; ++d) {
    const std::int64_t k = rng.integer(1, 3), dilation = rng.integer(1, 2);
    o.kernel.push_back(k);
    o.dilation.push_back(dilation);
    o.stride.push_back(rng.integer(1, 3));
    o.pad_lo.push_back(rng.integer(0, 2));
    o.pad_hi.push_back(rng.integer(0, 2));
    const std::int64_t least = dilation * (k - 1) + 1 - o.pad_lo[d] - o.pad_hi[d];
    x.push_back(std::max(least, rng.integer(1, dims == 1 ? 12 : dims == 2 ? 6 : 4)));
  }
  x.push_back(rng.integer(1, 3));
  return rng.coin() ? unfold_case(x, o) : fold_case(x, o);
}

TEST_CASE("windows of split rows send the rows that they share") {
  const int n = process().count;
  const Mesh mesh = Mesh::world({{"h", n}});
  const Layout layout = Layout::make(mesh, {1, 6 * n, 4, 2}, {{}, {{0}, {}}, {}, {}});
  const Tensor x = to_tensor(random_array(layout.shape(), 1), layout);
  // One row of 4 x 2 doubles each way over each inner boundary.
  expect_traffic(2 * (n - 1) * 4 * 2 * 8, 2 * (n - 1),
                 [&] { unfold(x, {.kernel = {3}, .pad_lo = {1}}); });
}

TEST_CASE("the order of taps and channels is that of PyTorch, channels last") {
  // torch.nn.functional.unfold(x, (2, 3), padding=(1, 0), stride=(2, 1)), x[c, i, j] from a
  // formula.
  const auto element = [](std::int64_t c, std::int64_t i, std::int64_t j) {
    const std::int64_t e = (c * 3 + i) * 4 + j;
    return static_cast<double>((7 * e * e + 3 * e) % 23) / 4;
  };
  DenseArray x({1, 3, 4, 2});
  for_each(x.shape, [&](const Index& i) { x[i] = element(i[3], i[1], i[2]); });
  const double torch[2 * 6][4] = {
      {0, 0, 2.25, 1.5},       {0, 0, 1.5, 4.25},       {0, 0, 4.25, 4.75},   {0, 2.5, 3, 4.75},
      {2.5, 2.75, 4.75, 4.25}, {2.75, 0.75, 4.25, 1.5}, {0, 0, 0, 1},         {0, 0, 1, 5.5},
      {0, 0, 5.5, 2},          {2.25, 0.75, 2, 5.5},    {0.75, 2.75, 5.5, 1}, {2.75, 2.5, 1, 0}};
  const DenseArray y =
      to_dense(unfold(to_self(x), {.kernel = {2, 3}, .stride = {2, 1}, .pad_lo = {1, 0}}));
  REQUIRE(y.shape == Shape{1, 2, 2, 6, 2});
  for_each(y.shape,
           [&](const Index& i) { CHECK(y[i] == torch[i[4] * 6 + i[3]][i[1] * 2 + i[2]]); });
}

TEST_CASE("unfold and fold explain what does not fit") {
  const auto zeros = [](const Shape& s, DType t = DType::kFloat32) {
    return Tensor::zeros(Layout::replicated(Mesh::self(), s), t);
  };
  CHECK_THROWS_AS(unfold(zeros({1, 4, 2}), {}), UsageError);
  CHECK_THROWS_WITH(unfold(zeros({1, 4, 2}), {.kernel = {5}}),
                    Catch::Contains("kernel 5 does not fit 4 elements"));
  CHECK_THROWS_AS(unfold(zeros({4, 2}), {.kernel = {1}}), ShapeError);
  CHECK_THROWS_AS(unfold(zeros({1, 4, 2}, DType::kInt32), {.kernel = {1}}), DTypeError);
  CHECK_THROWS_AS(fold(zeros({1, 2, 3, 2}), {5}, {.kernel = {3}}), ShapeError);
  CHECK_THROWS_AS(fold(zeros({1, 3, 3}), {5}, {.kernel = {3}}), ShapeError);
  CHECK_NOTHROW(fold(zeros({1, 3, 3, 2}), {5}, {.kernel = {3}}));
}

}  // namespace tessera::test
