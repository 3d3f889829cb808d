// ranks: 1
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <optional>
#include <tessera/core/threads.hpp>
#include <tessera/kernels/conv.hpp>

#include "kernels/pieces.hpp"

namespace tessera {
namespace {

using kernels::ConvGeometry;
using test::Field;
using test::Memory;
using test::part;
using test::random_in;

/// A convolution of random size, and its result by plain loops.
struct Case {
  ConvGeometry g;
  std::int64_t groups = 1;
  Shape x, w, y;  // global shapes
};

Box pixel_box(const Case& c) {
  Box taps;
  for (int d = 0; d < c.g.dims(); ++d) {
    taps.lo.push_back(0);
    taps.hi.push_back(c.g.kernel[d]);
  }
  return taps;
}

/// Calls f(x index, w index, y index) for every product of the convolution, with x possibly outside
/// its domain.
template <class F>
void for_each_product(const Case& c, const F& f) {
  const std::int64_t in = c.w.back(), out = c.w[0] / c.groups;
  const Box taps = pixel_box(c);
  for_each_index(Box::whole(c.y), [&](const Index& y) {
    for_each_index(taps, [&](const Index& t) {
      Index x{y[0]}, w{y.back()};
      for (int d = 0; d < c.g.dims(); ++d) {
        x.push_back(y[d + 1] * c.g.stride[d] - c.g.pad_lo[d] + t[d] * c.g.dilation[d]);
        w.push_back(t[d]);
      }
      x.push_back(0);
      w.push_back(0);
      for (std::int64_t i = 0; i < in; ++i) {
        x.back() = y.back() / out * in + i;
        w.back() = i;
        f(x, w, y);
      }
    });
  });
}

Case random_case(std::mt19937& random, bool tiny) {
  Case c;
  const int dims = static_cast<int>(random_in(random, 1, 3));
  const std::int64_t most = tiny ? 4 : dims == 1 ? 40 : dims == 2 ? 19 : 9;
  c.x.push_back(random_in(random, 1, 3));
  c.y.push_back(c.x[0]);
  for (int d = 0; d < dims; ++d) {
    c.g.kernel.push_back(random_in(random, 1, dims == 3 ? 3 : 5));
    c.g.stride.push_back(random_in(random, 1, 3));
    c.g.dilation.push_back(random() % 3 == 0 ? 2 : 1);
    const std::int64_t reach = (c.g.kernel[d] - 1) * c.g.dilation[d];
    c.g.pad_lo.push_back(random_in(random, 0, reach + 1));
    const std::int64_t pad_hi = random_in(random, 0, reach + 1);
    std::int64_t n = random_in(random, 1, most);
    n = std::max(n, reach + 1 - c.g.pad_lo[d] - pad_hi);
    c.x.push_back(n);
    c.y.push_back((n + c.g.pad_lo[d] + pad_hi - reach - 1) / c.g.stride[d] + 1);
  }
  static constexpr std::int64_t kChannels[] = {1, 1, 2, 3, 5, 8, 16, 17, 20, 32, 33, 48, 70, 100};
  std::int64_t in = kChannels[random() % (tiny ? 8 : std::size(kChannels))];
  std::int64_t out = kChannels[random() % (tiny ? 8 : std::size(kChannels))];
  const auto kind = random() % 4;
  if (kind == 0) {  // groups
    c.groups = random_in(random, 2, 4);
    in = std::min<std::int64_t>(in, 17);
    out = std::min<std::int64_t>(out, 17);
  } else if (kind == 1) {  // one filter per channel
    c.groups = in * (random() % 2 == 0 ? out : 1);
    in = out = 1;
  }
  c.x.push_back(c.groups * in);
  c.y.push_back(c.groups * out);
  c.w.push_back(c.groups * out);
  for (const std::int64_t k : c.g.kernel) c.w.push_back(k);
  c.w.push_back(in);
  return c;
}

DType random_dtype(std::mt19937& random) {
  static constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16};
  return kTypes[random() % 3];
}

double tolerance(DType dtype) {
  return dtype == DType::kFloat64 ? 1e-14 : dtype == DType::kFloat32 ? 2e-6 : 5e-3;
}

void check_close(const Memory& m, const Box& box, Field& expected, const Field& magnitude) {
  double worst = 0;
  for_each_index(box, [&](const Index& i) {
    const double error = std::abs(m.get(i) - expected.get(i)) / (magnitude.get(i) + 1e-30);
    worst = std::max(worst, expected.get(i) == m.get(i) ? 0.0 : error);
  });
  CHECK(worst <= tolerance(m.piece.view.dtype));
}

/// What the outputs `out` read of dimension d of the input.
Interval forward_need(const Case& c, int d, Interval out) {
  if (out.empty()) return {0, 0};
  const ConvGeometry& g = c.g;
  return {out.lo * g.stride[d] - g.pad_lo[d],
          (out.hi - 1) * g.stride[d] - g.pad_lo[d] + (g.kernel[d] - 1) * g.dilation[d] + 1};
}

Box clipped(Box box, const Shape& shape) { return intersect(box, Box::whole(shape)); }

std::vector<int> all_but_last(const Shape& shape) {
  std::vector<int> dims;
  for (int d = 0; d + 1 < shape.size(); ++d) dims.push_back(d);
  return dims;
}

TEST_CASE("conv_forward agrees with plain loops, bit for bit however the output is cut") {
  std::mt19937 random(1);
  for (int trial = 0; trial < 120; ++trial) {
    const Case c = random_case(random, trial % 3 == 0);
    const DType dtype = random_dtype(random);
    const bool with_bias = random() % 2 == 0;
    CAPTURE(trial, c.x, c.w, c.y, c.g.stride, c.g.pad_lo, c.g.dilation, name(dtype));
    const Field x = test::random_field(Box::whole(c.x), random, dtype);
    const Field w = test::random_field(Box::whole(c.w), random, dtype);
    const Field b = test::random_field(Box::whole({c.y.back()}), random, dtype);
    Field expected(c.y), magnitude(c.y);
    if (with_bias)
      for_each_index(expected.box, [&](const Index& i) {
        expected.at(i) = b.get({i.back()});
        magnitude.at(i) = std::abs(b.get({i.back()}));
      });
    for_each_product(c, [&](const Index& xi, const Index& wi, const Index& yi) {
      expected.at(yi) += x.get(xi) * w.get(wi);
      magnitude.at(yi) += std::abs(x.get(xi) * w.get(wi));
    });

    const Memory mw = part(w, w.box, c.w, dtype, random() % 2 == 0 ? &random : nullptr);
    const Memory mb = part(b, b.box, b.box.shape(), dtype, &random);
    std::optional<View> bias;
    if (with_bias) bias = mb.piece.view;
    const Memory mx = part(x, x.box, c.x, dtype);
    Memory whole(Box::whole(c.y), c.y, dtype);
    kernels::conv_forward(c.g, mx.piece, mw.piece.view, bias, whole.piece);
    check_close(whole, whole.piece.box, expected, magnitude);

    bool same = true;
    for (const Box& box : test::random_cut(Box::whole(c.y), random, all_but_last(c.y))) {
      Box need = Box::whole(c.x);
      need.set(0, box[0]);
      for (int d = 0; d < c.g.dims(); ++d) need.set(d + 1, forward_need(c, d, box[d + 1]));
      std::mt19937* scramble = random() % 2 == 0 ? &random : nullptr;
      const Memory piece = part(x, clipped(need, c.x), c.x, dtype, scramble);
      Memory out(box, c.y, dtype, scramble);
      kernels::conv_forward(c.g, piece.piece, mw.piece.view, bias, out.piece);
      for_each_index(box, [&](const Index& i) { same = same && out.get(i) == whole.get(i); });
    }
    CHECK(same);
  }
}

TEST_CASE("conv_input_grad is the adjoint, also beyond the domain, bit for bit however it is cut") {
  std::mt19937 random(2);
  for (int trial = 0; trial < 120; ++trial) {
    const Case c = random_case(random, trial % 3 == 0);
    const DType dtype = random_dtype(random);
    CAPTURE(trial, c.x, c.w, c.y, c.g.stride, c.g.pad_lo, c.g.dilation, name(dtype));
    const Field dy = test::random_field(Box::whole(c.y), random, dtype);
    const Field w = test::random_field(Box::whole(c.w), random, dtype);
    Box beyond = Box::whole(c.x);  // the padding counts too: an edge rule folds it back
    for (int d = 0; d < c.g.dims(); ++d) {
      beyond.lo[d + 1] -= random_in(random, 0, 4);
      beyond.hi[d + 1] += random_in(random, 0, 4);
    }
    const bool with_bias = random() % 3 == 0;
    const Field b = test::random_field(Box::whole({c.x.back()}), random, dtype);
    Field expected(beyond), magnitude(beyond);
    if (with_bias)
      for_each_index(beyond, [&](const Index& i) {
        expected.at(i) = b.get({i.back()});
        magnitude.at(i) = std::abs(b.get({i.back()}));
      });
    for_each_product(c, [&](const Index& xi, const Index& wi, const Index& yi) {
      if (!expected.has(xi)) return;
      expected.at(xi) += dy.get(yi) * w.get(wi);
      magnitude.at(xi) += std::abs(dy.get(yi) * w.get(wi));
    });

    const Memory mw = part(w, w.box, c.w, dtype, random() % 2 == 0 ? &random : nullptr);
    const Memory mb = part(b, b.box, b.box.shape(), dtype);
    std::optional<View> bias;
    if (with_bias) bias = mb.piece.view;
    const Memory mdy = part(dy, dy.box, c.y, dtype);
    Memory whole(beyond, c.x, dtype);
    kernels::conv_input_grad(c.g, mdy.piece, mw.piece.view, whole.piece, bias);
    check_close(whole, beyond, expected, magnitude);

    bool same = true;
    for (const Box& box : test::random_cut(beyond, random, all_but_last(c.x))) {
      Box need = Box::whole(c.y);
      need.set(0, box[0]);
      for (int d = 0; d < c.g.dims(); ++d) {
        // every output that reads one of these inputs
        Interval j{c.y[d + 1], 0};
        for (std::int64_t o = 0; o < c.y[d + 1]; ++o)
          for (std::int64_t t = 0; t < c.g.kernel[d]; ++t) {
            const std::int64_t i = o * c.g.stride[d] - c.g.pad_lo[d] + t * c.g.dilation[d];
            if (i >= box.lo[d + 1] && i < box.hi[d + 1])
              j = {std::min(j.lo, o), std::max(j.hi, o + 1)};
          }
        need.set(d + 1, j.empty() ? Interval{0, 0} : j);
      }
      std::mt19937* scramble = random() % 2 == 0 ? &random : nullptr;
      const Memory piece = part(dy, need, c.y, dtype, scramble);
      Memory out(box, c.x, dtype, scramble);
      kernels::conv_input_grad(c.g, piece.piece, mw.piece.view, out.piece, bias);
      for_each_index(box, [&](const Index& i) { same = same && out.get(i) == whole.get(i); });
    }
    CHECK(same);
  }
}

TEST_CASE("conv_weight_grad agrees with plain loops, also summed over the pieces of a cut") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 120; ++trial) {
    const Case c = random_case(random, trial % 3 == 0);
    const DType dtype = random_dtype(random);
    CAPTURE(trial, c.x, c.w, c.y, c.g.stride, c.g.pad_lo, c.g.dilation, name(dtype));
    const Field x = test::random_field(Box::whole(c.x), random, dtype);
    const Field dy = test::random_field(Box::whole(c.y), random, dtype);
    Field expected(c.w), magnitude(c.w);
    for_each_product(c, [&](const Index& xi, const Index& wi, const Index& yi) {
      expected.at(wi) += x.get(xi) * dy.get(yi);
      magnitude.at(wi) += std::abs(x.get(xi) * dy.get(yi));
    });
    const Box all = Box::whole(c.w);
    const Memory mx = part(x, x.box, c.x, dtype), mdy = part(dy, dy.box, c.y, dtype);
    Memory whole(all, c.w, dtype, random() % 2 == 0 ? &random : nullptr);
    kernels::conv_weight_grad(c.g, mx.piece, mdy.piece, whole.piece.view, false);
    check_close(whole, all, expected, magnitude);

    // replicas may have other strides, but must have the same bits
    const Memory sx = part(x, x.box, c.x, dtype, &random),
                 sdy = part(dy, dy.box, c.y, dtype, &random);
    Memory other(all, c.w, dtype, &random);
    kernels::conv_weight_grad(c.g, sx.piece, sdy.piece, other.piece.view, false);
    bool same = true;
    for_each_index(all, [&](const Index& i) { same = same && other.get(i) == whole.get(i); });
    CHECK(same);

    if (dtype == DType::kBFloat16) continue;  // sums of rounded parts are coarser
    Memory sum(all, c.w, dtype, &random);
    bool first = true;
    for (const Box& box : test::random_cut(Box::whole(c.y), random, all_but_last(c.y))) {
      Box need = Box::whole(c.x);
      need.set(0, box[0]);
      for (int d = 0; d < c.g.dims(); ++d) need.set(d + 1, forward_need(c, d, box[d + 1]));
      std::mt19937* scramble = random() % 2 == 0 ? &random : nullptr;
      const Memory px = part(x, clipped(need, c.x), c.x, dtype, scramble);
      const Memory pdy = part(dy, box, c.y, dtype, scramble);
      kernels::conv_weight_grad(c.g, px.piece, pdy.piece, sum.piece.view, !first);
      first = false;
    }
    check_close(sum, all, expected, magnitude);
  }
}

