// ranks: 1 2 3 4
// deep: 1 4
#include <algorithm>
#include <limits>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/adaptive_pool.hpp>
#include <tessera/autograd/ops/elementwise.hpp>

#include "support/op_table.hpp"

namespace tessera::test {
namespace {

/// f(x index) for the elements of bin y.
void visit_bin(const Shape& x,
               const Dims& bins,
               const Index& y,
               const std::function<void(const Index&)>& f) {
  Shape extent;
  Index first = y;
  for (int d = 0; d < bins.size(); ++d) {
    const std::int64_t n = x[d + 1], m = bins[d], j = y[d + 1];
    std::int64_t lo = 0, hi = n;  // from the definition, by trying
    while ((lo + 1) * m <= j * n) ++lo;
    while ((hi - 1) * m >= (j + 1) * n) --hi;
    first[d + 1] = lo;
    extent.push_back(hi - lo);
  }
  for_each(extent, [&](const Index& t) {
    Index i = first;
    for (int d = 0; d < t.size(); ++d) i[d + 1] += t[d];
    f(i);
  });
}

DenseArray binned(const DenseArray& x, const Dims& bins, bool largest) {
  Shape shape = x.shape;
  for (int d = 0; d < bins.size(); ++d) shape[d + 1] = bins[d];
  DenseArray y(shape);
  for_each(shape, [&](const Index& at) {
    double best = -std::numeric_limits<double>::infinity(), sum = 0, count = 0;
    visit_bin(x.shape, bins, at, [&](const Index& i) {
      best = std::max(best, x[i]);
      sum += x[i];
      ++count;
    });
    y[at] = largest ? best : sum / count;
  });
  return y;
}

OpCase bin_case(bool largest, const Shape& x, const Dims& bins) {
  OpCase c;
  c.inputs = {largest ? distinct(x) : uniform(x)};
  c.inputs[0].partial = false;
  c.f = [=](const std::vector<Tensor>& in) {
    return std::vector{largest ? adaptive_max_pool(in[0], bins) : adaptive_avg_pool(in[0], bins)};
  };
  c.reference = [=](const std::vector<DenseArray>& in) {
    return std::vector{binned(in[0], bins, largest)};
  };
  if (!largest) c.linear = {{0}};
  c.exact = true;
  if (largest) c.step = 1e-4;
  c.random_cuts = 4;
  return c;
}

/// Non-overlapping 2 x 3 windows: value and place of each maximum, by looking.
std::pair<DenseArray, DenseArray> maxima(const DenseArray& x) {
  DenseArray value({x.shape[0], x.shape[1] / 2, x.shape[2] / 3, x.shape[3]});
  DenseArray place(value.shape);
  for_each(value.shape, [&](const Index& j) {
    double best = -std::numeric_limits<double>::infinity();
    for (std::int64_t a = 0; a < 2; ++a)
      for (std::int64_t b = 0; b < 3; ++b) {
        const Index i = {j[0], 2 * j[1] + a, 3 * j[2] + b, j[3]};
        if (x[i] <= best) continue;
        best = x[i];
        value[j] = best;
        place[j] = static_cast<double>(i[1] * x.shape[2] + i[2]);
      }
  });
  return {value, place};
}

const PoolOptions kPool = {.kernel = {2, 3}};

OpCase mean_case(const Shape& shape) {
  OpCase c;
  c.inputs = {uniform(shape)};
  c.f = [](const auto& in) { return std::vector{global_avg_pool(in[0])}; };
  c.reference = [=](const auto& in) {
    DenseArray y({shape[0], shape[3]});
    const auto count = static_cast<double>(shape[1] * shape[2]);
    for_each(shape, [&](const Index& i) { y(i[0], i[3]) += in[0][i] / count; });
    return std::vector{y};
  };
  c.linear = {{0}};
  return c;
}

OpCase largest_case(const Shape& shape) {
  OpCase c;
  c.inputs = {distinct(shape)};
  c.f = [](const auto& in) { return std::vector{global_max_pool(in[0], true)}; };
  c.reference = [=](const auto& in) {
    DenseArray y({shape[0], 1, 1, shape[3]}, -2.0);
    for_each(shape, [&](const Index& i) {
      double& best = y(i[0], 0, 0, i[3]);
      best = std::max(best, in[0][i]);
    });
    return std::vector{y};
  };
  c.step = 1e-4;
  return c;
}

/// Values for n rows of windows, and places that a pooling would give.
OpCase unpool_case(std::int64_t n) {
  InputSpec index;
  index.shape = {2, n, 2, 2};
  index.dtype = DType::kInt64;
  index.differentiable = false;
  index.partial = false;
  index.values = [n](const Shape&, std::uint64_t seed) {
    return maxima(random_array({2, 2 * n, 6, 2}, seed)).second;
  };
  OpCase c;
  c.inputs = {uniform(index.shape), index};
  c.inputs[0].partial = false;
  c.f = [](const auto& in) { return std::vector{max_unpool(in[0], in[1], {.pool = kPool})}; };
  c.reference = [n](const auto& in) {
    DenseArray y({2, 2 * n, 6, 2});
    for_each(in[0].shape, [&](const Index& j) {
      const auto at = static_cast<std::int64_t>(in[1][j]);
      y(j[0], at / 6, at % 6, j[3]) = in[0][j];
    });
    return std::vector{y};
  };
  c.linear = {{0}};
  c.exact = true;
  return c;
}

bool nothing(std::int64_t n) { return n == 0; }

}  // namespace

OP_TEST("adaptive average, bins that divide the domain") {
  return bin_case(false, {2, 8, 6, 3}, {4, 2});
}
OP_TEST("adaptive average, bins that overlap") { return bin_case(false, {2, 7, 5, 2}, {3, 4}); }
OP_TEST("adaptive average, more bins than elements") { return bin_case(false, {1, 3, 2}, {7}); }
OP_TEST("adaptive average, three dimensions") {
  return bin_case(false, {1, 4, 5, 3, 2}, {3, 2, 3});
}
OP_TEST("adaptive average of a pending sum") {
  OpCase c = bin_case(false, {2, 7, 3}, {4});
  c.inputs[0].partial = true;
  c.exact = false;
  return c;
}
OP_TEST("adaptive maximum, bins that overlap") { return bin_case(true, {2, 7, 5, 2}, {3, 4}); }
OP_TEST("adaptive maximum, one bin") { return bin_case(true, {2, 9, 2}, {1}); }

OP_TABLE("adaptive_avg_pool", TableOptions{.refuses = nothing}) {
  return bin_case(false, {2, n, 5, 2}, {3, 4});
}
OP_TABLE("adaptive_max_pool", TableOptions{.refuses = nothing}) {
  return bin_case(true, {2, n, 5, 2}, {3, 4});
}
OP_TABLE("global_avg_pool", TableOptions{.refuses = nothing}) { return mean_case({2, n, 3, 2}); }
OP_TABLE("global_max_pool", TableOptions{.refuses = nothing}) { return largest_case({2, n, 3, 2}); }
OP_TABLE("max_unpool") { return unpool_case(n); }
OP_TABLE("max_pool_with_index", TableOptions{.refuses = [](auto n) { return n < 2; }}) {
  OpCase c;
  c.inputs = {distinct({2, n, 6, 2})};
  c.inputs[0].partial = false;
  c.f = [](const auto& in) { return std::vector{max_pool_with_index(in[0], kPool).values}; };
  c.reference = [](const auto& in) { return std::vector{maxima(in[0]).first}; };
  c.exact = true;
  c.step = 1e-4;
  return c;
}

RANDOM_OP_TEST("adaptive pooling, any sizes") {
  const int dims = static_cast<int>(rng.integer(1, 3));
  Shape x{rng.integer(1, 2)};
  Dims bins;
  for (int d = 0; d < dims; ++d) {
    const std::int64_t most = dims == 1 ? 14 : dims == 2 ? 7 : 4;
    x.push_back(rng.integer(1, most));
    bins.push_back(rng.integer(1, most));
  }
  x.push_back(rng.integer(1, 3));
  OpCase c = bin_case(rng.coin(), x, bins);
  c.exact = bins.product() > 1;  // the mean over all is a sum of parts
  return c;
}

OP_TEST("mean over the domain") { return mean_case({2, 5, 3, 2}); }
OP_TEST("largest element of the domain") { return largest_case({2, 5, 3, 2}); }
OP_TEST("what a pooling found goes back to its place") { return unpool_case(4); }

OP_TEST("maxima and their places, put back in the layout of the input") {
  OpCase c;
  c.inputs = {distinct({2, 9, 7, 2})};  // a row and a column that no window sees
  c.inputs[0].partial = false;
  c.f = [](const auto& in) {
    const MaxPooled pooled = max_pool_with_index(in[0], kPool);
    return std::vector{max_unpool(pooled.values * pooled.values, pooled.index,
                                  {.pool = kPool, .size = {9, 7}, .like = in[0].layout()})};
  };
  c.reference = [](const auto& in) {
    const auto [value, place] = maxima(in[0]);
    DenseArray y(in[0].shape);
    for_each(value.shape, [&](const Index& j) {
      const auto at = static_cast<std::int64_t>(place[j]);
      y(j[0], at / 7, at % 7, j[3]) = value[j] * value[j];
    });
    return std::vector{y};
  };
  c.exact = true;
  c.step = 1e-4;
  return c;
}

TEST_CASE("places are those of the whole domain, on any cut") {
  const DenseArray x = random_array({2, 8, 6, 3}, 4);
  const auto [value, place] = maxima(x);
  Rng rng(from_process_0(run_seed()));
  for (const Mesh& mesh : test_meshes()) {
    for (int variant = 0; variant < 4; ++variant) {
      const Layout layout = draw_layout(mesh, x.shape, rng);
      INFO(layout.str());
      const MaxPooled pooled = max_pool_with_index(to_tensor(x, layout), kPool);
      CHECK(pooled.index.dtype() == DType::kInt64);
      CHECK(compare("index", pooled.index, place, 0.0) == "");
      CHECK(compare("value", pooled.values, value, 0.0) == "");
    }
  }
}

TEST_CASE("windows that share a maximum add up where it was") {
  const DenseArray x = random_array({1, 7, 1}, 8);
  const PoolOptions overlapping = {.kernel = {3}, .stride = {2}};
  const MaxPooled pooled = max_pool_with_index(to_self(x), overlapping);
  DenseArray expected(x.shape);
  for (std::int64_t j = 0; j < 3; ++j) {
    std::int64_t best = 2 * j;
    for (std::int64_t i = 2 * j; i < 2 * j + 3; ++i)
      if (x(0, i, 0) > x(0, best, 0)) best = i;
    expected(0, best, 0) += x(0, best, 0);
  }
  CHECK(compare("", max_unpool(pooled.values, pooled.index, {.pool = overlapping}), expected,
                1e-15) == "");
}

TEST_CASE("an adaptive average lies where it is told to") {
  const Mesh mesh = Mesh::world({{"h", process().count}});
  const DenseArray x = random_array({1, 12, 5, 2}, 5);
  const Layout in = Placement(mesh).shard(1, {"h"}).resolve(x.shape);
  Bounds bounds(static_cast<std::size_t>(mesh.size()), 0);  // all in the last part
  bounds.push_back(8);
  const Layout like = Layout::make(mesh, {1, 8, 5, 7}, {{}, {{0}, bounds}, {}, {}});
  const Tensor y = adaptive_avg_pool(to_tensor(x, in), {8, 5}, like);
  if (mesh.size() > 1) CHECK(y.layout().split(1).bounds == bounds);
  CHECK(compare("", y, binned(x, {8, 5}, false), 1e-14) == "");
}

TEST_CASE("pooling follows the rules of PyTorch") {
  // Values that torch 2.15 gives for x[i] = ((7 i^2 + 3 i) mod 23) / 4: avg_pool1d and max_pool1d
  // of 9 elements with ceil_mode and count_include_pad, adaptive pooling, interpolate(area),
  // max_pool2d with indices and max_unpool2d of 5 x 6.
  const auto sequence = [](const Shape& shape) {
    DenseArray x(shape);
    for (std::size_t i = 0; i < x.values.size(); ++i)
      x.values[i] = static_cast<double>((7 * i * i + 3 * i) % 23) / 4;
    return x;
  };
  const auto check = [](const char* what, const Tensor& actual, const std::vector<double>& torch) {
    INFO(what);
    const DenseArray y = to_dense(actual);
    REQUIRE(y.values.size() == torch.size());
    for (std::size_t i = 0; i < torch.size(); ++i)
      CHECK(y.values[i] == Approx(torch[i]).epsilon(1e-9));
  };
  struct Case {
    std::int64_t kernel, stride, pad;
    bool ceil_mode, count_include_pad;
    std::vector<double> average, largest;
  };
  const Tensor line = to_self(sequence({1, 9, 1}));
  for (const Case& c : std::vector<Case>{
           {3,
            2,
            1,
            true,
            true,
            {0.8333333333, 2, 1.5, 3.5, 2.583333333},
            {2.5, 2.75, 2.25, 4.75, 4.75}},
           {3, 2, 1, true, false, {1.25, 2, 1.5, 3.5, 3.875}, {2.5, 2.75, 2.25, 4.75, 4.75}},
           {2, 3, 0, true, true, {1.25, 1.5, 4.5}, {2.5, 2.25, 4.75}},
           {2, 3, 1, true, true, {0, 1.75, 2.875, 1.5}, {0, 2.75, 4.25, 3}},
           {3, 5, 1, true, false, {1.25, 2.666666667}, {2.5, 4.25}},
           {4, 3, 2, true, true, {0.625, 2.0625, 3.1875, 1.9375}, {2.5, 2.75, 4.75, 4.75}},
           {4, 3, 2, false, true, {0.625, 2.0625, 3.1875, 1.9375}, {2.5, 2.75, 4.75, 4.75}},
           {3, 4, 1, true, true, {0.8333333333, 1.5, 2.583333333}, {2.5, 2.25, 4.75}}}) {
    INFO("kernel " << c.kernel << " stride " << c.stride << " padding " << c.pad);
    const PoolOptions o = {.kernel = {c.kernel},
                           .stride = {c.stride},
                           .pad_lo = {c.pad},
                           .ceil_mode = c.ceil_mode,
                           .count_include_pad = c.count_include_pad};
    check("average", avg_pool(line, o), c.average);
    check("maximum", max_pool(line, o), c.largest);
  }
  const Tensor x = to_self(sequence({1, 5, 6, 1}));
  check("adaptive average", adaptive_avg_pool(x, {3, 4}),
        {2.875, 3.25, 3, 2.375, 3.25, 2.541666667, 3, 1.291666667, 3.1875, 1.875, 2.5625, 1.6875});
  check("adaptive maximum", adaptive_max_pool(x, {3, 4}),
        {4.75, 4.75, 4.75, 4.25, 5.5, 4.75, 5.5, 4.25, 5.5, 2.75, 5.5, 4.25});
  check(
      "area", adaptive_avg_pool(x, {2, 5}),
      {2.416666667, 2.75, 2.75, 2.416666667, 1.75, 2.625, 1.833333333, 2.625, 2.125, 1.291666667});
  const MaxPooled pooled = max_pool_with_index(x, {.kernel = {2}});
  check("values", pooled.values, {4.75, 4.75, 4.25, 5.5, 5.5, 1});
  check("indices", pooled.index, {7, 9, 10, 18, 21, 17});
  check("unpooled",
        max_unpool(pooled.values, pooled.index, {.pool = {.kernel = {2}}, .size = {5, 6}}),
        {0, 0, 0, 0,   0, 0, 0,   4.75, 0, 4.75, 4.25, 0, 0, 0, 0,
         0, 0, 1, 5.5, 0, 0, 5.5, 0,    0, 0,    0,    0, 0, 0, 0});
}

TEST_CASE("adaptive pooling and its inverse explain what does not fit") {
  const auto zeros = [](const Shape& s, DType t = DType::kFloat32) {
    return Tensor::zeros(Layout::replicated(Mesh::self(), s), t);
  };
  CHECK_THROWS_AS(adaptive_avg_pool(zeros({1, 4, 2}), {2, 2}), ShapeError);
  CHECK_THROWS_AS(adaptive_max_pool(zeros({1, 4, 2}), {0}), ShapeError);
  CHECK_THROWS_AS(adaptive_max_pool(zeros({1, 0, 2}), {1}), ShapeError);
  CHECK_THROWS_AS(global_avg_pool(zeros({4, 2})), ShapeError);
  CHECK_THROWS_AS(adaptive_avg_pool(zeros({1, 4, 2}, DType::kInt32), {2}), DTypeError);
  const Tensor v = zeros({1, 2, 2});
  CHECK_THROWS_AS(max_unpool(v, zeros({1, 2, 2}), {.pool = {.kernel = {2}}}), ShapeError);
  const auto index = [](double value) {
    return Tensor::full(Layout::replicated(Mesh::self(), {1, 2, 2}), value, DType::kInt64);
  };
  CHECK_NOTHROW(max_unpool(v, index(-1), {.pool = {.kernel = {2}}}));
  CHECK_THROWS_WITH(max_unpool(v, index(3), {.pool = {.kernel = {2}}}),
                    Catch::Contains("index 3 lies outside of the window of its place"));
  CHECK_THROWS_AS(max_unpool(v, index(-2), {.pool = {.kernel = {2}}}), ShapeError);
  CHECK_THROWS_AS(max_unpool(v, index(9), {.pool = {.kernel = {2}}}), ShapeError);
}

}  // namespace tessera::test
