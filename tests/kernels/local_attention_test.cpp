// ranks: 1
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <tessera/core/threads.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/local_attention.hpp>

#include "kernels/pieces.hpp"

using namespace tessera;
using namespace tessera::test;
using kernels::LocalRule;

namespace {

std::int64_t wrapped(std::int64_t i, std::int64_t n) { return ((i % n) + n) % n; }

/// Whether query i of [0, n) sees virtual key j, from the definitions.
bool sees(const LocalRule& r, std::int64_t i, std::int64_t j) {
  if (r.circular == 0 && (j < 0 || j >= r.size)) return false;
  if (r.blocks != 0) {
    const auto block = [&](std::int64_t x) {
      return std::floor(static_cast<double>(x - r.shift) / static_cast<double>(r.extent));
    };
    return block(i) == block(j);
  }
  if (wrapped(j - i, r.dilation) != 0) return false;
  const std::int64_t residue = i % r.dilation;
  const std::int64_t a = (i - residue) / r.dilation, b = (j - residue) / r.dilation;
  std::int64_t m = 0;
  while (residue + m * r.dilation < r.size) ++m;
  std::int64_t leader = a;
  while (leader % r.stride != 0) --leader;
  leader += r.causal != 0 ? r.stride - 1 : r.stride / 2;
  if (r.circular == 0 && leader >= m) leader = m - 1;
  if (r.causal != 0) return b > leader - r.extent && b <= a;
  std::int64_t lo = leader - r.extent / 2;
  while (r.circular == 0 && lo < 0) ++lo;
  while (r.circular == 0 && lo + r.extent > m) --lo;
  return b >= lo && b < lo + r.extent;
}

std::vector<LocalRule> some_rules() {
  std::vector<LocalRule> rules;
  for (std::int64_t n = 1; n <= 11; ++n) {
    for (std::int64_t extent = 1; extent <= n; ++extent) {
      for (const std::int64_t circular : {0, 1}) {
        for (std::int64_t shift = 0; shift < extent && (circular == 0 || n % extent == 0); ++shift)
          rules.push_back(
              {.size = n, .extent = extent, .shift = shift, .blocks = 1, .circular = circular});
        for (std::int64_t dilation = 1; dilation * extent <= n; ++dilation) {
          if (circular != 0 && n % dilation != 0) continue;
          for (std::int64_t stride = 1; stride <= extent; ++stride) {
            for (const std::int64_t causal : {0, 1})
              rules.push_back({.size = n,
                               .extent = extent,
                               .dilation = dilation,
                               .stride = stride,
                               .causal = causal,
                               .circular = circular});
          }
        }
      }
    }
  }
  return rules;
}

struct Problem {
  std::vector<LocalRule> rules;
  std::int64_t samples = 1, heads = 1, key_heads = 1, depth = 4, width = 4;
  bool bias = false;
  DType dtype = DType::kFloat64;

  int dims() const { return static_cast<int>(rules.size()); }
  DType compute() const { return dtype == DType::kFloat64 ? dtype : DType::kFloat32; }
  Shape rows(std::int64_t h, std::int64_t channels) const {
    Shape s{samples};
    for (const LocalRule& r : rules) s.push_back(r.size);
    s.push_back(h);
    if (channels > 0) s.push_back(channels);
    return s;
  }
  Shape table() const {
    Shape s{heads};
    for (const LocalRule& r : rules) s.push_back(2 * r.extent - 1);
    return s;
  }
  kernels::LocalOptions options() const {
    kernels::LocalOptions o;
    for (int d = 0; d < dims(); ++d)
      o.rules[static_cast<std::size_t>(d)] = rules[static_cast<std::size_t>(d)];
    o.scale = 0.8 / std::sqrt(static_cast<double>(depth));
    return o;
  }
};

Index with(Index i, std::int64_t c) {
  i.push_back(c);
  return i;
}

/// Values and, by plain loops over all pairs, results and gradients.
struct Reference {
  Field q, k, v, bias, g, out, lse, delta, dq, dk, dv, dbias;

