// ranks: 1
#include <catch2/catch.hpp>
#include <cmath>
#include <tessera/kernels/interpolate.hpp>

#include "kernels/pieces.hpp"

namespace tessera {
namespace {

using kernels::InterpolateGeometry;
using kernels::InterpolateMode;
using test::Field;
using test::Memory;
using test::part;
using test::random_in;

/// Weight of input i in output j of one dimension, written from the definition.
double weight(
    const InterpolateGeometry& g, std::int64_t n, std::int64_t m, std::int64_t j, std::int64_t i) {
  const auto clamp = [n](double p) {
    return std::min(std::max(p, 0.0), static_cast<double>(n - 1));
  };
  const auto nd = static_cast<double>(n), md = static_cast<double>(m), jd = static_cast<double>(j);
  if (g.mode == InterpolateMode::kNearest) return j * n / m == i ? 1 : 0;
  const double at =
      g.align_corners ? (m > 1 ? jd * (nd - 1) / (md - 1) : 0.0) : (jd + 0.5) * nd / md - 0.5;
  const double base = std::floor(at), t = at - base;
  double taps[4];
  std::int64_t first = 0;
  int count = 0;
  if (g.mode == InterpolateMode::kLinear) {
    taps[0] = 1 - t;
    taps[1] = t;
    count = 2;
  } else {
    // Keys' kernel by its two polynomials
    const auto near = [](double x) { return 1.25 * x * x * x - 2.25 * x * x + 1; };
    const auto far = [](double x) { return -0.75 * (x * x * x - 5 * x * x + 8 * x - 4); };
    taps[0] = far(1 + t);
    taps[1] = near(t);
    taps[2] = near(1 - t);
    taps[3] = far(2 - t);
    first = -1;
    count = 4;
  }
  double sum = 0;
  for (int k = 0; k < count; ++k)
    if (clamp(base + static_cast<double>(first + k)) == static_cast<double>(i)) sum += taps[k];
  return sum;
}

struct Case {
  InterpolateGeometry g;
  Shape x, y;
};

Case random_case(std::mt19937& random) {
  Case c;
  const int dims = static_cast<int>(random_in(random, 1, 3));
  c.g.mode = static_cast<InterpolateMode>(random() % 3);
  c.g.align_corners = random() % 2 == 0;
  c.x.push_back(random_in(random, 1, 2));
  c.y.push_back(c.x[0]);
  for (int d = 0; d < dims; ++d) {
    const std::int64_t most = dims == 1 ? 25 : dims == 2 ? 9 : 6;
    c.x.push_back(random_in(random, 1, most));
    c.y.push_back(random() % 3 == 0 ? 2 * c.x[d + 1] : random_in(random, 1, most));
  }
  static constexpr std::int64_t kChannels[] = {1, 3, 16, 21};
  c.x.push_back(kChannels[random() % 4]);
  c.y.push_back(c.x.back());
  return c;
}

DType random_dtype(std::mt19937& random) {
  static constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16};
  return kTypes[random() % 3];
}

double tolerance(DType dtype) {
  return dtype == DType::kFloat64 ? 1e-13 : dtype == DType::kFloat32 ? 1e-5 : 8e-2;
}

std::vector<int> all_dims(const Shape& s) {
  std::vector<int> dims;
  for (int d = 0; d < s.size(); ++d) dims.push_back(d);
  return dims;
}

TEST_CASE(
    "interpolation and its gradient agree with the definition, bit for bit however they are cut") {
  std::mt19937 random(7);
  for (int trial = 0; trial < 150; ++trial) {
    const Case c = random_case(random);
    const DType dtype = random_dtype(random);
    const int dims = c.x.size() - 2;
    CAPTURE(trial, c.x, c.y, kernels::name(c.g.mode), c.g.align_corners, name(dtype));
    const Field x = test::random_field(Box::whole(c.x), random, dtype);
    const Field dy = test::random_field(Box::whole(c.y), random, dtype);
    Field y(c.y), dx(c.x);
    Box domain;
    for (int d = 0; d < dims; ++d) {
      domain.lo.push_back(0);
      domain.hi.push_back(c.x[d + 1]);
    }
    for_each_index(y.box, [&](const Index& yi) {
      for_each_index(domain, [&](const Index& i) {
        double w = 1;
        Index xi = yi;
        for (int d = 0; d < dims && w != 0; ++d) {
          xi[d + 1] = i[d];
          w *= weight(c.g, c.x[d + 1], c.y[d + 1], yi[d + 1], i[d]);
        }
        if (w == 0) return;
        y.at(yi) += w * x.get(xi);
        dx.at(xi) += w * dy.get(yi);
      });
    });
    const Memory mx = part(x, x.box, c.x, dtype), mdy = part(dy, dy.box, c.y, dtype);
    Memory my(y.box, c.y, dtype), mdx(x.box, c.x, dtype);
    kernels::interpolate_forward(c.g, mx.piece, my.piece);
    kernels::interpolate_input_grad(c.g, mdy.piece, mdx.piece);
    double worst = 0;
    for_each_index(
        y.box, [&](const Index& i) { worst = std::max(worst, std::abs(my.get(i) - y.get(i))); });
    for_each_index(x.box, [&](const Index& i) {
      worst = std::max(worst, std::abs(mdx.get(i) - dx.get(i)) / (1 + std::abs(dx.get(i))));
    });
    CHECK(worst <= tolerance(dtype));

    bool same = true;
    for (const Box& box : test::random_cut(y.box, random, all_dims(c.y))) {
      Box need = box;
      for (int d = 0; d < dims; ++d)
        need.set(d + 1, kernels::interpolate_need(c.g, c.x[d + 1], c.y[d + 1], box[d + 1]));
      std::mt19937* scramble = random() % 2 == 0 ? &random : nullptr;
      Memory out(box, c.y, dtype, scramble);
      kernels::interpolate_forward(c.g, part(x, need, c.x, dtype, scramble).piece, out.piece);
      for_each_index(box, [&](const Index& i) { same = same && out.get(i) == my.get(i); });
    }
    for (const Box& box : test::random_cut(x.box, random, all_dims(c.x))) {
      Box need = box;
      for (int d = 0; d < dims; ++d)
        need.set(d + 1, kernels::interpolate_adjoint_need(c.g, c.x[d + 1], c.y[d + 1], box[d + 1]));
      if (need.empty())  // then nothing is given in the other dimensions either
        for (int d = 0; d < dims; ++d) need.set(d + 1, {0, 0});
      std::mt19937* scramble = random() % 2 == 0 ? &random : nullptr;
      Memory out(box, c.x, dtype, scramble);
      kernels::interpolate_input_grad(c.g, part(dy, need, c.y, dtype, scramble).piece, out.piece);
      for_each_index(box, [&](const Index& i) { same = same && out.get(i) == mdx.get(i); });
    }
    CHECK(same);
  }
}

TEST_CASE("needs are exact and monotone") {
  for (const auto mode :
       {InterpolateMode::kNearest, InterpolateMode::kLinear, InterpolateMode::kCubic})
    for (const bool align : {false, true})
      for (const std::int64_t n : {1, 2, 5, 12})
        for (const std::int64_t m : {1, 2, 7, 12, 24}) {
          const InterpolateGeometry g{mode, align};
          CAPTURE(kernels::name(mode), align, n, m);
          for (std::int64_t lo = 0; lo < m; ++lo)
            for (std::int64_t hi = lo + 1; hi <= m; ++hi) {
              const Interval need = kernels::interpolate_need(g, n, m, {lo, hi});
              REQUIRE((need.lo >= 0 && need.hi <= n));
              for (std::int64_t j = lo; j < hi; ++j)
                for (std::int64_t i = 0; i < n; ++i)
                  if (weight(g, n, m, j, i) != 0) REQUIRE((i >= need.lo && i < need.hi));
            }
          Interval last{0, 0};
          for (std::int64_t i = 0; i < n; ++i) {
            const Interval need = kernels::interpolate_adjoint_need(g, n, m, {i, i + 1});
            REQUIRE((need.lo >= last.lo && need.hi >= last.hi && need.lo <= need.hi));
            last = need;
            for (std::int64_t j = 0; j < m; ++j)
              if (weight(g, n, m, j, i) != 0) REQUIRE((j >= need.lo && j < need.hi));
          }
        }
}

TEST_CASE("a piece that lacks what is needed is an error") {
  const Memory x({{0, 2, 0}, {1, 4, 1}}, {1, 8, 1}, DType::kFloat32);
  Memory y({{0, 0, 0}, {1, 8, 1}}, {1, 16, 1}, DType::kFloat32);
  CHECK_THROWS_AS(kernels::interpolate_forward({}, x.piece, y.piece), ShapeError);
  CHECK_THROWS_AS(kernels::interpolate_input_grad({}, y.piece, x.piece), ShapeError);
}

}  // namespace
}  // namespace tessera
