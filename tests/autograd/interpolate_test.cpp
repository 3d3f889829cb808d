// ranks: 1 2 3 4 6 8
// deep: 1 4
#include <algorithm>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/interpolate.hpp>

#include "support/op_table.hpp"
#include "window_call.hpp"

namespace tessera::test {
namespace {

/// Input positions and weights of output j, from the definition.
std::vector<std::pair<std::int64_t, double>> taps(const InterpolateOptions& o,
                                                  std::int64_t n,
                                                  std::int64_t m,
                                                  std::int64_t j) {
  const auto nd = static_cast<double>(n), md = static_cast<double>(m), jd = static_cast<double>(j);
  if (o.mode == InterpolateMode::kNearest) return {{j * n / m, 1.0}};
  const double at =
      o.align_corners ? (m > 1 ? jd * (nd - 1) / (md - 1) : 0) : (jd + 0.5) * nd / md - 0.5;
  const double base = std::floor(at), t = at - base;
  const auto index = [&](double i) {
    return static_cast<std::int64_t>(std::min(std::max(base + i, 0.0), nd - 1));
  };
  if (o.mode == InterpolateMode::kLinear) return {{index(0), 1 - t}, {index(1), t}};
  const auto near = [](double x) { return 1.25 * x * x * x - 2.25 * x * x + 1; };
  const auto far = [](double x) { return -0.75 * (x * x * x - 5 * x * x + 8 * x - 4); };
  return {{index(-1), far(1 + t)},
          {index(0), near(t)},
          {index(1), near(1 - t)},
          {index(2), far(2 - t)}};
}

/// Resamples one dimension after the other.
DenseArray resampled(DenseArray x, const Dims& size, const InterpolateOptions& o) {
  for (int d = 0; d < size.size(); ++d) {
    Shape shape = x.shape;
    shape[d + 1] = size[d];
    DenseArray y(shape);
    for_each(shape, [&](const Index& i) {
      Index from = i;
      for (const auto& [position, weight] : taps(o, x.shape[d + 1], size[d], i[d + 1])) {
        from[d + 1] = position;
        y[i] += weight * x[from];
      }
    });
    x = std::move(y);
  }
  return x;
}

OpCase resample_case(const Shape& x, const Dims& size, const InterpolateOptions& o) {
  OpCase c;
  c.inputs = {uniform(x)};
  c.inputs[0].partial = false;
  c.f = [=](const std::vector<Tensor>& in) { return std::vector{interpolate(in[0], size, o)}; };
  c.reference = [=](const std::vector<DenseArray>& in) {
    return std::vector{resampled(in[0], size, o)};
  };
  c.linear = {{0}};
  c.exact = true;
  c.random_cuts = 4;
  return c;
}

constexpr InterpolateMode kNearest = InterpolateMode::kNearest, kLinear = InterpolateMode::kLinear,
                          kCubic = InterpolateMode::kCubic;

}  // namespace

OP_TEST("interpolate, nearest, twice as fine") {
  return resample_case({2, 5, 4, 3}, {10, 8}, {.mode = kNearest});
}
OP_TEST("interpolate, nearest, coarser") {
  return resample_case({1, 11, 7, 2}, {4, 5}, {.mode = kNearest});
}
OP_TEST("interpolate, linear, twice as fine") {
  return resample_case({2, 5, 4, 3}, {10, 8}, {.mode = kLinear});
}
OP_TEST("interpolate, linear, coarser and finer") {
  return resample_case({1, 11, 3, 2}, {4, 8}, {.mode = kLinear});
}
OP_TEST("interpolate, linear, three dimensions, corners aligned") {
  return resample_case({1, 3, 4, 5, 2}, {5, 4, 3}, {.mode = kLinear, .align_corners = true});
}
OP_TEST("interpolate, cubic") { return resample_case({1, 7, 6, 2}, {10, 9}, {.mode = kCubic}); }
OP_TEST("interpolate, cubic, corners aligned, coarser") {
  return resample_case({2, 13, 2}, {6}, {.mode = kCubic, .align_corners = true});
}
OP_TEST("interpolate, to and from one element") {
  return resample_case({1, 1, 6, 2}, {4, 1}, {.mode = kCubic});
}
OP_TEST("interpolate a pending sum") {
  OpCase c = resample_case({1, 7, 3}, {12}, {.mode = kLinear});
  c.inputs[0].partial = true;
  c.exact = false;
  return c;
}

OP_TABLE("interpolate", TableOptions{.refuses = [](auto n) { return n == 0; }}) {
  return resample_case({2, n, 4, 3}, {2 * n, 8}, {.mode = kLinear});
}

RANDOM_OP_TEST("interpolate, random sizes") {
  const int dims = static_cast<int>(rng.integer(1, 3));
  Shape x{rng.integer(1, 2)};
  Dims size;
  for (int d = 0; d < dims; ++d) {
    const std::int64_t most = dims == 1 ? 14 : dims == 2 ? 7 : 4;
    x.push_back(rng.integer(1, most));
    size.push_back(rng.integer(1, most));
  }
  x.push_back(rng.integer(1, 3));
  return resample_case(
      x, size,
      {.mode = static_cast<InterpolateMode>(rng.integer(0, 2)), .align_corners = rng.coin()});
}

OP_TEST("interpolate to the boundaries of another tensor") {
  OpCase c = resample_case({1, 5, 3, 2}, {10, 6}, {.mode = kLinear});
  c.inputs.push_back(constant(uniform({1, 10, 6, 4})));
  c.inputs[1].partial = false;
  for (InputSpec& input : c.inputs) input.cuttable = {1, 2};
  c.f = [](const std::vector<Tensor>& in) {
    const Tensor y = interpolate(in[0], {10, 6}, {.mode = kLinear, .like = in[1].layout()});
    for (int d = 1; d < 3; ++d) {
      // where both are split by the same axes the result follows the other tensor
      if (in[0].layout().axes_of(d) != 0 && in[0].layout().axes_of(d) == in[1].layout().axes_of(d))
        CHECK(y.layout().split(d).bounds == in[1].layout().split(d).bounds);
    }
    return std::vector{y};
  };
  c.linear = {{0}};
  c.may_throw = [](const std::vector<Layout>& in) {
    // one axis cannot split two dimensions
    for (int d = 1; d < 3; ++d)
      for (int e = 1; e < 3; ++e)
        if (d != e ? (in[0].axes_of(d) & in[1].axes_of(e)) != 0
                   : in[0].axes_of(d) != in[1].axes_of(d) && in[0].axes_of(d) != 0 &&
                         in[1].axes_of(d) != 0)
          return true;
    return false;
  };
  return c;
}

TEST_CASE("interpolation computes the interior first where that pays: the same bits") {
  struct Threshold {
    Threshold() { set_overlap_threshold(0); }
    ~Threshold() { set_overlap_threshold(kOverlapThreshold); }
  } always;
  report(check_op(resample_case({2, 9, 5, 2}, {18, 11}, {.mode = kLinear})));
  report(check_op(resample_case({1, 15, 2}, {7}, {.mode = kCubic})));
}

TEST_CASE("interpolate explains what does not fit") {
  const auto zeros = [](const Shape& s, DType t = DType::kFloat32) {
    return Tensor::zeros(Layout::replicated(Mesh::self(), s), t);
  };
  CHECK_THROWS_AS(interpolate(zeros({1, 4, 2}), {4, 4}), ShapeError);
  CHECK_THROWS_AS(interpolate(zeros({1, 4, 2}), {0}), ShapeError);
  CHECK_THROWS_AS(interpolate(zeros({1, 0, 2}), {4}), ShapeError);
  CHECK_THROWS_AS(interpolate(zeros({4, 2}), {4}), ShapeError);
  CHECK_THROWS_AS(interpolate(zeros({1, 4, 2}, DType::kInt64), {4}), DTypeError);
  CHECK_THROWS_AS(
      interpolate(zeros({1, 4, 2}), {8}, {.like = Layout::replicated(Mesh::self(), {1, 7, 2})}),
      ShapeError);
}

}  // namespace tessera::test
