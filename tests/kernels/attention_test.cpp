// ranks: 1
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <tessera/core/threads.hpp>
#include <tessera/kernels/attention.hpp>
#include <tessera/kernels/random.hpp>

#include "kernels/pieces.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

struct Problem {
  Dims q_domain, k_domain;
  Dims samples = {1};
  std::int64_t heads = 1, key_heads = 1, depth = 4, width = 4;
  Shape pair = {};  // of mask and bias
  bool mask = false, bias = false;
  kernels::AttentionOptions options = {};
  DType dtype = DType::kFloat64;

  Shape rows(const Dims& domain, std::int64_t h, std::int64_t channels) const {
    Shape s = joined(samples, domain);
    s.push_back(h);
    if (channels > 0) s.push_back(channels);
    return s;
  }
  static Dims joined(Dims a, const Dims& b) {
    for (int d = 0; d < b.size(); ++d) a.push_back(b[d]);
    return a;
  }
  Shape scores() const { return joined(joined(joined(samples, {heads}), q_domain), k_domain); }
};

/// Values and, by plain loops over whole rows of probabilities, result and gradients.
struct Reference {
  Field q, k, v, mask, bias, g, out, lse, dq, dk, dv, dbias;
  Field bias_terms;  ///< sums of absolute terms of dbias, which often cancel

  Reference(const Problem& p, std::mt19937& random)
      : q(random_field(Box::whole(p.rows(p.q_domain, p.heads, p.depth)), random, p.dtype)),
        k(random_field(Box::whole(p.rows(p.k_domain, p.key_heads, p.depth)), random, p.dtype)),
        v(random_field(Box::whole(p.rows(p.k_domain, p.key_heads, p.width)), random, p.dtype)),
        mask(p.pair),
        bias(random_field(Box::whole(p.pair), random, p.dtype)),
        g(random_field(Box::whole(p.rows(p.q_domain, p.heads, p.width)), random, p.dtype)),
        out(g.box),
        lse(Box::whole(p.rows(p.q_domain, p.heads, 0))),
        dq(q.box),
        dk(k.box),
        dv(v.box),
        dbias(bias.box),
        bias_terms(bias.box) {
    for (double& m : mask.values) m = random() % 4 != 0 ? 1 : 0;
  }

  static Index at(const Index& token, const Index& n, std::int64_t h) {
    return with(Problem::joined(n, token), h);
  }
  static Index with(Index i, std::int64_t c) {
    i.push_back(c);
    return i;
  }

  void solve(const Problem& p) {
    std::vector<Index> queries, keys;
    for_each_index(Box::whole(p.q_domain), [&](const Index& i) { queries.push_back(i); });
    for_each_index(Box::whole(p.k_domain), [&](const Index& i) { keys.push_back(i); });
    const auto t = static_cast<std::int64_t>(keys.size());
    // The factors that dropout(key, p) gives to a tensor of ones.
    const Shape scores =
        Problem::joined(p.samples, {p.heads, static_cast<std::int64_t>(queries.size()), t});
    Memory ones(Box::whole(scores), scores, DType::kFloat64);
    for_each_index(Box::whole(scores), [&](const Index& i) { ones.set(i, 1.0); });
    kernels::dropout(p.options.key, p.options.dropout, ones.piece.view, ones.piece);
    for_each_index(Box::whole(p.samples), [&](const Index& n) {
      for (std::int64_t h = 0; h < p.heads; ++h) {
        const std::int64_t kh = h * p.key_heads / p.heads;
        for (std::size_t i = 0; i < queries.size(); ++i) {
          const Index qi = at(queries[i], n, h);
          std::vector<double> s(keys.size());
          std::vector<Index> pair(keys.size());
          double top = -INFINITY, total = 0;
          for (std::size_t j = 0; j < keys.size(); ++j) {
            Index ij = Problem::joined(Problem::joined(with(n, h), queries[i]), keys[j]);
            for (int d = 0; d < ij.size(); ++d) ij[d] = p.pair[d] == 1 ? 0 : ij[d];
            pair[j] = ij;
            for (std::int64_t c = 0; c < p.depth; ++c)
              s[j] += p.options.scale * q.get(with(qi, c)) * k.get(with(at(keys[j], n, kh), c));
            if (p.bias) s[j] += bias.get(ij);
            if (p.mask && mask.get(ij) == 0) s[j] = -INFINITY;
            if (p.options.causal && j > i) s[j] = -INFINITY;
            top = std::max(top, s[j]);
          }
          lse.at(qi) = INFINITY;
          if (top == -INFINITY) continue;
          for (double& x : s) total += x = std::exp(x - top);
          lse.at(qi) = top + std::log(total);
          std::vector<double> dp(keys.size());
          double delta = 0;
          for (std::size_t j = 0; j < keys.size(); ++j) {
            s[j] /= total;
            const double keep = ones.get(Problem::joined(
                n, {h, static_cast<std::int64_t>(i), static_cast<std::int64_t>(j)}));
            for (std::int64_t c = 0; c < p.width; ++c) {
              const Index vj = with(at(keys[j], n, kh), c);
              out.at(with(qi, c)) += keep * s[j] * v.get(vj);
              dv.at(vj) += keep * s[j] * g.get(with(qi, c));
              dp[j] += keep * g.get(with(qi, c)) * v.get(vj);
            }
            delta += s[j] * dp[j];
          }
          for (std::size_t j = 0; j < keys.size(); ++j) {
            const double ds = s[j] * (dp[j] - delta);
            dbias.at(pair[j]) += ds;
            bias_terms.at(pair[j]) += std::abs(ds);
            for (std::int64_t c = 0; c < p.depth; ++c) {
              const Index kj = with(at(keys[j], n, kh), c);
              dq.at(with(qi, c)) += p.options.scale * ds * k.get(kj);
              dk.at(kj) += p.options.scale * ds * q.get(with(qi, c));
            }
          }
        }
      }
    });
  }
};