  Reference(const Problem& p, std::mt19937& random)
      : q(random_field(Box::whole(p.rows(p.heads, p.depth)), random, p.dtype)),
        k(random_field(Box::whole(p.rows(p.key_heads, p.depth)), random, p.dtype)),
        v(random_field(Box::whole(p.rows(p.key_heads, p.width)), random, p.dtype)),
        bias(random_field(Box::whole(p.table()), random, p.dtype)),
        g(random_field(Box::whole(p.rows(p.heads, p.width)), random, p.dtype)),
        out(g.box),
        lse(Box::whole(p.rows(p.heads, 0))),
        delta(lse.box),
        dq(q.box),
        dk(k.box),
        dv(v.box),
        dbias(bias.box) {
    const double scale = p.options().scale;
    const int dims = p.dims();
    for_each_index(lse.box, [&](const Index& i) {
      struct Pair {
        Index key, place;
        double s;
      };
      std::vector<Pair> pairs;
      // All virtual keys within one turn on either side.
      Box near = Box::whole(Shape{1});
      near.lo = near.hi = Dims();
      for (int d = 0; d < dims; ++d) {
        const LocalRule& r = p.rules[static_cast<std::size_t>(d)];
        near.lo.push_back(r.circular != 0 ? -r.size : 0);
        near.hi.push_back(r.circular != 0 ? 2 * r.size : r.size);
      }
      double top = -INFINITY, total = 0;
      for_each_index(near, [&](const Index& j) {
        Pair pair{{i[0]}, {i[dims + 1]}, 0};
        for (int d = 0; d < dims; ++d) {
          const LocalRule& r = p.rules[static_cast<std::size_t>(d)];
          if (!sees(r, i[d + 1], j[d])) return;
          pair.key.push_back(wrapped(j[d], r.size));
          pair.place.push_back((j[d] - i[d + 1]) / r.dilation + r.extent - 1);
        }
        pair.key.push_back(i[dims + 1] * p.key_heads / p.heads);
        for (std::int64_t c = 0; c < p.depth; ++c)
          pair.s += scale * q.get(with(i, c)) * k.get(with(pair.key, c));
        if (p.bias) pair.s += bias.get(pair.place);
        top = std::max(top, pair.s);
        pairs.push_back(pair);
      });
      for (Pair& pair : pairs) total += pair.s = std::exp(pair.s - top);
      lse.at(i) = top + std::log(total);
      for (Pair& pair : pairs) {
        pair.s /= total;
        for (std::int64_t c = 0; c < p.width; ++c) {
          out.at(with(i, c)) += pair.s * v.get(with(pair.key, c));
          dv.at(with(pair.key, c)) += pair.s * g.get(with(i, c));
        }
      }
      for (std::int64_t c = 0; c < p.width; ++c)
        delta.at(i) += out.get(with(i, c)) * g.get(with(i, c));
      for (const Pair& pair : pairs) {
        double dp = 0;
        for (std::int64_t c = 0; c < p.width; ++c)
          dp += g.get(with(i, c)) * v.get(with(pair.key, c));
        const double ds = pair.s * (dp - delta.get(i));
        dbias.at(pair.place) += ds;
        for (std::int64_t c = 0; c < p.depth; ++c) {
          dq.at(with(i, c)) += scale * ds * k.get(with(pair.key, c));
          dk.at(with(pair.key, c)) += scale * ds * q.get(with(i, c));
        }
      }
    });
  }
};

void check(const char* what, const Memory& actual, const Field& expected, double tolerance) {
  double largest = 0.1, worst = 0;
  for (const double x : expected.values) largest = std::max(largest, std::abs(x));
  for_each_index(actual.piece.box, [&](const Index& i) {
    const double a = actual.get(i);
    worst = std::max(worst, std::isfinite(a) ? std::abs(a - expected.get(i)) : INFINITY);
  });
  INFO(what << " is off by " << worst << ", largest " << largest);
  CHECK(worst <= tolerance * largest);
}

/// A part of a field in virtual coordinates.
Memory virtual_part(
    const Field& f, const Box& box, const Shape& global, DType dtype, std::mt19937* lie) {
  Memory m(box, global, dtype, lie);
  for_each_index(box, [&](const Index& i) {
    Index real = i;
    for (int d = 0; d < i.size(); ++d) real[d] = wrapped(i[d], global[d]);
    m.set(i, f.get(real));
  });
  return m;
}

/// Box of rows [N, domain..., heads(, channels)] with this domain and these heads.
Box box_of(const Problem& p, const Box& domain, Interval heads, std::int64_t channels) {
  Box box = Box::whole(p.rows(p.heads, channels));
  for (int d = 0; d < p.dims(); ++d) box.set(d + 1, domain[d]);
  box.set(p.dims() + 1, heads);
  return box;
}

void check_part(const Problem& p,
                const Reference& r,
                const Box& domain,
                Interval key_heads,
                std::mt19937* lie,
                double tolerance) {
  if (domain.empty() || key_heads.empty()) return;
  const std::int64_t group = p.heads / p.key_heads;
  const Interval heads{key_heads.lo * group, key_heads.hi * group};
  const kernels::LocalOptions options = p.options();
  Box keys = domain, queries = domain;
  for (int d = 0; d < p.dims(); ++d) {
    const LocalRule& rule = p.rules[static_cast<std::size_t>(d)];
    keys.set(d, rule.keys_needed(domain[d]));
    queries.set(d, rule.queries_needed(domain[d]));
  }
  const auto memory = [&](const Field& f, const Box& box, DType dtype) {
    return virtual_part(f, box, f.box.shape(), dtype, lie);
  };
  const auto fresh = [&](const Field& f, const Box& box, DType dtype) {
    return Memory(box, f.box.shape(), dtype, lie);
  };
  const Memory bias = memory(r.bias, r.bias.box, p.dtype);
  const Piece table = p.bias ? bias.piece : Piece{};
  {
    const Box own = box_of(p, domain, heads, p.depth), rows = box_of(p, domain, heads, p.width);
    const Box numbers = box_of(p, domain, heads, 0);
    const Memory q = memory(r.q, own, p.dtype), g = memory(r.g, rows, p.dtype);
    const Memory k = memory(r.k, box_of(p, keys, key_heads, p.depth), p.dtype);
    const Memory v = memory(r.v, box_of(p, keys, key_heads, p.width), p.dtype);
    Memory out = fresh(r.out, rows, p.dtype), lse = fresh(r.lse, numbers, p.compute());
    const kernels::LocalOperands x{q.piece, k.piece, v.piece, table};
    kernels::local_attention_forward(x, options, out.piece.view, lse.piece.view);
    check("out", out, r.out, tolerance);
    check("lse", lse, r.lse, std::min(tolerance, 1e-5));
    const Memory exact_lse = memory(r.lse, numbers, p.compute());
    Memory dq = fresh(r.q, own, p.dtype), delta = fresh(r.lse, numbers, p.compute());
    Memory dbias(r.bias.box, r.bias.box.shape(), p.compute(), lie);
    kernels::fill(dbias.piece.view, 0.0);
    kernels::local_attention_query_grad(x, options, exact_lse.piece.view, g.piece.view,
                                        dq.piece.view, delta.piece.view,
                                        p.bias ? dbias.piece.view : View{});
    check("dq", dq, r.dq, 5 * tolerance);
    check("delta", delta, r.delta, 5 * tolerance);
    if (p.bias && numbers == r.lse.box) check("dbias", dbias, r.dbias, 5 * tolerance);
  }
  const Memory q = memory(r.q, box_of(p, queries, heads, p.depth), p.dtype);
  const Memory g = memory(r.g, box_of(p, queries, heads, p.width), p.dtype);
  const Memory lse = memory(r.lse, box_of(p, queries, heads, 0), p.compute());
  const Memory delta = memory(r.delta, box_of(p, queries, heads, 0), p.compute());
  const Box own = box_of(p, domain, key_heads, p.depth);
  const Box rows = box_of(p, domain, key_heads, p.width);
  const Memory k = memory(r.k, own, p.dtype), v = memory(r.v, rows, p.dtype);
  Memory dk = fresh(r.k, own, p.dtype), dv = fresh(r.v, rows, p.dtype);
  kernels::local_attention_key_grad({q.piece, k.piece, v.piece, table}, options, lse.piece,
                                    delta.piece, g.piece, dk.piece.view, dv.piece.view);
  check("dk", dk, r.dk, 5 * tolerance);
  check("dv", dv, r.dv, 5 * tolerance);
}

void check_problem(const Problem& p, std::mt19937& random) {
  const Reference r(p, random);
  const double tolerance = p.dtype == DType::kFloat64   ? 1e-12
                           : p.dtype == DType::kFloat32 ? 5e-6
                                                        : 1.5e-2;
  Shape sizes;
  std::vector<int> dims;
  for (const LocalRule& rule : p.rules) {
    dims.push_back(sizes.size());
    sizes.push_back(rule.size);
  }
  const Interval heads{0, p.key_heads};
  check_part(p, r, Box::whole(sizes), heads, nullptr, tolerance);
  for (const Box& part : random_cut(Box::whole(sizes), random, dims))
    check_part(p, r, part, heads, &random, tolerance);
  const std::int64_t cut = random_in(random, 0, p.key_heads);
  for (const Interval some : {Interval{0, cut}, Interval{cut, p.key_heads}})
    check_part(p, r, Box::whole(sizes), some, &random, tolerance);
}

LocalRule near(std::int64_t size,
               std::int64_t kernel,
               std::int64_t dilation = 1,
               std::int64_t stride = 1,
               bool causal = false,
               bool circular = false) {
  return {.size = size,
          .extent = kernel,
          .dilation = dilation,
          .stride = stride,
          .causal = causal ? 1 : 0,
          .circular = circular ? 1 : 0};
}
LocalRule block(std::int64_t size,
                std::int64_t window,
                std::int64_t shift = 0,
                bool circular = false) {
  return {
      .size = size, .extent = window, .shift = shift, .blocks = 1, .circular = circular ? 1 : 0};
}

}  // namespace

