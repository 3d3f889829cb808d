// ranks: 1 2 3 4 6 8
// deep: 1 4
#include <algorithm>
#include <limits>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/pool.hpp>

#include "support/op_table.hpp"
#include "window_call.hpp"

namespace tessera::test {
namespace {

/// Options with all lists full.
struct Window {
  Dims kernel, stride, pad_lo, pad_hi, dilation;

  Window(const PoolOptions& o, int dims) {
    const auto of = [](const Dims& values, int d, std::int64_t standard) {
      return values.empty() ? standard : values[values.size() == 1 ? 0 : d];
    };
    for (int d = 0; d < dims; ++d) {
      kernel.push_back(of(o.kernel, d, 1));
      stride.push_back(of(o.stride, d, kernel[d]));
      pad_lo.push_back(of(o.pad_lo, d, 0));
      pad_hi.push_back(o.pad_hi.empty() ? pad_lo[d] : of(o.pad_hi, d, 0));
      dilation.push_back(of(o.dilation, d, 1));
    }
  }
  /// The size of the result, by trying windows one after the other.
  std::int64_t size(int d, std::int64_t n, bool ceil_mode) const {
    std::int64_t m = 0;
    for (;; ++m) {
      const std::int64_t first = m * stride[d] - pad_lo[d];
      const std::int64_t last = first + dilation[d] * (kernel[d] - 1);
      const bool fits = last < n + pad_hi[d];
      const bool overlaps = ceil_mode && m > 0 && first < n &&
                            first - stride[d] + dilation[d] * (kernel[d] - 1) + 1 < n + pad_hi[d];
      if (!fits && !overlaps) return m;
    }
  }
  /// f(x index, whether it lies inside the domain, or inside domain and padding)
  void visit(const Shape& x,
             const Index& y,
             const std::function<void(const Index&, bool, bool)>& f) const {
    for_each(kernel, [&](const Index& t) {
      Index i = y;
      bool inside = true, padded = true;
      for (int d = 0; d < kernel.size(); ++d) {
        i[d + 1] = y[d + 1] * stride[d] - pad_lo[d] + t[d] * dilation[d];
        inside = inside && i[d + 1] >= 0 && i[d + 1] < x[d + 1];
        padded = padded && i[d + 1] < x[d + 1] + pad_hi[d];
      }
      f(i, inside, padded);
    });
  }
};

DenseArray pooled(const DenseArray& x, const PoolOptions& o, bool largest) {
  const int dims = x.shape.size() - 2;
  const Window window(o, dims);
  Shape shape = x.shape;
  for (int d = 0; d < dims; ++d) shape[d + 1] = window.size(d, x.shape[d + 1], o.ceil_mode);
  DenseArray y(shape);
  for_each(shape, [&](const Index& i) {
    double best = -std::numeric_limits<double>::infinity(), sum = 0, count = 0;
    window.visit(x.shape, i, [&](const Index& xi, bool inside, bool padded) {
      if (o.count_include_pad ? padded : inside) ++count;
      if (!inside) return;
      best = std::max(best, x[xi]);
      sum += x[xi];
    });
    y[i] = largest ? best : sum / count;
  });
  return y;
}

OpCase pool_case(bool largest, const Shape& x, const PoolOptions& o) {
  OpCase c;
  c.inputs = {largest ? distinct(x) : uniform(x)};
  c.inputs[0].partial = false;
  c.f = [=](const std::vector<Tensor>& in) {
    return std::vector{largest ? max_pool(in[0], o) : avg_pool(in[0], o)};
  };
  c.reference = [=](const std::vector<DenseArray>& in) {
    return std::vector{pooled(in[0], o, largest)};
  };
  if (!largest) c.linear = {{0}};
  c.exact = true;
  if (largest) c.step = 1e-4;
  c.random_cuts = 4;
  return c;
}
OpCase max_case(const Shape& x, const PoolOptions& o) { return pool_case(true, x, o); }
OpCase avg_case(const Shape& x, const PoolOptions& o) { return pool_case(false, x, o); }

}  // namespace

OP_TEST("max_pool, 2x2") { return max_case({2, 8, 6, 3}, {.kernel = {2}}); }
OP_TEST("max_pool, overlapping windows with padding") {
  return max_case({1, 9, 7, 2}, {.kernel = {3}, .stride = {2}, .pad_lo = {1}});
}
OP_TEST("max_pool, padding on one side, ceil_mode") {
  return max_case({2, 8, 3},
                  {.kernel = {3}, .stride = {2}, .pad_lo = {0}, .pad_hi = {1}, .ceil_mode = true});
}
OP_TEST("max_pool, dilation") {
  return max_case({1, 11, 2}, {.kernel = {3}, .stride = {1}, .dilation = {3}});
}
OP_TEST("max_pool, windows with gaps") {
  return max_case({1, 13, 2}, {.kernel = {2}, .stride = {5}});
}
OP_TEST("max_pool, three dimensions") {
  return max_case({1, 4, 5, 6, 2}, {.kernel = {2, 3, 2}, .stride = {2, 1, 2}, .pad_lo = {0, 1, 0}});
}
OP_TEST("avg_pool, 2x2") { return avg_case({2, 8, 6, 3}, {.kernel = {2}}); }
OP_TEST("avg_pool, divisors without padding") {
  return avg_case({1, 9, 7, 2}, {.kernel = {3}, .stride = {2}, .pad_lo = {1}});
}
OP_TEST("avg_pool, divisors with padding, ceil_mode") {
  return avg_case({2, 8, 3}, {.kernel = {3},
                              .stride = {2},
                              .pad_lo = {1},
                              .pad_hi = {0},
                              .ceil_mode = true,
                              .count_include_pad = true});
}
OP_TEST("avg_pool, three dimensions, dilation") {
  return avg_case(
      {1, 4, 5, 6, 2},
      {.kernel = {2, 3, 2}, .stride = {2, 1, 2}, .pad_lo = {0, 1, 0}, .dilation = {1, 2, 1}});
}
OP_TEST("avg_pool of a pending sum") {
  OpCase c = avg_case({2, 7, 3}, {.kernel = {3}, .stride = {2}, .pad_lo = {1}});
  c.inputs[0].partial = true;
  c.exact = false;
  return c;
}

OP_TABLE("max_pool", TableOptions{.refuses = [](auto n) { return n == 0; }}) {
  return max_case({2, n, 4, 3}, {.kernel = {3}, .stride = {2}, .pad_lo = {1}});
}
OP_TABLE("avg_pool", TableOptions{.refuses = [](auto n) { return n == 0; }}) {
  return avg_case({2, n, 4, 3}, {.kernel = {3}, .stride = {2}, .pad_lo = {1}});
}

RANDOM_OP_TEST("pooling, random geometry") {
  const int dims = static_cast<int>(rng.integer(1, 3));
  PoolOptions o;
  o.ceil_mode = rng.coin();
  o.count_include_pad = rng.coin();
  Shape x{rng.integer(1, 2)};
  for (int d = 0; d < dims; ++d) {
    const std::int64_t k = rng.integer(1, 3), dilation = rng.integer(1, 2),
                       extent = dilation * (k - 1) + 1;
    o.kernel.push_back(k);
    o.stride.push_back(rng.integer(1, 3));
    o.dilation.push_back(dilation);
    // with more padding than half a window, dilated windows could miss the domain
    const std::int64_t most = dilation == 1 ? k / 2 : 0;
    o.pad_lo.push_back(rng.integer(0, most));
    o.pad_hi.push_back(rng.integer(0, most));
    x.push_back(std::max<std::int64_t>(rng.integer(1, dims == 1   ? 14
                                                      : dims == 2 ? 7
                                                                  : 4),
                                       extent - o.pad_lo[d] - o.pad_hi[d]));
  }
  x.push_back(rng.integer(1, 3));
  return pool_case(rng.coin(), x, o);
}

TEST_CASE("pooling computes the interior first where that pays: the same bits") {
  struct Threshold {
    Threshold() { set_overlap_threshold(0); }
    ~Threshold() { set_overlap_threshold(kOverlapThreshold); }
  } always;
  report(check_op(max_case({2, 13, 9, 2}, {.kernel = {3}, .stride = {2}, .pad_lo = {1}})));
  report(check_op(avg_case({2, 13, 9, 2}, {.kernel = {3}, .stride = {1}, .pad_lo = {1}})));
}

TEST_CASE("pooling of aligned parts sends nothing") {
  const int n = process().count;
  const Mesh mesh = Mesh::world({{"h", n}});
  const Layout layout = Layout::make(mesh, {1, 6 * n, 4, 2}, {{}, {{0}, {}}, {}, {}});
  const Tensor x = require_grad(to_tensor(random_array(layout.shape(), 1), layout));
  for (const bool largest : {true, false}) {
    Tensor y;
    expect_traffic(
        0, 0, [&] { y = largest ? max_pool(x, {.kernel = {2}}) : avg_pool(x, {.kernel = {2}}); });
    const Tensor dy = to_tensor(random_array(y.shape(), 3), y.layout());
    expect_traffic(0, 0, [&] { grad({y}, {x}, {}, {dy}); });
  }
}

TEST_CASE("pooling explains what does not fit") {
  const auto zeros = [](const Shape& s, DType t = DType::kFloat32) {
    return Tensor::zeros(Layout::replicated(Mesh::self(), s), t);
  };
  CHECK_THROWS_AS(max_pool(zeros({1, 4, 2}), {}), UsageError);
  CHECK_THROWS_WITH(max_pool(zeros({1, 4, 2}), {.kernel = {5}}),
                    Catch::Contains("kernel 5 does not fit input size 4"));
  CHECK_THROWS_AS(avg_pool(zeros({1, 4, 2}), {.kernel = {2}, .pad_lo = {2}}), ShapeError);
  CHECK_THROWS_AS(avg_pool(zeros({1, 4, 2}), {.kernel = {2, 2}}), ShapeError);
  CHECK_THROWS_AS(avg_pool(zeros({4, 2}), {.kernel = {2}}), ShapeError);
  CHECK_THROWS_AS(avg_pool(zeros({1, 4, 2}, DType::kInt32), {.kernel = {2}}), DTypeError);
}

}  // namespace tessera::test
