// ranks: 1
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "parallel/window_simulation.hpp"

using namespace tessera;
using namespace tessera::parallel;
using namespace tessera::test;

namespace {

Mesh line(int ranks) {
  std::vector<int> processes(static_cast<std::size_t>(ranks));
  std::iota(processes.begin(), processes.end(), 0);
  return Mesh::of(processes, {{"x", ranks}});
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return -((-a) / b - ((-a) % b < 0)); }
std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0); }

}  // namespace

TEST_CASE("segments show every virtual position once, for all small domains") {
  for (const EdgeRule edge :
       {EdgeRule::kZero, EdgeRule::kCircular, EdgeRule::kReflect, EdgeRule::kReplicate}) {
    for (std::int64_t n = 1; n <= 5; ++n) {
      for (const Bounds& bounds : {Bounds{0, n}, Bounds{0, 0, n}, Bounds{0, n, n},
                                   Bounds{0, n / 2, n / 2, n}, Bounds{0, 1, 1, 1, n, n}}) {
        for (std::int64_t lo = -3 * n - 1; lo <= 3 * n; ++lo) {
          for (std::int64_t hi = lo; hi <= 3 * n + 2; ++hi) {
            const std::vector<Segment> segments = window_segments({lo, hi}, bounds, edge);
            std::vector<std::int64_t> real(static_cast<std::size_t>(hi - lo), -1);
            std::int64_t last = lo;
            bool good = true;
            for (const Segment& s : segments) {
              const auto p = static_cast<std::size_t>(s.part);
              good = good && s.at.lo >= last && s.at.hi <= hi && s.at.size() > 0 &&
                     bounds[p] <= s.from.lo && s.from.hi <= bounds[p + 1] &&
                     s.from.size() == (s.step == 0 ? 1 : s.at.size());
              last = s.at.hi;
              for (std::int64_t v = s.at.lo; v < s.at.hi; ++v) {
                const std::int64_t i = v - s.at.lo;
                real[static_cast<std::size_t>(v - lo)] = s.step > 0   ? s.from.lo + i
                                                         : s.step < 0 ? s.from.hi - 1 - i
                                                                      : s.from.lo;
              }
            }
            for (std::int64_t v = lo; v < hi; ++v)
              good = good && real[static_cast<std::size_t>(v - lo)] == map_edge(edge, v, n);
            if (!good) FAIL(name(edge) << " n " << n << " [" << lo << ", " << hi << ")");
          }
        }
      }
    }
  }
  SUCCEED();
}

TEST_CASE("an empty domain has nothing to show") {
  CHECK(window_segments({-2, 3}, {0, 0}, EdgeRule::kZero).empty());
  CHECK(window_segments({0, 0}, {0, 0}, EdgeRule::kReflect).empty());
  CHECK_THROWS_AS(window_segments({-2, 3}, {0, 0}, EdgeRule::kCircular), ShapeError);
}

TEST_CASE("a 3x3 window on a 3x3 mesh reads its eight neighbours, corners by themselves") {
  std::vector<int> processes(9);
  std::iota(processes.begin(), processes.end(), 0);
  const Mesh mesh = Mesh::of(processes, {{"h", 3}, {"w", 3}});
  const Layout layout = Layout::make(mesh, {2, 12, 9, 5}, {{}, {{0}, {}}, {{1}, {}}, {}});
  const NeededFunction needed = [&](int d, int r) {
    const Interval own = layout.owned(d, r);
    return d == 1 || d == 2 ? Interval{own.lo - 1, own.hi + 1} : own;
  };
  const std::vector<EdgeRule> edges(4, EdgeRule::kZero);
  const ExchangePlan middle = plan_window(layout, edges, 4, needed);
  CHECK(middle.receive_messages() == 8);
  CHECK(middle.send_messages() == 8);
  CHECK(middle.receives.size() == 8);
  CHECK(middle.images.size() == 8);
  CHECK(middle.receive_bytes(DType::kFloat32) == 4 * 2 * 5 * (6 * 5 - 4 * 3));
  const ExchangePlan corner = plan_window(layout, edges, 0, needed);
  CHECK(corner.receive_messages() == 3);
  CHECK(corner.receive_bytes(DType::kFloat64) == 8 * 2 * 5 * (5 * 4 - 4 * 3));

  const std::vector<EdgeRule> periodic(4, EdgeRule::kCircular);
  CHECK(plan_window(layout, periodic, 0, needed).receive_messages() == 8);
}