TEST_CASE("runs of keys follow the definitions, those of queries invert them, hulls grow") {
  for (const LocalRule& r : some_rules()) {
    INFO("size " << r.size << " extent " << r.extent << " dilation " << r.dilation << " stride "
                 << r.stride << " shift " << r.shift << " blocks " << r.blocks << " causal "
                 << r.causal << " circular " << r.circular);
    bool same = true, uneven = false;
    const auto in = [&](const kernels::LocalRun& run, std::int64_t x) {
      return (x - run.first) % r.dilation == 0 && x >= run.first &&
             x < run.first + run.count * r.dilation;
    };
    for (std::int64_t i = 0; i < r.size; ++i) {
      uneven |= r.keys(i).count != r.extent;
      for (std::int64_t j = -r.size; j < 2 * r.size; ++j) {
        same &= in(r.keys(i), j) == sees(r, i, j);
        // Key j of one turn is seen by query i of another.
        const std::int64_t turn = wrapped(j, r.size) - j;
        if (r.circular != 0 || turn == 0)
          same &= in(r.queries(wrapped(j, r.size)), i + turn) == sees(r, i, j);
      }
    }
    CHECK(same);
    CHECK(r.uneven() == uneven);
    bool holds = true;
    for (std::int64_t lo = 0; lo < r.size; ++lo) {
      for (std::int64_t hi = lo + 1; hi <= r.size; ++hi) {
        for (const bool by_key : {false, true}) {
          const auto needed = [&](Interval x) {
            return by_key ? r.queries_needed(x) : r.keys_needed(x);
          };
          const Interval all = needed({lo, hi});
          for (std::int64_t i = lo; i < hi; ++i) {
            const kernels::LocalRun run = by_key ? r.queries(i) : r.keys(i);
            holds &= all.lo <= run.first && run.first + (run.count - 1) * r.dilation < all.hi;
          }
          if (lo + 1 < hi) {
            holds &= needed({lo + 1, hi}).lo >= all.lo && needed({lo + 1, hi}).hi >= all.hi;
            holds &= needed({lo, hi - 1}).lo <= all.lo && needed({lo, hi - 1}).hi <= all.hi;
          }
        }
      }
    }
    CHECK(holds);
  }
}