TEST_CASE("the result of a convolution does not depend on the number of threads") {
  const int threads = thread_count();
  std::mt19937 random(4);
  struct Channels {
    std::int64_t groups, in, out;
  };
  for (const Channels ch : {Channels{1, 16, 40}, {1, 1, 16}, {1, 40, 1}, {64, 1, 1}, {2, 24, 16}}) {
    Case c;
    c.g = {{3, 3}, {1, 1}, {1, 1}, {1, 1}};
    c.groups = ch.groups;
    c.x = {2, 61, 83, ch.groups * ch.in};
    c.y = {2, 61, 83, ch.groups * ch.out};
    c.w = {ch.groups * ch.out, 3, 3, ch.in};
    std::vector<std::vector<double>> results;
    const auto random_float = [&](const Shape& shape) {
      Field f{shape};
      for (double& v : f.values) v = std::uniform_real_distribution<>(-1, 1)(random);
      return part(f, f.box, shape, DType::kFloat32);
    };
    const Memory x = random_float(c.x), w = random_float(c.w), dy = random_float(c.y);
    for (const int count : {1, 2, 3, 7}) {
      set_thread_count(count);
      Memory y(Box::whole(c.y), c.y, DType::kFloat32), dx(Box::whole(c.x), c.x, DType::kFloat32);
      Memory dw(Box::whole(c.w), c.w, DType::kFloat32);
      kernels::conv_forward(c.g, x.piece, w.piece.view, std::nullopt, y.piece);
      kernels::conv_input_grad(c.g, dy.piece, w.piece.view, dx.piece);
      kernels::conv_weight_grad(c.g, x.piece, dy.piece, dw.piece.view, false);
      std::vector<double> all;
      for (const Memory* m : {&y, &dx, &dw})
        for_each_index(m->piece.box, [&](const Index& i) { all.push_back(m->get(i)); });
      results.push_back(std::move(all));
    }
    for (const auto& r : results) CHECK(r == results[0]);
  }
  set_thread_count(threads);
}