TEST_CASE("columns that wrap around within a rank do not travel") {
  std::vector<int> processes(4);
  std::iota(processes.begin(), processes.end(), 0);
  const Mesh mesh = Mesh::of(processes, {{"h", 4}});
  const Layout layout = Layout::make(mesh, {1, 16, 9, 5}, {{}, {{0}, {}}, {}, {}});
  const NeededFunction needed = [&](int d, int r) {
    const Interval own = layout.owned(d, r);
    return d == 1 || d == 2 ? Interval{own.lo - 2, own.hi + 2} : own;
  };
  for (const EdgeRule edge : {EdgeRule::kCircular, EdgeRule::kReflect, EdgeRule::kReplicate}) {
    const std::vector<EdgeRule> edges{EdgeRule::kZero, EdgeRule::kZero, edge, EdgeRule::kZero};
    const ExchangePlan plan = plan_window(layout, edges, 1, needed);
    CHECK(plan.receive_bytes(DType::kFloat32) == 4 * 2 * 2 * 9 * 5);
    CHECK(plan.send_bytes(DType::kFloat32) == 4 * 2 * 2 * 9 * 5);
    CHECK(plan.receive_messages() == 2);
  }
}

TEST_CASE("one rank mirrors its own edges and talks to nobody") {
  const Layout layout = Layout::make(line(1), {6}, {{{0}, {0, 6}}});
  const std::vector<EdgeRule> edges{EdgeRule::kReflect};
  const ExchangePlan plan = plan_window(layout, edges, 0, [](int, int) { return Interval{-2, 8}; });
  CHECK_FALSE(plan.communicates());
  REQUIRE(plan.images.size() == 2);
  CHECK(plan.images[0].at == Box({-2}, {0}));
  CHECK(plan.images[0].from == Box({1}, {3}));
  CHECK(plan.images[0].step[0] == -1);
  CHECK(plan.images[1].at == Box({6}, {8}));
  CHECK(plan.images[1].from == Box({3}, {5}));
}

TEST_CASE("random windows: exchange, adjoint and bytes") {
  Random random("window plans");
  for (int draw = 0; draw < 1500; ++draw) {
    const WindowCase c = random_window_case(random, 24, 60000);
    INFO("draw " << draw << " layout " << c.layout);
    const std::string wrong = check_exchange(c, c.plans());
    if (!wrong.empty()) FAIL(wrong << " in draw " << draw << ", layout " << c.layout);
  }
}

TEST_CASE("a thousand simulated ranks") {
  Random random("window plans of 1000 ranks");
  for (int draw = 0; draw < 3; ++draw) {
    const std::vector<MeshAxis> shapes[] = {
        {{"x", 1000}}, {{"x", 25}, {"y", 40}}, {{"x", 10}, {"y", 10}, {"z", 10}}};
    std::vector<int> processes(1000);
    std::iota(processes.begin(), processes.end(), 0);
    const Mesh mesh = Mesh::of(processes, shapes[draw]);
    WindowCase c;
    c.seed = static_cast<std::uint64_t>(random.integer(0, 1 << 30));
    Shape shape;
    std::vector<DimSplit> splits;
    for (int a = 0; a < mesh.axis_count(); ++a) {
      const std::int64_t n = mesh.axis_size(a) + random.integer(0, mesh.axis_size(a));
      shape.push_back(n);
      splits.push_back({{a}, random_bounds(random, n, mesh.axis_size(a))});
      c.edges.push_back(static_cast<EdgeRule>(random.number(0, 3)));
    }
    c.layout = Layout::make(mesh, shape, splits);
    const std::int64_t width = random.integer(1, 2);
    c.needed = [=, layout = c.layout](int d, int r) {
      const Interval own = layout.owned(d, r);
      return own.empty() ? own : Interval{own.lo - width, own.hi + width};
    };
    const std::string wrong = check_exchange(c, c.plans());
    if (!wrong.empty()) FAIL(wrong << ", layout " << c.layout);
  }
}