TEST_CASE("sizes around the tiles, parts anywhere, any memory") {
  std::mt19937 random(1);
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
    check_problem({{near(1, 1)}, 1, 1, 1, 1, 1, true, dtype}, random);
    check_problem({{near(40, 7)}, 2, 3, 3, 5, 3, true, dtype}, random);
    check_problem({{near(300, 16)}, 1, 2, 1, 3, 17, false, dtype}, random);
    check_problem({{near(9, 3), near(35, 5)}, 1, 4, 2, 16, 33, true, dtype}, random);
    check_problem({{near(70, 3), near(5, 2)}, 1, 1, 1, 8, 8, true, dtype}, random);
    check_problem({{near(5, 3), near(6, 2), near(19, 3)}, 1, 2, 2, 4, 2, true, dtype}, random);
    check_problem({{near(4, 2), near(18, 3), near(3, 3)}, 1, 1, 1, 3, 4, true, dtype}, random);
  }
}

TEST_CASE("dilation, stride, causal and circular windows") {
  std::mt19937 random(2);
  for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
    check_problem({{near(50, 4, 3)}, 1, 2, 2, 3, 4, true, dtype}, random);
    check_problem({{near(50, 7, 1, 5)}, 1, 2, 1, 3, 4, true, dtype}, random);
    check_problem({{near(50, 7, 2, 3, true)}, 1, 1, 1, 3, 4, true, dtype}, random);
    check_problem({{near(48, 7, 3, 2, false, true)}, 1, 1, 1, 3, 4, true, dtype}, random);
    check_problem({{near(20, 20, 1, 1, true, true)}, 1, 1, 1, 3, 4, true, dtype}, random);
    check_problem(
        {{near(9, 3, 3, 2, false, true), near(22, 5, 1, 1, true)}, 2, 2, 1, 3, 4, true, dtype},
        random);
    check_problem(
        {{near(8, 3, 2, 3, true), near(20, 4, 2, 4, false, true)}, 1, 2, 2, 3, 4, true, dtype},
        random);
  }
}