/// `tolerance` is relative to the largest of `scale`.
void check(const char* what,
           const Memory& actual,
           const Field& expected,
           double tolerance,
           const Field& scale) {
  double largest = 0.1, worst = 0;
  for (const double x : scale.values)
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  for_each_index(actual.piece.box, [&](const Index& i) {
    // Statistics of rows that saw no key hold the largest number.
    const double a = std::min(actual.get(i), 1e38), e = std::min(expected.get(i), 1e38);
    if (a == e) return;
    worst = std::max(worst, std::isfinite(a) && std::isfinite(e) ? std::abs(a - e) : INFINITY);
  });
  INFO(what << " is off by " << worst << ", largest " << largest);
  CHECK(worst <= tolerance * largest);
}
void check(const char* what, const Memory& actual, const Field& expected, double tolerance) {
  check(what, actual, expected, tolerance, expected);
}

Box with_range(Box box, int first, const Box& domain) {
  for (int d = 0; d < domain.dims(); ++d) box.set(first + d, domain[d]);
  return box;
}

/// One part of the samples and queries against the keys in blocks.
void check_part(const Problem& p,
                const Reference& r,
                const Box& samples,
                const Box& q_part,
                const std::vector<Box>& blocks,
                Interval heads,
                std::mt19937& random,
                std::mt19937* lie,
                double tolerance) {
  const int ns = p.samples.size();
  const int nq = p.q_domain.size();
  const DType compute = p.dtype == DType::kFloat64 ? p.dtype : DType::kFloat32;
  const auto query_box = [&](const Box& whole) {
    Box box = with_range(with_range(whole, 0, samples), ns, q_part);
    box.set(ns + nq, heads);
    return box;
  };
  const auto key_box = [&](const Box& whole, const Box& block) {
    return with_range(with_range(whole, 0, samples), ns, block);
  };
  const auto piece_of = [&](const Field& f, const Box& box, DType dtype) {
    return part(f, box, f.box.shape(), dtype, lie);
  };
  const auto zeros = [&](const Field& f, const Box& box, DType dtype) {
    Memory m(box, f.box.shape(), dtype, lie);
    for_each_index(box, [&](const Index& i) { m.set(i, 0.0); });
    return m;
  };
  const Memory q = piece_of(r.q, query_box(r.q.box), p.dtype);
  Memory out = zeros(r.out, query_box(r.out.box), p.dtype);
  Memory lse = zeros(r.lse, query_box(r.lse.box), compute);
  Memory sum = zeros(r.out, query_box(r.out.box), compute);
  Memory total = zeros(r.lse, query_box(r.lse.box), compute);
  // A mask of whole rows, and a bias of this part's rows alone.
  Box pair_box = r.bias.box;
  for (int d = 0; d < nq; ++d)
    if (p.pair[ns + 1 + d] > 1) pair_box.set(ns + 1 + d, q_part[d]);
  if (p.pair[ns] > 1) pair_box.set(ns, heads);
  const Memory mask = piece_of(r.mask, r.mask.box, DType::kBool);
  const Memory bias = piece_of(r.bias, pair_box, p.dtype);
  std::vector<Memory> k, v;
  for (const Box& block : blocks) {
    k.push_back(piece_of(r.k, key_box(r.k.box, block), p.dtype));
    v.push_back(piece_of(r.v, key_box(r.v.box, block), p.dtype));
  }
  const auto operands = [&](std::size_t b) {
    return kernels::AttentionOperands{q.piece, k[b].piece, v[b].piece,
                                      p.mask ? mask.piece : Piece{}, p.bias ? bias.piece : Piece{}};
  };
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    kernels::AttentionState state;
    state.first = b == 0;
    state.last = b + 1 == blocks.size();
    if (blocks.size() > 1) {
      const bool in_place = p.dtype == compute && random() % 2 == 0 && b == 0;
      if (in_place) std::swap(sum, out);
      state.sum = sum.piece.view;
      state.largest = lse.piece.view;
      state.total = total.piece.view;
    }
    kernels::attention_forward(operands(b), p.options, state, out.piece.view, lse.piece.view);
  }
  check("out", out, r.out, tolerance);
  check("lse", lse, r.lse, std::min(tolerance, 1e-5));
  if (p.dtype == DType::kBFloat16) return;

  const Memory g = piece_of(r.g, query_box(r.g.box), p.dtype);
  const Memory exact = piece_of(r.out, query_box(r.out.box), p.dtype);
  Memory dq = zeros(r.q, query_box(r.q.box), compute);
  Memory dbias = zeros(r.bias, pair_box, compute);
  const kernels::AttentionSaved saved{exact.piece.view, lse.piece.view, g.piece.view};
  const bool all_samples = samples == Box::whole(p.samples);
  const bool whole = q_part == Box::whole(p.q_domain) && heads == Interval{0, p.heads};
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    Memory dk = zeros(r.k, key_box(r.k.box, blocks[b]), compute);
    Memory dv = zeros(r.v, key_box(r.v.box, blocks[b]), compute);
    kernels::attention_grad(operands(b), p.options, saved, dq.piece.view, dk.piece.view,
                            dv.piece.view);
    if (whole && all_samples) {
      check("dk", dk, r.dk, 5 * tolerance);
      check("dv", dv, r.dv, 5 * tolerance);
    }
    if (p.bias) kernels::attention_bias_grad(operands(b), p.options, saved, dbias.piece.view);
  }
  check("dq", dq, r.dq, 5 * tolerance);
  bool complete = p.bias && all_samples && (heads == Interval{0, p.heads} || p.pair[ns] > 1);
  for (int d = 0; d < nq; ++d)
    complete &= p.pair[ns + 1 + d] > 1 || q_part[d] == Interval{0, p.q_domain[d]};
  if (complete) check("dbias", dbias, r.dbias, 5 * tolerance, r.bias_terms);
}