TEST_CASE("a plan of one of ten thousand ranks looks at parts, not at ranks") {
  std::vector<int> processes(10000);
  std::iota(processes.begin(), processes.end(), 0);
  const Mesh mesh = Mesh::of(processes, {{"h", 100}, {"w", 100}});
  const Layout layout = Layout::make(mesh, {1, 1000, 1000, 8}, {{}, {{0}, {}}, {{1}, {}}, {}});
  int calls = 0;
  const NeededFunction needed = [&](int d, int r) {
    ++calls;
    const Interval own = layout.owned(d, r);
    return d == 1 || d == 2 ? Interval{own.lo - 1, own.hi + 1} : own;
  };
  const std::vector<EdgeRule> edges(4, EdgeRule::kCircular);
  const ExchangePlan plan = plan_window(layout, edges, 0, needed);
  CHECK(plan.receives.size() == 8);
  CHECK(plan.sends.size() == 8);
  CHECK(calls == 4 + 1 + 100 + 100 + 1);
}

TEST_CASE("planted faults in plans are found") {
  Random random("planted faults");
  int planted = 0;
  for (int draw = 0; draw < 60; ++draw) {
    const WindowCase c = random_window_case(random, 12, 8000);
    const std::vector<ExchangePlan> good = c.plans();
    for (std::size_t r = 0; r < good.size(); ++r) {
      if (good[r].receives.empty()) continue;
      const std::size_t k = good[r].receives.size() - 1;
      std::vector<ExchangePlan> lost = good;
      lost[r].receives.pop_back();
      CHECK(check_exchange(c, lost) != "");
      std::vector<ExchangePlan> moved = good;
      moved[r].images.back().at.lo[0] += 1;
      moved[r].images.back().at.hi[0] += 1;
      CHECK(check_exchange(c, moved) != "");
      // Both sides agree, and are wrong: only values can tell.
      std::vector<ExchangePlan> shifted = good;
      const Parcel parcel = good[r].receives[k];
      Box other = parcel.box;
      other.lo[0] += 1;
      other.hi[0] += 1;
      if (!c.layout.owned(parcel.peer).contains(other)) break;
      for (Parcel& s : shifted[static_cast<std::size_t>(parcel.peer)].sends) {
        if (s.peer == static_cast<int>(r) && s.box == parcel.box) s.box = other;
      }
      shifted[r].receives[k].box = other;
      for (Image& image : shifted[r].images) {
        if (image.parcel != static_cast<int>(k)) continue;
        image.from.lo[0] += 1;
        image.from.hi[0] += 1;
      }
      CHECK(check_exchange(c, shifted) != "");
      ++planted;
      break;
    }
  }
  CHECK(planted > 0);
}

