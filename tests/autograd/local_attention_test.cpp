// ranks: 1 2 3 4
// deep: 1 4
// Neighbourhood and window attention against lists of keys made from the definitions.

#include <algorithm>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/local_attention.hpp>
#include <tessera/autograd/ops/reduce.hpp>

#include "support/op_table.hpp"
#include "window_call.hpp"

namespace tessera::test {
namespace {

std::int64_t of(const Dims& values, int d, std::int64_t standard) {
  return values.empty() ? standard : values[values.size() == 1 ? 0 : d];
}
bool of(const std::vector<bool>& values, int d) {
  return !values.empty() && values[values.size() == 1 ? 0 : static_cast<std::size_t>(d)];
}

/// A key along one dimension, and how many steps it lies behind the query.
struct Key {
  std::int64_t at, offset;
};
/// The keys of query i along dimension d of size n, in order.
using Keys = std::function<std::vector<Key>(int d, std::int64_t n, std::int64_t i)>;

Keys neighbors(const NeighborhoodOptions& o) {
  return [o](int d, std::int64_t n, std::int64_t i) {
    const std::int64_t kernel = of(o.kernel, d, 0), dilation = of(o.dilation, d, 1);
    const std::int64_t stride = of(o.stride, d, 1);
    const bool causal = of(o.causal, d), closed = of(o.circular, d);
    std::vector<std::int64_t> members;
    for (std::int64_t c = 0; c < n; ++c)
      if (c % dilation == i % dilation) members.push_back(c);
    const auto m = static_cast<std::int64_t>(members.size());
    const std::int64_t own = std::find(members.begin(), members.end(), i) - members.begin();
    std::int64_t leader = own;
    while (leader % stride != 0) --leader;
    leader += causal ? stride - 1 : stride / 2;
    if (!closed && leader >= m) leader = m - 1;
    std::int64_t first = causal ? leader - kernel + 1 : leader - kernel / 2;
    while (!closed && !causal && first < 0) ++first;
    while (!closed && !causal && first + kernel > m) --first;
    std::vector<Key> keys;
    for (std::int64_t t = first; t < first + kernel; ++t) {
      if (causal && (t > own || (t < 0 && !closed))) continue;
      keys.push_back({members[static_cast<std::size_t>((t + m) % m)], t - own});
    }
    return keys;
  };
}

/// As Swin does it: shift, cut into windows, and mask what was not adjacent.
Keys blocks(const WindowAttentionOptions& o) {
  return [o](int d, std::int64_t n, std::int64_t i) {
    const std::int64_t window = of(o.window, d, 0), shift = of(o.shift, d, 0);
    std::vector<Key> keys;
    if (of(o.circular, d) || n % window == 0) {
      const auto shifted = [&](std::int64_t x) { return (x - shift + n) % n; };
      const std::int64_t own = shifted(i);
      for (std::int64_t s = own / window * window; s < own / window * window + window; ++s) {
        const std::int64_t j = (s + shift) % n;
        const bool adjacent = (i < shift) == (j < shift);
        if (adjacent || of(o.circular, d)) keys.push_back({j, s - own});
      }
      std::sort(keys.begin(), keys.end(), [](Key a, Key b) { return a.offset < b.offset; });
      return keys;
    }
    const auto block = [&](std::int64_t x) {
      return std::floor(static_cast<double>(x - shift) / static_cast<double>(window));
    };
    for (std::int64_t j = 0; j < n; ++j)
      if (block(j) == block(i)) keys.push_back({j, j - i});
    return keys;
  };
}

/// Inputs q, k, v and bias or absent; `extents` of the table of biases.
DenseArray reference(const std::vector<DenseArray>& x,
                     const Keys& keys_along,
                     const Dims& extents,
                     double scale) {
  const DenseArray &q = x[0], &k = x[1], &v = x[2], &bias = x[3];
  const int dims = q.shape.size() - 3;
  const std::int64_t depth = q.shape.back(), width = v.shape.back();
  const std::int64_t ratio = q.shape[dims + 1] / k.shape[dims + 1];
  Shape shape = q.shape;
  shape.back() = width;
  DenseArray out(shape);
  Shape rows = q.shape;
  rows.resize(dims + 2);
  for_each(rows, [&](const Index& i) {
    struct Pair {
      Index key, place;
      double score;
    };
    std::vector<Pair> pairs;
    Shape counts;
    std::vector<std::vector<Key>> along;
    for (int d = 0; d < dims; ++d) {
      along.push_back(keys_along(d, q.shape[d + 1], i[d + 1]));
      counts.push_back(static_cast<std::int64_t>(along.back().size()));
    }
    double top = -INFINITY, total = 0.0;
    for_each(counts, [&](const Index& t) {
      Pair p{{i[0]}, {i[dims + 1]}, 0.0};
      for (int d = 0; d < dims; ++d) {
        const Key& key = along[static_cast<std::size_t>(d)][static_cast<std::size_t>(t[d])];
        p.key.push_back(key.at);
        p.place.push_back(key.offset + of(extents, d, 0) - 1);
      }
      p.key.push_back(i[dims + 1] / ratio);
      p.key.push_back(0);
      Index qi = i;
      qi.push_back(0);
      for (std::int64_t c = 0; c < depth; ++c) {
        p.key.back() = qi.back() = c;
        p.score += scale * q[qi] * k[p.key];
      }
      if (!bias.absent) p.score += bias[p.place];
      top = std::max(top, p.score);
      pairs.push_back(p);
    });
    for (Pair& p : pairs) total += p.score = std::exp(p.score - top);
    for (Pair& p : pairs) {
      Index oi = i;
      oi.push_back(0);
      for (std::int64_t c = 0; c < width; ++c) {
        p.key.back() = oi.back() = c;
        out[oi] += p.score / total * v[p.key];
      }
    }
  });
  return out;
}

/// Placements that may be refused: all but those in which each mesh axis splits samples or one
/// domain dimension, alone and of all tensors that are split there.
bool may_refuse(const std::vector<Layout>& layouts) {
  std::vector<AxisMask> of_dim(kMaxDims);
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const Layout& l = layouts[i];
    if (!l.defined()) continue;
    for (int d = 0; d < l.dims(); ++d) {
      const AxisMask axes = l.axes_of(d);
      if (axes == 0) continue;
      // Boundaries of heads may cut a group; the bias has only heads to split.
      if (i == 3 || d >= l.dims() - 2) return true;
      AxisMask& known = of_dim[static_cast<std::size_t>(d)];
      if (known != 0 && known != axes) return true;
      known = axes;
    }
  }
  AxisMask taken = 0;
  for (const AxisMask axes : of_dim) {
    if ((taken & axes) != 0 || (axes & (axes - 1)) != 0) return true;
    taken |= axes;
  }
  return false;
}

InputSpec tokens(const Shape& shape) {
  InputSpec spec = uniform(shape);
  spec.partial = false;
  spec.cuttable = {};
  for (int d = 0; d + 1 < shape.size(); ++d) spec.cuttable.push_back(d);
  return spec;
}

/// Heads of a relative bias for windows of `extents`.
InputSpec table(std::int64_t heads, const Dims& extents, int dims) {
  Shape shape{heads};
  for (int d = 0; d < dims; ++d) shape.push_back(2 * of(extents, d, 0) - 1);
  InputSpec spec = uniform(shape);
  spec.partial = false;
  spec.cuttable = {0};
  return spec;
}

struct Tokens {
  Shape domain;
  std::int64_t samples = 1, heads = 1, key_heads = 1, depth = 2, width = 2;
  bool bias = false;
  double scale = 0.0;  // 0: 1 / sqrt(D)