TEST_CASE("blocks: shifted, cut off, closed") {
  std::mt19937 random(3);
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
    check_problem({{block(41, 7, 3)}, 2, 2, 1, 3, 4, true, dtype}, random);
    check_problem({{block(40, 20, 7, true)}, 1, 2, 2, 3, 4, true, dtype}, random);
    check_problem({{block(14, 7, 3), block(23, 7, 5)}, 1, 2, 2, 4, 5, true, dtype}, random);
    check_problem({{block(8, 4, 1, true), block(21, 5, 2)}, 1, 2, 1, 3, 4, false, dtype}, random);
    check_problem({{block(4, 2, 1), block(6, 3, 1), block(18, 4, 2)}, 1, 1, 1, 3, 4, true, dtype},
                  random);
  }
}

TEST_CASE("many query heads for one key head") {
  std::mt19937 random(4);
  // 40 heads of wide rows do not fit in one block of packed heads.
  check_problem({{near(34, 5)}, 1, 40, 1, 300, 260, true, DType::kFloat32}, random);
  check_problem({{near(6, 3), near(20, 5)}, 1, 12, 3, 200, 180, false, DType::kFloat64}, random);
}

TEST_CASE("results do not depend on the number of threads") {
  std::mt19937 random(5);
  const Problem p{{near(40, 5), near(40, 5)}, 2, 3, 3, 32, 32, true, DType::kFloat32};
  const auto memory = [&](const Shape& s, DType dtype) {
    return part(random_field(Box::whole(s), random, dtype), Box::whole(s), s, dtype);
  };
  const Memory q = memory(p.rows(3, 32), p.dtype), k = memory(p.rows(3, 32), p.dtype);
  const Memory v = memory(p.rows(3, 32), p.dtype), g = memory(p.rows(3, 32), p.dtype);
  const Memory bias = memory(p.table(), p.dtype);
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 2, 3}) {
    set_thread_count(threads);
    const auto fresh = [&](const Shape& s) { return Memory(Box::whole(s), s, p.dtype); };
    Memory out = fresh(p.rows(3, 32)), lse = fresh(p.rows(3, 0)), dq = fresh(p.rows(3, 32));
    Memory dk = fresh(p.rows(3, 32)), dv = fresh(p.rows(3, 32)), delta = fresh(p.rows(3, 0));
    Memory dbias = fresh(p.table());
    kernels::fill(dbias.piece.view, 0.0);
    const kernels::LocalOperands x{q.piece, k.piece, v.piece, bias.piece};
    kernels::local_attention_forward(x, p.options(), out.piece.view, lse.piece.view);
    kernels::local_attention_query_grad(x, p.options(), lse.piece.view, g.piece.view, dq.piece.view,
                                        delta.piece.view, dbias.piece.view);
    kernels::local_attention_key_grad(x, p.options(), lse.piece, delta.piece, g.piece,
                                      dk.piece.view, dv.piece.view);
    std::vector<double> all;
    for (const Memory* m : {&out, &lse, &dq, &dk, &dv, &dbias})
      for_each_index(m->piece.box, [&](const Index& i) { all.push_back(m->get(i)); });
    results.push_back(all);
  }
  set_thread_count(1);
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST_CASE("local attention says what does not fit") {
  const Problem p{{near(9, 3)}, 1, 2, 1, 4, 4, true, DType::kFloat32};
  std::mt19937 random(6);
  const auto memory = [&](const Shape& s, const Box& box) {
    return part(Field(Box::whole(s)), box, s, DType::kFloat32);
  };
  const Shape queries = p.rows(2, 4), keys = p.rows(1, 4), numbers = p.rows(2, 0);
  const Memory q = memory(queries, Box::whole(queries)), k = memory(keys, Box::whole(keys));
  const Memory out = memory(queries, Box::whole(queries)),
               lse = memory(numbers, Box::whole(numbers));
  Box some = Box::whole(keys);
  some.set(1, {1, 9});
  const Memory less = memory(keys, some), wrong = memory(p.table(), Box::whole(p.table()));
  const auto forward = [&](const kernels::LocalOperands& x, const View& result) {
    kernels::local_attention_forward(x, p.options(), result, lse.piece.view);
  };
  CHECK_NOTHROW(forward({q.piece, k.piece, k.piece, wrong.piece}, out.piece.view));
  CHECK_THROWS_WITH(forward({q.piece, less.piece, less.piece, {}}, out.piece.view),
                    Catch::Contains("lack some of [0, 9)"));
  CHECK_THROWS_AS(forward({q.piece, k.piece, less.piece, {}}, out.piece.view), ShapeError);
  CHECK_THROWS_AS(forward({q.piece, k.piece, k.piece, k.piece}, out.piece.view), ShapeError);
  CHECK_THROWS_AS(forward({q.piece, k.piece, k.piece, {}}, k.piece.view), ShapeError);
  const Memory other = part(Field(Box::whole(keys)), Box::whole(keys), keys, DType::kFloat64);
  CHECK_THROWS_AS(forward({q.piece, other.piece, k.piece, {}}, out.piece.view), DTypeError);
}