void check_problem(Problem p, std::mt19937& random) {
  if (p.pair.empty()) p.pair = p.scores();
  p.options.sample_dims = p.samples.size();
  Reference r(p, random);
  r.solve(p);
  const double tolerance = p.dtype == DType::kFloat64   ? 1e-12
                           : p.dtype == DType::kFloat32 ? 4e-6
                                                        : 1e-2;
  const Interval heads{0, p.heads};
  const Box samples = Box::whole(p.samples);
  check_part(p, r, samples, Box::whole(p.q_domain), {Box::whole(p.k_domain)}, heads, random,
             nullptr, tolerance);
  std::vector<int> s_dims, q_dims, k_dims;
  for (int d = 0; d < p.samples.size(); ++d) s_dims.push_back(d);
  for (int d = 0; d < p.q_domain.size(); ++d) q_dims.push_back(d);
  for (int d = 0; d < p.k_domain.size(); ++d) k_dims.push_back(d);
  const auto blocks = random_cut(Box::whole(p.k_domain), random, k_dims);
  check_part(p, r, samples, Box::whole(p.q_domain), blocks, heads, random, &random, tolerance);
  for (const Box& part : random_cut(Box::whole(p.q_domain), random, q_dims)) {
    const std::int64_t cut = random_in(random, 0, p.heads);
    for (const Interval some : {Interval{0, cut}, Interval{cut, p.heads}})
      check_part(p, r, samples, part, blocks, some, random, &random, tolerance);
  }
  for (const Box& part : random_cut(samples, random, s_dims))
    check_part(p, r, part, Box::whole(p.q_domain), blocks, heads, random, &random, tolerance);
}

}  // namespace