  Shape shape(std::int64_t h, std::int64_t channels) const {
    Shape s{samples};
    for (const std::int64_t n : domain) s.push_back(n);
    s.push_back(h);
    s.push_back(channels);
    return s;
  }
};

template <class Options>
OpCase local_case(const Tokens& t,
                  Options options,
                  const Dims& extents,
                  const Keys& keys,
                  Tensor (*op)(const Tensor&, const Tensor&, const Tensor&, const Options&)) {
  if (t.scale != 0.0) options.scale = t.scale;
  const double scale = t.scale != 0.0 ? t.scale : 1 / std::sqrt(double(t.depth));
  OpCase c;
  c.inputs = {tokens(t.shape(t.heads, t.depth)), tokens(t.shape(t.key_heads, t.depth)),
              tokens(t.shape(t.key_heads, t.width)),
              t.bias ? table(t.heads, extents, t.domain.size()) : absent()};
  c.f = [=](const std::vector<Tensor>& x) {
    Options with_bias = options;
    with_bias.bias = x[3];
    return std::vector{op(x[0], x[1], x[2], with_bias)};
  };
  c.reference = [=](const std::vector<DenseArray>& x) {
    return std::vector{reference(x, keys, extents, scale)};
  };
  c.may_throw = may_refuse;
  c.tolerance = 1e-10;
  c.fp32_tolerance = 1e-5;
  c.exact = true;
  c.random_cuts = 6;
  c.variants = 1;
  return c;
}

OpCase near_case(const Tokens& t, const NeighborhoodOptions& o) {
  return local_case(t, o, o.kernel, neighbors(o), neighborhood_attention);
}
OpCase window_case(const Tokens& t, const WindowAttentionOptions& o) {
  return local_case(t, o, o.window, blocks(o), window_attention);
}

struct OverlapThreshold {
  explicit OverlapThreshold(std::int64_t bytes) { set_overlap_threshold(bytes); }
  ~OverlapThreshold() { set_overlap_threshold(kOverlapThreshold); }
};

}  // namespace

