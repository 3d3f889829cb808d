// ranks: 1
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <tessera/kernels/pool.hpp>

#include "kernels/pieces.hpp"

namespace tessera {
namespace {

using kernels::PoolGeometry;
using test::Field;
using test::Memory;
using test::part;
using test::random_in;

struct Case {
  PoolGeometry g;
  Shape x, y;
  bool ceil_mode = false;
};

Case random_case(std::mt19937& random) {
  Case c;
  const int dims = static_cast<int>(random_in(random, 1, 3));
  c.x.push_back(random_in(random, 1, 3));
  c.y.push_back(c.x[0]);
  c.ceil_mode = random() % 2 == 0;
  for (int d = 0; d < dims; ++d) {
    c.g.kernel.push_back(random_in(random, 1, 3));
    c.g.stride.push_back(random_in(random, 1, 3));
    c.g.dilation.push_back(random() % 3 == 0 ? 2 : 1);
    c.g.pad_lo.push_back(random_in(random, 0, c.g.kernel[d] / 2));
    c.g.pad_hi.push_back(random_in(random, 0, c.g.kernel[d] / 2));
    const std::int64_t reach = (c.g.kernel[d] - 1) * c.g.dilation[d] + 1;
    const std::int64_t n =
        std::max(random_in(random, 1, dims == 1 ? 30 : 9), reach - c.g.pad_lo[d] - c.g.pad_hi[d]);
    c.x.push_back(n);
    c.y.push_back(kernels::pool_size(c.g, d, n, c.ceil_mode));
  }
  static constexpr std::int64_t kChannels[] = {1, 3, 16, 21, 70};
  c.x.push_back(kChannels[random() % 5]);
  c.y.push_back(c.x.back());
  return c;
}

/// f(x index) for the elements of the window of y, inside the domain or not.
template <class F>
void for_each_element(const Case& c, const Index& y, const F& f) {
  Box taps;
  for (int d = 0; d < c.g.dims(); ++d) {
    taps.lo.push_back(0);
    taps.hi.push_back(c.g.kernel[d]);
  }
  for_each_index(taps, [&](const Index& t) {
    Index x = y;
    for (int d = 0; d < c.g.dims(); ++d)
      x[d + 1] = y[d + 1] * c.g.stride[d] - c.g.pad_lo[d] + t[d] * c.g.dilation[d];
    f(x);
  });
}

std::int64_t position(const Case& c, const Index& x) {
  std::int64_t at = 0;
  for (int d = 0; d < c.g.dims(); ++d) at = at * c.x[d + 1] + x[d + 1];
  return at;
}

/// The smallest box of outputs that read any element of a box of inputs.
Box readers(const Case& c, const Box& box) {
  Box need = Box::whole(c.y);
  need.set(0, box[0]);
  need.set(c.y.size() - 1, box[c.y.size() - 1]);
  for (int d = 0; d < c.g.dims(); ++d) {
    Interval j{c.y[d + 1], 0};
    for (std::int64_t o = 0; o < c.y[d + 1]; ++o)
      for (std::int64_t t = 0; t < c.g.kernel[d]; ++t) {
        const std::int64_t i = o * c.g.stride[d] - c.g.pad_lo[d] + t * c.g.dilation[d];
        if (i >= box.lo[d + 1] && i < box.hi[d + 1]) j = {std::min(j.lo, o), std::max(j.hi, o + 1)};
      }
    need.set(d + 1, j.empty() ? Interval{0, 0} : j);
  }
  return need;
}

Box elements(const Case& c, const Box& out) {
  Box need = Box::whole(c.x);
  need.set(0, out[0]);
  need.set(c.x.size() - 1, out[c.x.size() - 1]);
  for (int d = 0; d < c.g.dims(); ++d) {
    if (out[d + 1].empty()) continue;
    const std::int64_t lo = out.lo[d + 1] * c.g.stride[d] - c.g.pad_lo[d];
    const std::int64_t hi = (out.hi[d + 1] - 1) * c.g.stride[d] - c.g.pad_lo[d] +
                            (c.g.kernel[d] - 1) * c.g.dilation[d] + 1;
    need.set(d + 1, intersect({lo, hi}, {0, c.x[d + 1]}));
  }
  return need;
}

std::vector<int> all_dims(const Shape& s) {
  std::vector<int> dims;
  for (int d = 0; d < s.size(); ++d) dims.push_back(d);
  return dims;
}

DType random_dtype(std::mt19937& random) {
  static constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16};
  return kTypes[random() % 3];
}

void check_equal(const Memory& m, const Field& expected, double tolerance) {
  double worst = 0;
  for_each_index(m.piece.box, [&](const Index& i) {
    const double a = m.get(i), b = expected.get(i);
    if (a != b) worst = std::max(worst, std::abs(a - b));
  });
  CHECK(worst <= tolerance);
}

double tolerance(DType dtype) {
  return dtype == DType::kFloat64 ? 1e-14 : dtype == DType::kFloat32 ? 2e-6 : 3e-2;
}

TEST_CASE("pool_size follows floor and ceiling rules") {
  const PoolGeometry g{{3}, {2}, {1}, {1}, {1}};
  CHECK(kernels::pool_size(g, 0, 8, false) == 4);
  CHECK(kernels::pool_size(g, 0, 8, true) == 5);
  const PoolGeometry tight{{2}, {2}, {1}, {1}, {1}};
  CHECK(kernels::pool_size(tight, 0, 7, true) == 4);  // a fifth window would start in the padding
  CHECK(kernels::pool_size({{5}, {1}, {0}, {0}, {1}}, 0, 4, false) == 0);
}

TEST_CASE("max_pool and its two adjoints agree with plain loops, however they are cut") {
  std::mt19937 random(5);
  for (int trial = 0; trial < 150; ++trial) {
    const Case c = random_case(random);
    const DType dtype = random_dtype(random);
    CAPTURE(trial, c.x, c.y, c.g.kernel, c.g.stride, c.g.pad_lo, c.g.dilation, name(dtype));
    Field x = test::random_field(Box::whole(c.x), random, dtype);
    for (double& v : x.values)
      if (random() % 4 == 0) v = 0.5;  // ties
    const Field v = test::random_field(Box::whole(c.x), random, dtype);
    const Field dy = test::random_field(Box::whole(c.y), random, dtype);
    Field y(c.y), index(c.y), picked(c.y), dx(c.x);
    for_each_index(y.box, [&](const Index& i) {
      y.at(i) = -std::numeric_limits<double>::infinity();
      index.at(i) = -1;
      Index at;
      for_each_element(c, i, [&](const Index& xi) {
        if (!x.has(xi) || x.get(xi) <= y.get(i)) return;
        y.at(i) = x.get(xi);
        index.at(i) = static_cast<double>(position(c, xi));
        at = xi;
      });
      if (at.empty()) return;
      picked.at(i) = v.get(at);
      dx.at(at) += dy.get(i);
    });

    Memory my(y.box, c.y, dtype), mi(y.box, c.y, DType::kInt64), mp(y.box, c.y, dtype),
        mdx(x.box, c.x, dtype);
    kernels::max_pool_forward(c.g, part(x, x.box, c.x, dtype).piece, my.piece, mi.piece);
    check_equal(my, y, 0);
    check_equal(mi, index, 0);
    kernels::max_pool_gather(part(v, x.box, c.x, dtype).piece, mi.piece, mp.piece);
    check_equal(mp, picked, 0);
    kernels::max_pool_input_grad(c.g, part(dy, y.box, c.y, dtype).piece, mi.piece, mdx.piece);
    check_equal(mdx, dx, tolerance(dtype) * 27);

    for (const Box& box : test::random_cut(y.box, random, all_dims(c.y))) {
      std::mt19937* scramble = random() % 2 == 0 ? &random : nullptr;
      Memory out(box, c.y, dtype, scramble), at(box, c.y, DType::kInt64, scramble),
          picks(box, c.y, dtype, scramble);
      const Box need = elements(c, box);
      kernels::max_pool_forward(c.g, part(x, need, c.x, dtype, scramble).piece, out.piece,
                                at.piece);
      check_equal(out, y, 0);
      check_equal(at, index, 0);
      kernels::max_pool_gather(part(v, need, c.x, dtype, scramble).piece, at.piece, picks.piece);
      check_equal(picks, picked, 0);
    }
    Field whole(c.x);
    for_each_index(x.box, [&](const Index& i) { whole.at(i) = mdx.get(i); });
    for (const Box& box : test::random_cut(x.box, random, all_dims(c.x))) {
      std::mt19937* scramble = random() % 2 == 0 ? &random : nullptr;
      Memory out(box, c.x, dtype, scramble);
      const Box need = readers(c, box);
      kernels::max_pool_input_grad(c.g, part(dy, need, c.y, dtype, scramble).piece,
                                   part(index, need, c.y, DType::kInt64, scramble).piece,
                                   out.piece);
      check_equal(out, whole, 0);
    }
  }
}

TEST_CASE("max_pool passes on NaN and minus infinity") {
  const PoolGeometry g{{2}, {2}, {0}, {0}, {1}};
  const double inf = std::numeric_limits<double>::infinity();
  Field x(Shape{1, 6, 1});
  x.values = {-inf, -inf, 1, std::nan(""), std::nan(""), 3};
  Memory y({{0, 0, 0}, {1, 3, 1}}, {1, 3, 1}, DType::kFloat32);
  Memory index(y.piece.box, {1, 3, 1}, DType::kInt64);
  kernels::max_pool_forward(g, part(x, x.box, {1, 6, 1}, DType::kFloat32).piece, y.piece,
                            index.piece);
  CHECK(y.get({0, 0, 0}) == -inf);
  CHECK(index.get({0, 0, 0}) == 0);
  CHECK(std::isnan(y.get({0, 1, 0})));
  CHECK(index.get({0, 1, 0}) == 3);
  CHECK(std::isnan(y.get({0, 2, 0})));
  CHECK(index.get({0, 2, 0}) == 4);
}

TEST_CASE("avg_pool and its gradient agree with plain loops, bit for bit however they are cut") {
  std::mt19937 random(6);
  for (int trial = 0; trial < 150; ++trial) {
    const Case c = random_case(random);
    const DType dtype = random_dtype(random);
    const bool include = random() % 2 == 0;
    CAPTURE(trial, c.x, c.y, c.g.kernel, c.g.stride, c.g.pad_lo, c.g.pad_hi, include, name(dtype));
    const Field x = test::random_field(Box::whole(c.x), random, dtype);
    const Field dy = test::random_field(Box::whole(c.y), random, dtype);
    Field y(c.y), dx(c.x);
    for_each_index(y.box, [&](const Index& i) {
      double sum = 0, count = 0;
      for_each_element(c, i, [&](const Index& xi) {
        bool counts = true;
        for (int d = 0; d < c.g.dims(); ++d)
          counts = counts && xi[d + 1] >= (include ? -c.g.pad_lo[d] : 0) &&
                   xi[d + 1] < c.x[d + 1] + (include ? c.g.pad_hi[d] : 0);
        if (counts) ++count;
        sum += x.get(xi);
      });
      y.at(i) = sum / count;
      for_each_element(c, i, [&](const Index& xi) {
        if (dx.has(xi)) dx.at(xi) += dy.get(i) / count;
      });
    });
    Memory my(y.box, c.y, dtype), mdx(x.box, c.x, dtype);
    kernels::avg_pool_forward(c.g, part(x, x.box, c.x, dtype).piece, my.piece, include);
    check_equal(my, y, tolerance(dtype) * 2);
    kernels::avg_pool_input_grad(c.g, part(dy, y.box, c.y, dtype).piece, mdx.piece, include);
    check_equal(mdx, dx, tolerance(dtype) * 27);

    bool same = true;
    for (const Box& box : test::random_cut(y.box, random, all_dims(c.y))) {
      std::mt19937* scramble = random() % 2 == 0 ? &random : nullptr;
      Memory out(box, c.y, dtype, scramble);
      kernels::avg_pool_forward(c.g, part(x, elements(c, box), c.x, dtype, scramble).piece,
                                out.piece, include);
      for_each_index(box, [&](const Index& i) { same = same && out.get(i) == my.get(i); });
    }
    for (const Box& box : test::random_cut(x.box, random, all_dims(c.x))) {
      std::mt19937* scramble = random() % 2 == 0 ? &random : nullptr;
      Memory out(box, c.x, dtype, scramble);
      kernels::avg_pool_input_grad(c.g, part(dy, readers(c, box), c.y, dtype, scramble).piece,
                                   out.piece, include);
      for_each_index(box, [&](const Index& i) { same = same && out.get(i) == mdx.get(i); });
    }
    CHECK(same);
  }
}

TEST_CASE("a mean of equal values is that value") {
  Field x(Box::whole({1, 9, 9, 3}), 0.75);
  Memory y({{0, 0, 0, 0}, {1, 3, 3, 3}}, {1, 3, 3, 3}, DType::kFloat32);
  kernels::avg_pool_forward({{3, 3}, {3, 3}, {0, 0}, {0, 0}, {1, 1}},
                            part(x, x.box, x.box.shape(), DType::kFloat32).piece, y.piece, true);
  for_each_index(y.piece.box, [&](const Index& i) { CHECK(y.get(i) == 0.75); });
}

}  // namespace
}  // namespace tessera