TEST_CASE("formulas of the notes: what a convolution needs, and how far it reads") {
  Random random("window formulas");
  for (int draw = 0; draw < 20000; ++draw) {
    const std::int64_t n = random.integer(1, 40), k = random.integer(1, 5),
                       s = random.integer(1, 4), d = random.integer(1, 3), p = random.integer(0, 6);
    const std::int64_t m = floor_div(n + 2 * p - d * (k - 1) - 1, s) + 1;
    const int parts = random.number(1, 6);
    const Bounds b = random_bounds(random, n, parts);
    bool good = true;
    if (m > 0) {
      for (int r = 0; r < parts; ++r) {
        const std::int64_t a = b[static_cast<std::size_t>(r)],
                           e = b[static_cast<std::size_t>(r) + 1];
        const std::int64_t j0 = std::min(m, ceil_div(a, s));
        const std::int64_t j1 = r == parts - 1 ? m : std::min(m, ceil_div(e, s));
        if (j0 < j1) {  // outputs by the anchor rule
          std::int64_t lo = 1 << 20, hi = -(1 << 20);
          for (std::int64_t j = j0; j < j1; ++j)
            for (std::int64_t t = 0; t < k; ++t) {
              lo = std::min(lo, s * j - p + d * t);
              hi = std::max(hi, s * j - p + d * t);
            }
          good = good && lo == s * j0 - p && hi == s * (j1 - 1) - p + d * (k - 1);
          if (r < parts - 1 && a < e) good = good && a - lo <= p && hi + 1 - e <= d * (k - 1) - p;
        }
        if (a < e) {  // outputs whose gradient reaches inputs [a, e)
          const std::int64_t lo = std::max<std::int64_t>(0, ceil_div(a + p - d * (k - 1), s));
          const std::int64_t hi = std::min(m - 1, floor_div(e - 1 + p, s));
          std::set<std::int64_t> used;
          for (std::int64_t j = 0; j < m; ++j)
            for (std::int64_t t = 0; t < k; ++t)
              if (s * j - p + d * t >= a && s * j - p + d * t < e) used.insert(j);
          if (!used.empty()) {
            good = good && lo <= *used.begin() && hi >= *used.rbegin();
            if (d == 1 && k >= s) good = good && lo == *used.begin() && hi == *used.rbegin();
          }
        }
      }
    }
    // Transposed: y[s i - p + d t] += w[t] x[i].
    const std::int64_t extra = random.integer(0, std::max(s, d) - 1);
    const std::int64_t mt = (n - 1) * s - 2 * p + d * (k - 1) + extra + 1;
    if (mt > 0) {
      const std::int64_t y0 = random.integer(0, mt - 1), y1 = random.integer(y0 + 1, mt);
      const std::int64_t lo = std::max<std::int64_t>(0, ceil_div(y0 + p - d * (k - 1), s));
      const std::int64_t hi = std::min(n - 1, floor_div(y1 - 1 + p, s));
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t t = 0; t < k; ++t)
          if (s * i - p + d * t >= y0 && s * i - p + d * t < y1) good = good && lo <= i && i <= hi;
    }
    if (!good) FAIL("n " << n << " k " << k << " s " << s << " d " << d << " p " << p);
  }
  SUCCEED();
}

TEST_CASE("a convolution on plans is the convolution") {
  Random random("convolution on plans");
  for (int draw = 0; draw < 300; ++draw) {
    const std::int64_t n = random.integer(1, 30), k = random.integer(1, 5),
                       s = random.integer(1, 3), dil = random.integer(1, 3),
                       p = random.integer(0, 6);
    const std::int64_t m = floor_div(n + 2 * p - dil * (k - 1) - 1, s) + 1;
    if (m <= 0) continue;
    const int parts = random.number(1, 9);
    WindowCase c;
    c.seed = static_cast<std::uint64_t>(draw);
    c.edges = {static_cast<EdgeRule>(random.number(0, 3))};
    c.layout = Layout::make(line(parts), {n}, {{{0}, random_bounds(random, n, parts)}});
    const Bounds out = random_bounds(random, m, parts);  // any partition, not only the anchor rule
    c.needed = [=](int, int r) -> Interval {
      const std::int64_t j0 = out[static_cast<std::size_t>(r)],
                         j1 = out[static_cast<std::size_t>(r) + 1];
      return j0 < j1 ? Interval{s * j0 - p, s * (j1 - 1) - p + dil * (k - 1) + 1} : Interval{0, 0};
    };
    const std::vector<ExchangePlan> plans = c.plans();
    REQUIRE(check_exchange(c, plans) == "");
    for (int r = 0; r < parts; ++r) {
      const ExchangePlan& plan = plans[static_cast<std::size_t>(r)];
      Array x(plan.needed);  // zero where nothing is shown
      const auto value = [&](std::int64_t i) { return global_value(c, 0, {i}); };
      for_each_index(intersect(plan.needed, plan.owned),
                     [&](const Index& i) { x[i] = value(i[0]); });
      for (const Image& image : plan.images)
        for_each_index(image.at,
                       [&](const Index& at) { x[at] = value(image_source(image, at)[0]); });
      for (std::int64_t j = out[static_cast<std::size_t>(r)];
           j < out[static_cast<std::size_t>(r) + 1]; ++j) {
        double got = 0.0, expected = 0.0;
        for (std::int64_t t = 0; t < k; ++t) {
          const double w = noise(7, {t});
          const std::int64_t i = s * j - p + dil * t;
          const std::int64_t real = map_edge(c.edges[0], i, n);
          got += w * x[{i}];
          expected += real < 0 ? 0.0 : w * value(real);
        }
        CHECK(got == expected);
      }
    }
  }
}