OP_TEST("neighbourhood, one dimension, odd kernel") {
  return near_case({.domain = {11}, .samples = 2, .heads = 2, .key_heads = 2, .depth = 3},
                   {.kernel = {5}});
}
OP_TEST("neighbourhood, one dimension, even kernel, dilation, bias") {
  return near_case({.domain = {13}, .heads = 2, .key_heads = 1, .width = 3, .bias = true},
                   {.kernel = {4}, .dilation = {3}});
}
OP_TEST("neighbourhood, kernel as large as the domain") {
  return near_case({.domain = {6}, .bias = true}, {.kernel = {6}});
}
OP_TEST("neighbourhood, two dimensions, grouped heads") {
  return near_case({.domain = {5, 6}, .samples = 2, .heads = 4, .key_heads = 2},
                   {.kernel = {3, 4}});
}
OP_TEST("neighbourhood, two dimensions, stride, bias") {
  return near_case({.domain = {7, 5}, .heads = 2, .key_heads = 2, .bias = true, .scale = 0.8},
                   {.kernel = {4, 3}, .stride = {3, 2}});
}
OP_TEST("neighbourhood, causal and circular") {
  return near_case({.domain = {6, 5}, .bias = true},
                   {.kernel = {3, 4}, .causal = {true, false}, .circular = {false, true}});
}
OP_TEST("neighbourhood, causal with stride, circular with dilation") {
  return near_case({.domain = {7, 6}}, {.kernel = {4, 3},
                                        .dilation = {1, 2},
                                        .stride = {3, 2},
                                        .causal = {true, true},
                                        .circular = {false, true}});
}
OP_TEST("neighbourhood, three dimensions") {
  return near_case({.domain = {3, 4, 3}, .heads = 2, .key_heads = 1, .bias = true},
                   {.kernel = {2, 3, 3}, .causal = {true, false, false}});
}

OP_TEST("windows, one dimension, shifted, bias") {
  return window_case({.domain = {12}, .samples = 2, .heads = 2, .key_heads = 2, .bias = true},
                     {.window = {4}, .shift = {2}});
}
OP_TEST("windows, sizes that are no multiples") {
  return window_case({.domain = {7, 5}, .heads = 2, .key_heads = 1},
                     {.window = {3, 2}, .shift = {1, 0}});
}
OP_TEST("windows, one circular dimension") {
  return window_case({.domain = {6, 5}, .bias = true},
                     {.window = {3, 4}, .shift = {2, 3}, .circular = {true, false}});
}
OP_TEST("windows, three dimensions") {
  return window_case({.domain = {3, 4, 4}, .heads = 2, .key_heads = 2},
                     {.window = {2, 2, 3}, .shift = {1, 1, 0}});
}

OP_TABLE("neighborhood_attention", TableOptions{.refuses = [](auto n) { return n < 3; }}) {
  return near_case({.domain = {n, 4}, .samples = 2}, {.kernel = {3}});
}
OP_TABLE("window_attention", TableOptions{.refuses = [](auto n) { return n < 3; }}) {
  return window_case({.domain = {n, 4}, .samples = 2}, {.window = {3}, .shift = {1}});
}