TEST_CASE("sizes around the tiles, one and two dimensions, grouped heads") {
  std::mt19937 random(1);
  const kernels::AttentionOptions options{.scale = 0.3};
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
    check_problem({{1}, {1}, {1}, 1, 1, 1, 1, {}, false, false, options, dtype}, random);
    check_problem({{5}, {7}, {2}, 3, 3, 5, 3, {}, false, false, options, dtype}, random);
    check_problem({{130}, {260}, {1}, 2, 1, 3, 17, {}, false, false, options, dtype}, random);
    check_problem({{5, 9}, {4, 3, 2}, {1}, 6, 2, 16, 50, {}, false, false, options, dtype}, random);
    check_problem({{201}, {128}, {1}, 1, 1, 33, 2, {}, false, false, options, dtype}, random);
  }
}

TEST_CASE("causal by global position") {
  std::mt19937 random(2);
  const kernels::AttentionOptions options{.scale = 0.3, .causal = true};
  for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
    check_problem({{210}, {210}, {1}, 2, 1, 3, 4, {}, false, false, options, dtype}, random);
    check_problem({{6, 11}, {6, 11}, {1}, 1, 1, 8, 5, {}, false, false, options, dtype}, random);
    check_problem({{9}, {20}, {1}, 2, 2, 3, 4, {}, false, false, options, dtype}, random);
    check_problem({{20}, {9}, {1}, 2, 2, 3, 4, {}, false, false, options, dtype}, random);
  }
}

TEST_CASE("masks and biases that broadcast") {
  std::mt19937 random(3);
  kernels::AttentionOptions options{.scale = 0.5};
  for (int draw = 0; draw < 12; ++draw) {
    options.causal = draw % 3 == 0;
    Problem p{{draw % 2 == 0 ? 5 : 20, 3},
              {2, 67},
              {2},
              4,
              2,
              5,
              6,
              {},
              draw % 4 != 1,
              draw % 4 != 2,
              options,
              draw % 5 == 4 ? DType::kFloat32 : DType::kFloat64};
    p.pair = p.scores();
    for (int d = 0; d < 6; ++d)
      if (random() % 2 == 0) p.pair[d] = 1;
    if (draw == 7) p.pair[2] = p.pair[3] = 1;
    check_problem(p, random);
  }
}

TEST_CASE("dropout is that of the whole scores") {
  std::mt19937 random(4);
  const kernels::AttentionOptions options{
      .scale = 0.5, .causal = false, .dropout = 0.3, .key = {7, 9}};
  for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
    check_problem({{70}, {301}, {2}, 2, 1, 5, 6, {}, false, false, options, dtype}, random);
    check_problem({{7, 3}, {11, 5}, {1}, 3, 3, 5, 6, {}, true, true, options, dtype}, random);
  }
}

TEST_CASE("several sample dimensions: attention along some dimensions of a domain") {
  std::mt19937 random(7);
  kernels::AttentionOptions options{.scale = 0.5};
  check_problem({{37}, {37}, {2, 3}, 2, 1, 5, 6, {}, false, false, options}, random);
  for (int draw = 0; draw < 12; ++draw) {
    options.causal = draw % 3 == 0;
    options.dropout = draw % 4 == 0 ? 0.3 : 0.0;
    options.key = {5, 6};
    Problem p{{3, 4}, {9, 5}, {2, 3}, 2, 1, 5, 6, {}, draw % 2 == 0, draw % 4 != 2, options};
    if (draw % 2 == 0) p.samples = {2, 1, 4};
    if (draw % 5 == 4) p.dtype = DType::kFloat32;
    p.pair = p.scores();
    for (int d = 0; d < p.pair.size(); ++d)
      if (random() % 2 == 0) p.pair[d] = 1;
    if (draw == 7) p.pair[0] = p.pair[1] = 1;
    check_problem(p, random);
  }
}