TEST_CASE("convolutions of nothing") {
  const ConvGeometry g{{3}, {1}, {1}, {1}};
  Field w{Shape{4, 3, 2}};
  const Memory mw = part(w, w.box, w.box.shape(), DType::kFloat32);
  Field b({{0}, {4}}, 3.0);
  const Memory mb = part(b, b.box, {4}, DType::kFloat32);

  SECTION("absent input leaves the bias") {
    const Memory x({{0, 0, 0}, {1, 0, 2}}, {1, 8, 2}, DType::kFloat32);
    Memory y({{0, 2, 0}, {1, 5, 4}}, {1, 8, 4}, DType::kFloat32);
    kernels::conv_forward(g, x.piece, mw.piece.view, mb.piece.view, y.piece);
    for_each_index(y.piece.box, [&](const Index& i) { CHECK(y.get(i) == 3.0); });
  }
  SECTION("no input channels leave the bias and an empty gradient") {
    Field none{Shape{4, 3, 0}};
    const Memory mn = part(none, none.box, none.box.shape(), DType::kFloat32);
    const Memory x({{0, 0, 0}, {1, 8, 0}}, {1, 8, 0}, DType::kFloat32);
    Memory y({{0, 0, 0}, {1, 8, 4}}, {1, 8, 4}, DType::kFloat32);
    kernels::conv_forward(g, x.piece, mn.piece.view, mb.piece.view, y.piece);
    for_each_index(y.piece.box, [&](const Index& i) { CHECK(y.get(i) == 3.0); });
    kernels::conv_weight_grad(g, x.piece, y.piece, mn.piece.view, false);
  }
  SECTION("an empty output writes nothing; its weight gradient is zero or unchanged") {
    const Memory x({{0, 0, 0}, {1, 8, 2}}, {1, 8, 2}, DType::kFloat32);
    Memory y({{0, 3, 0}, {1, 3, 4}}, {1, 8, 4}, DType::kFloat32);
    kernels::conv_forward(g, x.piece, mw.piece.view, mb.piece.view, y.piece);
    Memory dw(w.box, w.box.shape(), DType::kFloat32);
    kernels::conv_weight_grad(g, x.piece, y.piece, dw.piece.view, true);
    CHECK(dw.get({1, 1, 1}) == 77);
    kernels::conv_weight_grad(g, x.piece, y.piece, dw.piece.view, false);
    CHECK(dw.get({1, 1, 1}) == 0);
  }
  SECTION("operands that do not fit") {
    const Memory x({{0, 0, 0}, {1, 8, 3}}, {1, 8, 3}, DType::kFloat32);
    Memory y({{0, 0, 0}, {1, 8, 4}}, {1, 8, 4}, DType::kFloat32);
    CHECK_THROWS_AS(kernels::conv_forward(g, x.piece, mw.piece.view, std::nullopt, y.piece),
                    ShapeError);
    const Memory x64({{0, 0, 0}, {1, 8, 2}}, {1, 8, 2}, DType::kFloat64);
    CHECK_THROWS_AS(kernels::conv_forward(g, x64.piece, mw.piece.view, std::nullopt, y.piece),
                    DTypeError);
    const Memory late({{1, 0, 0}, {2, 8, 2}}, {2, 8, 2}, DType::kFloat32);
    CHECK_THROWS_AS(kernels::conv_forward(g, late.piece, mw.piece.view, std::nullopt, y.piece),
                    ShapeError);
  }
}

}  // namespace
}  // namespace tessera