RANDOM_OP_TEST("neighbourhood, random geometry") {
  const int dims = static_cast<int>(rng.integer(1, 3));
  Tokens t;
  NeighborhoodOptions o;
  t.samples = rng.integer(1, 2);
  t.key_heads = rng.integer(1, 2);
  t.heads = t.key_heads * rng.integer(1, 2);
  t.depth = rng.integer(1, 3);
  t.width = rng.integer(1, 3);
  t.bias = rng.coin();
  for (int d = 0; d < dims; ++d) {
    const std::int64_t kernel = rng.integer(1, dims == 3 ? 2 : 4);
    const std::int64_t dilation = rng.integer(1, dims == 3 ? 2 : 3);
    const bool circular = rng.coin(0.3);
    const std::int64_t extra = rng.integer(0, dims == 1 ? 9 : dims == 2 ? 3 : 1);
    t.domain.push_back(kernel * dilation + (circular ? dilation * (extra / dilation) : extra));
    o.kernel.push_back(kernel);
    o.dilation.push_back(dilation);
    o.stride.push_back(rng.integer(1, kernel));
    o.causal.push_back(rng.coin(0.3));
    o.circular.push_back(circular);
  }
  return near_case(t, o);
}

RANDOM_OP_TEST("windows, random geometry") {
  const int dims = static_cast<int>(rng.integer(1, 3));
  Tokens t;
  WindowAttentionOptions o;
  t.samples = rng.integer(1, 2);
  t.key_heads = rng.integer(1, 2);
  t.heads = t.key_heads * rng.integer(1, 2);
  t.bias = rng.coin();
  for (int d = 0; d < dims; ++d) {
    const std::int64_t window = rng.integer(1, dims == 3 ? 2 : 4);
    const bool circular = rng.coin(0.3);
    const std::int64_t most = dims == 1 ? 12 : dims == 2 ? 5 : 3;
    t.domain.push_back(circular ? window * rng.integer(1, 2) : rng.integer(window, most));
    o.window.push_back(window);
    o.shift.push_back(rng.integer(0, window - 1));
    o.circular.push_back(circular);
  }
  return window_case(t, o);
}

TEST_CASE("local attention computes the interior first where that pays: the same bits") {
  const OverlapThreshold always(0);
  report(check_op(near_case({.domain = {13, 6}, .heads = 2, .key_heads = 1, .bias = true},
                            {.kernel = {3, 3}, .circular = {false, true}})));
  report(check_op(near_case({.domain = {17}, .samples = 2}, {.kernel = {3}, .dilation = {2}})));
  report(check_op(window_case({.domain = {12, 5}, .bias = true},
                              {.window = {3, 3}, .shift = {1, 2}, .circular = {true, false}})));
}

OP_TEST("neighbourhood, pending sums as inputs") {
  OpCase c = near_case({.domain = {7}, .samples = 2, .heads = 2, .key_heads = 2, .bias = true},
                       {.kernel = {3}});
  for (InputSpec& input : c.inputs) input.partial = true;
  c.exact = false;
  return c;
}

TEST_CASE("large and equal logits stay finite") {
  for (const double size : {80.0, 1e4}) {
    DenseArray q({1, 9, 1, 2}, size), k({1, 9, 1, 2}, 1.0);
    for (std::int64_t i = 0; i < 9; ++i) k(0, i, 0, 0) = i % 2 == 0 ? 1.0 : -1.0;
    const DenseArray v = random_array({1, 9, 1, 3}, 5);
    const NeighborhoodOptions o{.kernel = {4}, .scale = 1.0};
    for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
      const Tensor tq = require_grad(to_self(q, dtype)), tk = require_grad(to_self(k, dtype));
      const Tensor tv = require_grad(to_self(v, dtype));
      const Tensor out = neighborhood_attention(tq, tk, tv, o);
      DenseArray none;
      none.absent = true;
      report(compare("out", to_dense(out), reference({q, k, v, none}, neighbors(o), o.kernel, 1.0),
                     dtype == DType::kFloat64 ? 1e-12 : 1e-5));
      for (const Tensor& g : grad({sum(out * out)}, {tq, tk, tv}))
        CHECK(std::isfinite(to_dense(g).largest()));
    }
  }
}