TEST_CASE("a row that sees no key is zero and has no gradient") {
  const Shape shape{1, 3, 1, 4};
  std::mt19937 random(5);
  const Field f = random_field(Box::whole(shape), random, DType::kFloat32);
  const Memory x = part(f, f.box, shape, DType::kFloat32);
  const Shape pair{1, 1, 3, 3};
  Memory mask(Box::whole(pair), pair, DType::kBool);
  for_each_index(mask.piece.box, [&](const Index& i) { mask.set(i, i[2] == 1 ? 0 : 1); });
  const auto fresh = [&] { return Memory(f.box, shape, DType::kFloat32); };
  Memory out = fresh(), dq = fresh(), dk = fresh(), dv = fresh();
  Memory lse(Box::whole({1, 3, 1}), {1, 3, 1}, DType::kFloat32);
  for (Memory* m : {&dq, &dk, &dv}) for_each_index(f.box, [&](const Index& i) { m->set(i, 0); });
  const kernels::AttentionOperands operands{x.piece, x.piece, x.piece, mask.piece, {}};
  kernels::attention_forward(operands, {}, {}, out.piece.view, lse.piece.view);
  kernels::attention_grad(operands, {}, {out.piece.view, lse.piece.view, x.piece.view},
                          dq.piece.view, dk.piece.view, dv.piece.view);
  for (std::int64_t c = 0; c < 4; ++c) {
    CHECK(out.get({0, 1, 0, c}) == 0.0);
    CHECK(dq.get({0, 1, 0, c}) == 0.0);
    CHECK(out.get({0, 0, 0, c}) != 0.0);
    CHECK(std::isfinite(dk.get({0, 1, 0, c})));
  }
  const Index blind{0, 1, 0};
  CHECK(lse.get(blind) == std::numeric_limits<float>::max());
}

TEST_CASE("logits of 80 and 10,000 and their gradients are finite and right") {
  std::mt19937 random(6);
  for (const double scale : {80.0, 1e4}) {
    for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
      // One channel: the logits are scale q k, all of them exact in fp32.
      Problem p{{40}, {150}, {1}, 1, 1, 1, 3, {1, 1, 40, 150}, false, false, {.scale = scale},
                dtype};
      Reference r(p, random);
      for (double& x : r.q.values) x = std::round(x * 2) / 4;
      for (double& x : r.k.values) x = std::round(x * 64) / 128;
      r.solve(p);
      for (const double x : r.out.values) REQUIRE(std::isfinite(x));
      check_part(p, r, Box::whole(p.samples), Box::whole(p.q_domain), {Box::whole(p.k_domain)},
                 {0, 1}, random, nullptr,
                 dtype == DType::kFloat64 ? 1e-10
                 : scale > 100            ? 1e-3
                                          : 1e-5);
    }
  }
}

TEST_CASE("logits that grow with the keys, slowly or by a lot, in blocks too") {
  std::mt19937 random(9);
  for (const double scale : {3.0, 20.0, 200.0, 5000.0}) {
    for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
      Problem p{{70}, {600}, {1}, 1, 1, 1, 3, {1, 1, 70, 600}, false, false, {.scale = scale},
                dtype};
      Reference r(p, random);
      for (double& x : r.q.values) x = std::round(x * 2) / 4;
      for (double& x : r.k.values) x = std::round(x * 64) / 128;
      std::sort(r.k.values.begin(), r.k.values.end());
      r.solve(p);
      const double tolerance = dtype == DType::kFloat64 ? 1e-10 : scale > 100 ? 1e-3 : 1e-5;
      const Box samples = Box::whole(p.samples), queries = Box::whole(p.q_domain);
      check_part(p, r, samples, queries, {Box::whole(p.k_domain)}, {0, 1}, random, nullptr,
                 tolerance);
      check_part(p, r, samples, queries, random_cut(Box::whole(p.k_domain), random, {0}), {0, 1},
                 random, &random, tolerance);
    }
  }
}

TEST_CASE("NaN stays, infinite biases mask") {
  const Shape shape{1, 2, 1, 1};
  const Index one{0, 0, 0, 0}, other{0, 1, 0, 0};
  Memory x(Box::whole(shape), shape, DType::kFloat32);
  Memory out(Box::whole(shape), shape, DType::kFloat32);
  Memory lse(Box::whole({1, 2, 1}), {1, 2, 1}, DType::kFloat32);
  x.set(one, 1.0);
  x.set(other, NAN);
  kernels::attention_forward({x.piece, x.piece, x.piece, {}, {}}, {}, {}, out.piece.view,
                             lse.piece.view);
  CHECK(std::isnan(out.get(one)));
  x.set(other, 2.0);
  const Shape pair{1, 1, 1, 2};
  Memory bias(Box::whole(pair), pair, DType::kFloat32);
  bias.set(one, -INFINITY);
  bias.set({0, 0, 0, 1}, 0.5);
  kernels::attention_forward({x.piece, x.piece, x.piece, {}, bias.piece}, {}, {}, out.piece.view,
                             lse.piece.view);
  CHECK(out.get(one) == 2.0);
}