TEST_CASE("the interior is the largest part whose need is owned") {
  Random random("interior");
  for (int draw = 0; draw < 4000; ++draw) {
    const std::int64_t n = random.integer(1, 24), k = random.integer(1, 5),
                       s = random.integer(1, 3), d = random.integer(1, 2), p = random.integer(0, 4);
    const bool transposed = random.chance(0.3);
    const std::int64_t m = transposed ? (n - 1) * s - 2 * p + d * (k - 1) + 1
                                      : floor_div(n + 2 * p - d * (k - 1) - 1, s) + 1;
    if (m <= 0) continue;
    const auto need = [&](Interval j) -> Interval {
      if (transposed) return {ceil_div(j.lo + p - d * (k - 1), s), floor_div(j.hi - 1 + p, s) + 1};
      return {s * j.lo - p, s * (j.hi - 1) - p + d * (k - 1) + 1};
    };
    const auto edge = static_cast<EdgeRule>(random.number(0, 3));
    const Bounds in = random_bounds(random, n, 3), out = random_bounds(random, m, 3);
    for (std::size_t r = 0; r < 3; ++r) {
      const Interval owned{in[r], in[r + 1]}, work{out[r], out[r + 1]};
      const auto inside = [&](Interval j) {
        Interval needs = need(j);
        if (edge == EdgeRule::kZero) needs = intersect(needs, {0, n});
        return owned.contains(needs);
      };
      const Interval got = interior_interval(work, owned, n, edge, need);
      if (!got.empty()) CHECK((work.contains(got) && inside(got)));
      for (std::int64_t a = work.lo; a < work.hi; ++a)
        for (std::int64_t b = a + 1; b <= work.hi; ++b) {
          Interval needs = need({a, b});
          if (edge == EdgeRule::kZero) needs = intersect(needs, {0, n});
          // What needs nothing at all can be computed at any time, and is not searched for.
          if (!needs.empty() && inside({a, b})) {
            if (b - a > got.size()) FAIL("interior of draw " << draw << " is not the largest");
          }
        }
    }
  }
  SUCCEED();
}

TEST_CASE("interior and boundary boxes cover the work once") {
  Random random("work split");
  for (int draw = 0; draw < 300; ++draw) {
    const int dims = random.number(1, 4);
    Box work(Dims::filled(dims, 0), Dims::filled(dims, 0));
    std::vector<Interval> inside;
    for (int d = 0; d < dims; ++d) {
      const std::int64_t lo = random.integer(-3, 3), hi = lo + random.integer(1, 5);
      work.set(d, {lo, hi});
      const std::int64_t a = random.integer(lo, hi);
      inside.push_back({a, random.integer(a, hi)});
    }
    const WorkSplit split = split_work(work, inside);
    Array times(work);
    for_each_index(split.interior, [&](const Index& i) { times[i] += 1.0; });
    CHECK(split.boundary.size() <= static_cast<std::size_t>(2 * dims));
    for (const Box& box : split.boundary)
      for_each_index(box, [&](const Index& i) { times[i] += 1.0; });
    CHECK(std::all_of(times.values.begin(), times.values.end(), [](double v) { return v == 1.0; }));
  }
}

TEST_CASE("a plan wants one edge rule per dimension") {
  const Layout layout = Layout::replicated(line(1), {3, 3});
  const std::vector<EdgeRule> edges(1, EdgeRule::kZero);
  CHECK_THROWS_AS(plan_window(layout, edges, 0, [](int, int) { return Interval{}; }), LayoutError);
}