TEST_CASE("gradients, too, have the bits of one rank") {
  const Mesh mesh = Mesh::world({{"h", process().count}});
  const Shape queries{2, 21, 19, 4, 3}, keys{2, 21, 19, 2, 3};
  const std::vector<DenseArray> x{random_array(queries, 1), random_array(keys, 2),
                                  random_array(keys, 3), random_array(queries, 4)};
  const auto gradients = [&](int dim) {
    std::vector<Tensor> t;
    for (const DenseArray& a : x) {
      std::vector<DimSplit> splits(5);
      if (dim > 0) splits[static_cast<std::size_t>(dim)] = {{0}, {}};
      t.push_back(dim > 0 ? to_tensor(a, Layout::make(mesh, a.shape, splits), DType::kFloat32)
                          : to_self(a, DType::kFloat32));
    }
    for (int i = 0; i < 3; ++i)
      t[static_cast<std::size_t>(i)] = require_grad(t[static_cast<std::size_t>(i)]);
    const Tensor near = neighborhood_attention(
        t[0], t[1], t[2], {.kernel = {5, 4}, .stride = {2}, .circular = {false, true}});
    const Tensor block = window_attention(t[0], t[1], t[2], {.window = {4}, .shift = {1, 2}});
    std::vector<DenseArray> all;
    for (const Tensor& y : {near, block})
      for (const Tensor& g : grad({y}, {t[0], t[1], t[2]}, {}, {t[3]})) all.push_back(to_dense(g));
    return all;
  };
  const std::vector<DenseArray> whole = gradients(0);
  for (const int dim : {1, 2}) {
    const std::vector<DenseArray> cut = gradients(dim);
    for (std::size_t i = 0; i < whole.size(); ++i) CHECK(cut[i].values == whole[i].values);
  }
}

TEST_CASE("only the rows that windows reach travel") {
  const int n = process().count;
  const Mesh mesh = Mesh::world({{"h", n}});
  const std::int64_t width = 3, heads = 2, depth = 4, key_heads = 1, rows = 8;
  const auto make = [&](std::int64_t h, std::uint64_t seed) {
    const Shape shape{1, rows * n, width, h, depth};
    return require_grad(to_tensor(random_array(shape, seed),
                                  Layout::make(mesh, shape, {{}, {{0}, {}}, {}, {}, {}})));
  };
  const Tensor q = make(heads, 1), k = make(key_heads, 2), v = make(key_heads, 3);
  const std::int64_t key_row = width * key_heads * depth * 8;
  const std::int64_t query_row = width * heads * (2 * depth + 2) * 8;  // q, dout, lse, delta
  const std::int64_t faces = 2 * (n - 1);
  Tensor y;
  const auto forward_and_back = [&](const auto& f, std::int64_t forward_rows,
                                    std::int64_t back_rows, std::int64_t messages) {
    expect_traffic(2 * forward_rows * key_row, messages, [&] { y = f(); });
    const Tensor dy = to_tensor(random_array(y.shape(), 4), y.layout());
    expect_traffic(2 * forward_rows * key_row + back_rows * query_row,
                   back_rows > 0 ? 2 * messages : messages, [&] {
                     grad({y}, {q, k, v}, {}, {dy});
                   });
  };
  // 3 rows on either side of each boundary, forward of k and v, backward of what lies with queries.
  forward_and_back(
      [&] {
        return neighborhood_attention(q, k, v, {.kernel = {7, 3}});
      },
      3 * faces, 3 * faces, faces);
  // Even: one row more in front; so the queries that see a key reach further behind.
  forward_and_back(
      [&] {
        return neighborhood_attention(q, k, v, {.kernel = {4, 3}});
      },
      (2 + 1) * (n - 1), (2 + 1) * (n - 1), faces);
  // Causal: keys come from in front, queries from behind.
  forward_and_back(
      [&] {
        return neighborhood_attention(q, k, v, {.kernel = {4, 3}, .causal = {true, false}});
      },
      3 * (n - 1), 3 * (n - 1), n - 1);
  // Blocks that parts hold whole do not communicate; shifted ones complete the blocks at the
  // boundaries: one row of a block of four lies in front of it, three behind.
  forward_and_back([&] { return window_attention(q, k, v, {.window = {4, 3}}); }, 0, 0, 0);
  forward_and_back(
      [&] {
        return window_attention(q, k, v, {.window = {4, 3}, .shift = {3, 0}});
      },
      4 * (n - 1), 4 * (n - 1), faces);
}