namespace {

/// Whether one and three threads give the same bits.
void check_threads(const Shape& shape, std::mt19937& random) {
  const Shape pair{1, 1, 1, shape[1]};
  const Memory x = part(random_field(Box::whole(shape), random, DType::kFloat32), Box::whole(shape),
                        shape, DType::kFloat32);
  const Memory bias = part(random_field(Box::whole(pair), random, DType::kFloat32),
                           Box::whole(pair), pair, DType::kFloat32);
  const Shape row{shape[0], shape[1], shape[2]};
  const kernels::AttentionOperands operands{x.piece, x.piece, x.piece, {}, bias.piece};
  const auto run = [&](int threads) {
    const int before = thread_count();
    set_thread_count(threads);
    std::vector<Memory> results;
    for (int i = 0; i < 4; ++i) results.emplace_back(Box::whole(shape), shape, DType::kFloat32);
    Memory lse(Box::whole(row), row, DType::kFloat32);
    Memory dbias(Box::whole(pair), pair, DType::kFloat32);
    for (Memory* m : {&results[1], &results[2], &results[3], &dbias})
      std::memset(m->piece.view.data, 0, static_cast<std::size_t>(m->piece.view.size()) * 4);
    kernels::attention_forward(operands, {.scale = 0.25, .causal = true}, {}, results[0].piece.view,
                               lse.piece.view);
    const kernels::AttentionSaved saved{results[0].piece.view, lse.piece.view, x.piece.view};
    kernels::attention_grad(operands, {.scale = 0.25, .causal = true}, saved, results[1].piece.view,
                            results[2].piece.view, results[3].piece.view);
    kernels::attention_bias_grad(operands, {.scale = 0.25, .causal = true}, saved,
                                 dbias.piece.view);
    set_thread_count(before);
    results.push_back(std::move(dbias));
    return results;
  };
  const auto one = run(1), three = run(3);
  for (std::size_t i = 0; i < one.size(); ++i) {
    CHECK(std::memcmp(one[i].piece.view.data, three[i].piece.view.data,
                      static_cast<std::size_t>(one[i].piece.view.size()) * 4) == 0);
  }
}

}  // namespace

TEST_CASE("many keys are shared by threads; the same bits on any number of them") {
  std::mt19937 random(8);
  const int before = thread_count();
  for (const int threads : {1, 2}) {
    set_thread_count(threads);
    const kernels::AttentionOptions options{.scale = 0.3};
    check_problem({{60}, {1300}, {1}, 2, 1, 5, 6, {}, false, false, options}, random);
  }
  set_thread_count(before);
  check_threads({2, 500, 3, 16}, random);
  check_threads({1, 1700, 1, 16}, random);
}

TEST_CASE("wrong operands throw") {
  const Shape shape{2, 500, 3, 16}, row{2, 500, 3}, pair{1, 1, 1, 500};
  const Memory x(Box::whole(shape), shape, DType::kFloat32);
  const Memory bias(Box::whole(pair), pair, DType::kFloat32);
  const kernels::AttentionOperands operands{x.piece, x.piece, x.piece, {}, bias.piece};
  Memory out(Box::whole(shape), shape, DType::kFloat32), lse(Box::whole(row), row, DType::kFloat32);
  const Memory half(Box::whole({2, 500, 2, 16}), {2, 500, 2, 16}, DType::kFloat32);
  CHECK_THROWS_AS(kernels::attention_forward({x.piece, half.piece, half.piece, {}, {}}, {}, {},
                                             out.piece.view, lse.piece.view),
                  ShapeError);
  CHECK_THROWS_AS(kernels::attention_forward({x.piece, x.piece, x.piece, bias.piece, {}}, {}, {},
                                             out.piece.view, lse.piece.view),
                  DTypeError);
  CHECK_THROWS_AS(kernels::attention_forward(operands, {}, {}, lse.piece.view, lse.piece.view),
                  ShapeError);
}
