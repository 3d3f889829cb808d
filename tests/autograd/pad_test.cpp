// ranks: 1 2 3 4 6 8
// deep: 1 4
#include <algorithm>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/shape.hpp>

#include "support/cuts.hpp"
#include "support/op_table.hpp"
#include "window_call.hpp"

namespace tessera::test {
namespace {

InputSpec whole(InputSpec spec) {
  spec.partial = false;
  return spec;
}

DenseArray padded(
    const DenseArray& x, const Dims& lo, const Dims& hi, EdgeRule edge, double value) {
  Shape shape = x.shape;
  for (int d = 0; d < shape.size(); ++d) shape[d] += lo[d] + hi[d];
  DenseArray y(shape);
  for_each(shape, [&](const Index& i) {
    Index from = i;
    bool there = true;
    for (int d = 0; d < shape.size(); ++d) {
      from[d] = map_edge(edge, i[d] - lo[d], x.shape[d]);
      there = there && from[d] >= 0;
    }
    y[i] = there ? x[from] : value;
  });
  return y;
}

OpCase pad_case(const Shape& x,
                const Dims& lo,
                const Dims& hi,
                EdgeRule edge = EdgeRule::kZero,
                double value = 0) {
  OpCase c;
  c.inputs = {whole(uniform(x))};
  c.f = [=](const std::vector<Tensor>& in) { return std::vector{pad(in[0], lo, hi, edge, value)}; };
  c.reference = [=](const std::vector<DenseArray>& in) {
    return std::vector{padded(in[0], lo, hi, edge, value)};
  };
  if (value == 0) c.linear = {{0}};
  c.exact = true;
  c.random_cuts = 6;
  return c;
}

DenseArray sliced(
    const DenseArray& x, int dim, std::int64_t start, std::int64_t stop, std::int64_t step) {
  Shape shape = x.shape;
  shape[dim] = (stop - start + step - 1) / step;
  DenseArray y(shape);
  for_each(shape, [&](const Index& i) {
    Index from = i;
    from[dim] = start + i[dim] * step;
    y[i] = x[from];
  });
  return y;
}

OpCase slice_case(
    const Shape& x, int dim, std::int64_t start, std::int64_t stop, std::int64_t step = 1) {
  OpCase c;
  c.inputs = {whole(uniform(x))};
  c.f = [=](const std::vector<Tensor>& in) {
    return std::vector{slice(in[0], dim, start, stop, step)};
  };
  c.reference = [=](const std::vector<DenseArray>& in) {
    return std::vector{sliced(in[0], dim, start, stop, step)};
  };
  c.linear = {{0}};
  c.exact = true;
  c.random_cuts = 6;
  return c;
}

DenseArray joined(const std::vector<DenseArray>& parts, int dim) {
  Shape shape = parts[0].shape;
  shape[dim] = 0;
  for (const DenseArray& p : parts) shape[dim] += p.shape[dim];
  DenseArray y(shape);
  std::int64_t at = 0;
  for (const DenseArray& p : parts) {
    for_each(p.shape, [&](const Index& i) {
      Index to = i;
      to[dim] += at;
      y[to] = p[i];
    });
    at += p.shape[dim];
  }
  return y;
}

OpCase concat_case(const std::vector<Shape>& shapes, int dim) {
  OpCase c;
  std::vector<int> all;
  for (const Shape& s : shapes) {
    all.push_back(static_cast<int>(c.inputs.size()));
    c.inputs.push_back(whole(uniform(s)));
  }
  c.f = [=](const std::vector<Tensor>& in) { return std::vector{concat(in, dim)}; };
  c.reference = [=](const std::vector<DenseArray>& in) { return std::vector{joined(in, dim)}; };
  c.may_throw = disagree;
  c.linear = {all};
  c.exact = true;
  c.random_cuts = 8;
  return c;
}

/// Element (n, d r + a, ..., c) of the fine array is (n, d, ..., (a..., c)) of the coarse one.
template <class F>
void for_each_shuffled(const Shape& fine, std::int64_t r, const F& f) {
  for_each(fine, [&](const Index& i) {
    Index coarse = i;
    std::int64_t channel = 0;
    for (int d = 1; d + 1 < fine.size(); ++d) {
      coarse[d] = i[d] / r;
      channel = channel * r + i[d] % r;
    }
    coarse.back() = channel * fine.back() + i.back();
    f(i, coarse);
  });
}

OpCase shuffle_case(const Shape& x, std::int64_t r, bool up) {
  OpCase c;
  c.inputs = {whole(uniform(x))};
  c.f = [=](const std::vector<Tensor>& in) {
    return std::vector{up ? pixel_shuffle(in[0], r) : pixel_unshuffle(in[0], r)};
  };
  c.reference = [=](const std::vector<DenseArray>& in) {
    const int dims = x.size() - 2;
    Shape shape = x;
    for (int d = 0; d < dims; ++d) {
      shape[d + 1] = up ? x[d + 1] * r : x[d + 1] / r;
      shape.back() = up ? shape.back() / r : shape.back() * r;
    }
    DenseArray y(shape);
    for_each_shuffled(up ? shape : x, r, [&](const Index& fine, const Index& coarse) {
      y[up ? fine : coarse] = in[0][up ? coarse : fine];
    });
    return std::vector{y};
  };
  c.linear = {{0}};
  c.exact = true;
  c.unsupported = [=](const std::vector<Layout>& in) {
    const Layout& l = in[0];
    if (l.is_split(l.dims() - 1)) return true;  // channels would move between ranks
    for (int d = 1; !up && d + 1 < l.dims(); ++d)
      for (const std::int64_t b : l.split(d).bounds)
        if (b % r != 0) return true;
    return false;
  };
  c.random_cuts = 6;
  return c;
}

constexpr EdgeRule kZero = EdgeRule::kZero, kCircular = EdgeRule::kCircular,
                   kReflect = EdgeRule::kReflect, kReplicate = EdgeRule::kReplicate;

}  // namespace

OP_TEST("pad with zeros") { return pad_case({2, 5, 4, 2}, {0, 1, 2, 0}, {0, 2, 0, 0}); }
OP_TEST("pad with a constant") { return pad_case({2, 5, 3}, {1, 0, 1}, {0, 3, 0}, kZero, -1.5); }
OP_TEST("pad, circular") { return pad_case({1, 5, 4, 2}, {0, 2, 1, 0}, {0, 1, 3, 0}, kCircular); }
OP_TEST("pad, circular for more than one turn") {
  return pad_case({1, 3, 2}, {0, 7, 0}, {0, 5, 0}, kCircular);
}
OP_TEST("pad, reflect") { return pad_case({1, 6, 4, 2}, {0, 2, 1, 0}, {0, 3, 3, 0}, kReflect); }
OP_TEST("pad, reflect for more than one turn") {
  return pad_case({1, 3, 1}, {0, 5, 0}, {0, 6, 0}, kReflect);
}
OP_TEST("pad, replicate") { return pad_case({2, 5, 3}, {0, 2, 1}, {0, 4, 0}, kReplicate); }
OP_TEST("pad, crop") { return pad_case({2, 9, 5, 2}, {0, -2, -1, 0}, {0, -3, 0, 0}); }
OP_TEST("pad and crop, wider than a part") {
  return pad_case({1, 9, 2}, {0, 4, 0}, {0, -5, 0}, kCircular);
}
OP_TEST("crop and pad, replicate") {
  return pad_case({1, 8, 2}, {0, -6, 0}, {0, 3, 0}, kReplicate);
}
OP_TEST("pad nothing") { return pad_case({2, 4, 2}, {0, 0, 0}, {0, 0, 0}); }
OP_TEST("pad a pending sum") {
  OpCase c = pad_case({2, 5, 3}, {0, 2, 0}, {0, 1, 0}, kReflect);
  c.inputs[0].partial = true;
  c.exact = false;
  return c;
}
OP_TEST("pad a pending sum with a constant") {
  OpCase c = pad_case({2, 5, 3}, {0, 2, 0}, {0, 1, 0}, kZero, 2.0);
  c.inputs[0].partial = true;
  c.exact = false;
  return c;
}

RANDOM_OP_TEST("pad, random widths") {
  const int dims = static_cast<int>(rng.integer(1, 4));
  Shape x;
  Dims lo, hi;
  for (int d = 0; d < dims; ++d) {
    x.push_back(rng.integer(1, 6));
    lo.push_back(rng.integer(-2, 4));
    hi.push_back(rng.integer(-2, 4));
    while (x[d] + lo[d] + hi[d] < 1) ++lo[d];
  }
  return pad_case(x, lo, hi, static_cast<EdgeRule>(rng.integer(0, 3)));
}

TEST_CASE("pad computes the interior first where that pays: the same bits") {
  struct Threshold {
    Threshold() { set_overlap_threshold(0); }
    ~Threshold() { set_overlap_threshold(kOverlapThreshold); }
  } always;
  report(check_op(pad_case({2, 9, 7}, {0, 1, 2}, {0, 2, 1}, kCircular)));
}

OP_TEST("slice") { return slice_case({2, 7, 3}, 1, 2, 5); }
OP_TEST("slice with steps") { return slice_case({2, 11, 3}, 1, 1, 10, 3); }
OP_TEST("slice of channels") { return slice_case({2, 4, 7}, -1 + 3, 3, 7, 2); }
OP_TEST("slice of samples, one element") { return slice_case({5, 4, 2}, 0, 3, 4); }
OP_TEST("slice of everything") { return slice_case({2, 6, 2}, 1, 0, 6); }
OP_TEST("slice of a pending sum") {
  OpCase c = slice_case({2, 7, 3}, 1, 1, 6, 2);
  c.inputs[0].partial = true;
  c.exact = false;
  return c;
}
RANDOM_OP_TEST("slice, random") {
  Shape x;
  const int dims = static_cast<int>(rng.integer(1, 4));
  for (int d = 0; d < dims; ++d) x.push_back(rng.integer(1, 7));
  const int dim = static_cast<int>(rng.integer(0, dims - 1));
  const std::int64_t start = rng.integer(0, x[dim] - 1);
  return slice_case(x, dim, start, rng.integer(start + 1, x[dim]), rng.integer(1, 3));
}

OP_TEST("split") {
  OpCase c;
  c.inputs = {whole(uniform({2, 9, 3}))};
  c.f = [](const std::vector<Tensor>& in) { return split(in[0], {2, 1, 6}, 1); };
  c.reference = [](const std::vector<DenseArray>& in) {
    return std::vector{sliced(in[0], 1, 0, 2, 1), sliced(in[0], 1, 2, 3, 1),
                       sliced(in[0], 1, 3, 9, 1)};
  };
  c.linear = {{0}};
  c.exact = true;
  return c;
}

OP_TEST("concat along channels") { return concat_case({{2, 4, 3}, {2, 4, 5}}, 2); }
OP_TEST("concat along the domain") { return concat_case({{2, 4, 3}, {2, 7, 3}, {2, 1, 3}}, 1); }
OP_TEST("concat along samples") { return concat_case({{3, 4}, {2, 4}}, 0); }
OP_TEST("concat with nothing") { return concat_case({{2, 0, 3}, {2, 5, 3}}, 1); }
OP_TEST("concat of more than one call takes") {
  OpCase c = concat_case(std::vector<Shape>(11, Shape{2, 2}), 1);
  c.random_cuts = 2;
  c.all_cuts = false;
  return c;
}
OP_TEST("concat of pending sums") {
  OpCase c = concat_case({{2, 4, 3}, {2, 3, 3}}, 1);
  for (InputSpec& input : c.inputs) input.partial = true;
  c.exact = false;
  return c;
}
TEST_CASE("concat keeps the rows of all parts where the boundaries add up") {
  const int n = process().count;
  const Mesh mesh = Mesh::world({{"h", n}});
  const auto spread = [&](std::int64_t per_rank) {
    const Layout l = Layout::make(mesh, {1, per_rank * n, 2}, {{}, {{0}, {}}, {}});
    return to_tensor(random_array(l.shape(), 1), l);
  };
  const Tensor y = concat({spread(2), spread(3)}, 1);
  for (int p = 0; p <= n; ++p)
    CHECK((n == 1 || y.layout().split(1).bounds[static_cast<std::size_t>(p)] == 5 * p));
  // along another dimension nothing moves
  Tensor z;
  expect_traffic(0, 0, [&] { z = concat({spread(2), spread(2)}, 2); });
  CHECK(z.layout().split(1).bounds == spread(2).layout().split(1).bounds);
}

OP_TEST("pixel_shuffle") { return shuffle_case({2, 3, 4, 8}, 2, true); }
OP_TEST("pixel_shuffle in one and three dimensions") {
  return shuffle_case({1, 2, 3, 2, 16}, 2, true);
}
OP_TEST("pixel_shuffle, factor 3") { return shuffle_case({1, 5, 6}, 3, true); }
OP_TEST("pixel_unshuffle") { return shuffle_case({2, 6, 4, 3}, 2, false); }
OP_TEST("pixel_unshuffle, factor 3") { return shuffle_case({1, 12, 2}, 3, false); }

TEST_CASE("pad, slice, split, concat and pixel_shuffle explain what does not fit") {
  const auto zeros = [](const Shape& s, DType t = DType::kFloat32) {
    return Tensor::zeros(Layout::replicated(Mesh::self(), s), t);
  };
  const Tensor x = zeros({2, 4, 3});
  CHECK_THROWS_AS(pad(x, {0, 1}, {0, 1}), ShapeError);
  CHECK_THROWS_AS(pad(x, {0, -3, 0}, {0, -2, 0}), ShapeError);
  CHECK_THROWS_AS(pad(zeros({2, 0, 3}), {0, 1, 0}, {0, 0, 0}, kReflect), ShapeError);
  CHECK_THROWS_AS(pad(x, {0, 1, 0}, {0, 0, 0}, kCircular, 1.0), UsageError);
  CHECK_THROWS_AS(slice(x, 1, 2, 5), ShapeError);
  CHECK_THROWS_AS(slice(x, 1, 3, 2), ShapeError);
  CHECK_THROWS_AS(slice(x, 1, 0, 4, 0), ShapeError);
  CHECK_THROWS_AS(slice(x, 3, 0, 1), ShapeError);
  CHECK_THROWS_AS(split(x, {1, 2}, 1), ShapeError);
  CHECK_THROWS_AS(concat({}, 0), UsageError);
  CHECK_THROWS_AS(concat({x, zeros({2, 4, 2})}, 1), ShapeError);
  CHECK_THROWS_AS(concat({x, zeros({2, 4})}, 1), ShapeError);
  CHECK_THROWS_AS(concat({x, zeros({2, 4, 3}, DType::kFloat64)}, 1), DTypeError);
  CHECK_THROWS_AS(pixel_shuffle(x, 2), ShapeError);
  CHECK_THROWS_AS(pixel_unshuffle(x, 3), ShapeError);
  CHECK(slice(x, 1, 2, 2).shape() == Shape{2, 0, 3});
}

OP_TABLE("pad") { return pad_case({2, n, 3}, {0, 2, 0}, {0, 1, 1}); }
OP_TABLE("slice") { return slice_case({2, n + 3, 3}, 1, 1, n + 2, 2); }
OP_TABLE("split") {
  OpCase c = slice_case({2, n + 3, 3}, 1, 0, n + 1);
  c.f = [n](const std::vector<Tensor>& in) { return split(in[0], {n + 1, 2}, 1); };
  c.reference = [n](const std::vector<DenseArray>& in) {
    return std::vector{sliced(in[0], 1, 0, n + 1, 1), sliced(in[0], 1, n + 1, n + 3, 1)};
  };
  return c;
}
OP_TABLE("concat") { return concat_case({{2, n, 3}, {2, n + 2, 3}}, 1); }
// Where there is nothing, or one element, some splits are legal that are not for more of them.
OP_TABLE("pixel_shuffle") {
  OpCase c = shuffle_case({2, n, 3, 8}, 2, true);
  std::swap(c.may_throw, c.unsupported);
  return c;
}
OP_TABLE("pixel_unshuffle") {
  OpCase c = shuffle_case({2, 2 * n, 4, 3}, 2, false);
  std::swap(c.may_throw, c.unsupported);
  return c;
}

}  // namespace tessera::test