TEST_CASE("windows shift inwards at the ends: a part of one row reads what lies inside") {
  const int n = process().count;
  const Mesh mesh = Mesh::world({{"h", n}});
  const std::int64_t size = 12;
  Bounds bounds(static_cast<std::size_t>(n) + 1, size);
  bounds[0] = 0;
  if (n > 1) bounds[1] = 1;
  const Shape shape{1, size, 1, 2};
  const Layout layout = Layout::make(mesh, shape, {{}, {{0}, bounds}, {}, {}});
  const Tensor x = to_tensor(random_array(shape, 1), layout);
  // Rank 0 owns query 0, whose window is [0, 5): four rows of keys and values. Rank 1 lacks row 0.
  expect_traffic(n == 1 ? 0 : (4 + 1) * 2 * 2 * 8, n == 1 ? 0 : 2,
                 [&] { neighborhood_attention(x, x, x, {.kernel = {5}}); });
}

TEST_CASE("local attention explains what does not fit") {
  const auto zeros = [](const Shape& s, DType dtype = DType::kFloat32) {
    return Tensor::zeros(Layout::replicated(Mesh::self(), s), dtype);
  };
  const Tensor x = zeros({1, 6, 4, 2, 3});
  const auto near = [&](const NeighborhoodOptions& o) {
    return neighborhood_attention(x, x, x, o);
  };
  const auto window = [&](const WindowAttentionOptions& o) { return window_attention(x, x, x, o); };
  CHECK_THROWS_WITH(near({.kernel = {3, 5}}), Catch::Contains("kernel 5 does not fit size 4"));
  CHECK_THROWS_WITH(near({.kernel = {3}, .dilation = {2}}),
                    Catch::Contains("kernel 3 with dilation 2 does not fit size 4"));
  CHECK_THROWS_AS(near({}), UsageError);
  CHECK_THROWS_AS(near({.kernel = {3, 3, 3}}), ShapeError);
  CHECK_THROWS_AS(near({.kernel = {0}}), ShapeError);
  CHECK_THROWS_AS(near({.kernel = {2}, .stride = {3}}), ShapeError);
  CHECK_THROWS_AS(near({.kernel = {1}, .dilation = {4, 1}, .circular = {true}}), ShapeError);
  CHECK_THROWS_AS(near({.kernel = {3}, .causal = {true, true, true}}), ShapeError);
  CHECK_THROWS_WITH(near({.kernel = {3}, .bias = zeros({2, 5, 4})}),
                    Catch::Contains("is not [2, 5, 5]"));
  CHECK_THROWS_AS(near({.kernel = {3}, .bias = zeros({2, 5, 5}, DType::kInt64)}), DTypeError);
  CHECK_THROWS_WITH(window({.window = {7, 4}}), Catch::Contains("window 7 does not fit size 6"));
  CHECK_THROWS_AS(window({}), UsageError);
  CHECK_THROWS_AS(window({.window = {3}, .shift = {3}}), ShapeError);
  CHECK_THROWS_AS(window({.window = {4}, .circular = {true}}), ShapeError);
  const NeighborhoodOptions o{.kernel = {3}};
  CHECK_THROWS_AS(neighborhood_attention(zeros({6, 2, 3}), x, x, o), ShapeError);
  CHECK_THROWS_AS(neighborhood_attention(x, zeros({1, 5, 4, 2, 3}), x, o), ShapeError);
  CHECK_THROWS_WITH(neighborhood_attention(zeros({1, 6, 4, 3, 3}), x, x, o),
                    Catch::Contains("with H a multiple of H_kv"));
  CHECK_THROWS_AS(neighborhood_attention(x, zeros(x.shape(), DType::kFloat64), x, o), DTypeError);
  CHECK_THROWS_AS(neighborhood_attention(zeros(x.shape(), DType::kInt64), x, x, o), DTypeError);
}

}  // namespace tessera::test
