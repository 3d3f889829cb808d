#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <set>
#include <tessera/core/error.hpp>
#include <tessera/core/threads.hpp>
#include <tessera/kernels/neighbors.hpp>
#include <tuple>

#include "support/dense.hpp"

using namespace tessera;
using namespace tessera::kernels;
using tessera::test::Rng;

namespace {

using Edge = std::tuple<std::int64_t, std::int64_t, int, int, int>;

std::vector<Edge> edges_of(const NeighborList& list) {
  std::vector<Edge> edges;
  for (std::size_t e = 0; e < list.receivers.size(); ++e) {
    edges.emplace_back(list.receivers[e], list.senders[e], list.shifts[3 * e],
                       list.shifts[3 * e + 1], list.shifts[3 * e + 2]);
  }
  return edges;
}

/// Every pair with every image in a range that is surely enough.
std::vector<Edge> brute_force(const std::vector<double>& points, const Cell& cell, double cutoff) {
  const Cell full = cell.completed();
  const Fractions fractions(full);
  const auto n = static_cast<std::int64_t>(points.size() / 3);
  std::array<int, 3> most{};
  for (std::size_t k = 0; k < 3; ++k) {
    if (!cell.periodic[k]) continue;
    double lo = 0;
    double hi = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double f = fractions.of(&points[static_cast<std::size_t>(3 * i)])[k];
      lo = i == 0 ? f : std::min(lo, f);
      hi = i == 0 ? f : std::max(hi, f);
    }
    most[k] = static_cast<int>(cutoff / fractions.height(static_cast<int>(k)) + hi - lo) + 2;
  }
  std::vector<Edge> edges;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      for (int a = -most[0]; a <= most[0]; ++a) {
        for (int b = -most[1]; b <= most[1]; ++b) {
          for (int c = -most[2]; c <= most[2]; ++c) {
            if (i == j && a == 0 && b == 0 && c == 0) continue;
            double r2 = 0.0;
            for (std::size_t x = 0; x < 3; ++x) {
              const double d = points[static_cast<std::size_t>(3 * i) + x] -
                               points[static_cast<std::size_t>(3 * j) + x] +
                               a * cell.vectors[0][x] + b * cell.vectors[1][x] +
                               c * cell.vectors[2][x];
              r2 += d * d;
            }
            if (r2 < cutoff * cutoff) edges.emplace_back(i, j, a, b, c);
          }
        }
      }
    }
  }
  return edges;
}

std::vector<std::int64_t> iota(std::size_t n) {
  std::vector<std::int64_t> keys(n);
  std::iota(keys.begin(), keys.end(), 0);
  return keys;
}

Cell quartz_cell() {
  const double a = 4.9019;
  return {.vectors = {Vec3{a, 0, 0}, Vec3{-a / 2, a * std::sqrt(3.0) / 2, 0}, Vec3{0, 0, 5.3988}},
          .periodic = {true, true, true}};
}

std::vector<double> quartz_positions() {
  const double u = 0.4673;
  const double x = 0.4130;
  const double y = 0.2711;
  const double z = 0.2172;
  const std::vector<Vec3> fractions = {
      {x, y, z},       {-y, x - y, z + 1.0 / 3},  {-x + y, -x, z + 2.0 / 3},
      {y, x, -z},      {x - y, -y, -z + 2.0 / 3}, {-x, -x + y, -z + 1.0 / 3},
      {u, 0, 1.0 / 3}, {0, u, 2.0 / 3},           {-u, -u, 0}};
  const Fractions of(quartz_cell());
  std::vector<double> points;
  for (Vec3 f : fractions) {
    for (double& v : f) v -= std::floor(v);
    const Vec3 r = of.cartesian(f);
    points.insert(points.end(), r.begin(), r.end());
  }
  return points;
}

}  // namespace

TEST_CASE("quartz has the known numbers of neighbours") {
  const auto points = quartz_positions();
  REQUIRE(quartz_cell().volume() == Approx(112.34578).epsilon(1e-6));
  for (const auto& [cutoff, count] : std::vector<std::pair<double, std::size_t>>{
           {4.0, 168}, {4.5, 270}, {5.0, 408}, {6.0, 666}}) {
    const auto list = find_neighbors(points, 9, quartz_cell(), cutoff, iota(9));
    REQUIRE(list.receivers.size() == count);
    REQUIRE(list.overlap[0] == -1);
  }
}

TEST_CASE("neighbours equal brute force over images") {
  Rng rng(test::from_process_0(7));
  for (int draw = 0; draw < 150; ++draw) {
    Cell cell;
    for (std::size_t k = 0; k < 3; ++k) {
      cell.periodic[k] = rng.coin(0.6);
      for (std::size_t c = 0; c < 3; ++c)
        cell.vectors[k][c] = (k == c ? rng.real(1.5, 6.0) : 0.0) + rng.real(-0.7, 0.7);
      if (!cell.periodic[k] && rng.coin()) cell.vectors[k] = {0, 0, 0};
      if (rng.coin(0.1))
        for (double& v : cell.vectors[k]) v = -v;
    }
    // Cells that are flatter than the cutoff by far cost the reference too much.
    const auto n = rng.integer(0, 12);
    const double spread = rng.coin() ? 3.0 : 12.0;
    std::vector<double> points;
    for (std::int64_t i = 0; i < 3 * n; ++i) points.push_back(rng.real(-spread, spread));
    const double cutoff = rng.real(0.5, 5.0);
    INFO("draw " << draw << ", " << n << " points, cutoff " << cutoff);
    const auto keys = iota(static_cast<std::size_t>(n));
    const auto list = find_neighbors(points, n, cell, cutoff, keys);
    const auto edges = edges_of(list);
    REQUIRE(std::is_sorted(edges.begin(), edges.end()));
    REQUIRE(edges == brute_force(points, cell, cutoff));
    // Every edge has its reverse.
    const std::set<Edge> all(edges.begin(), edges.end());
    for (const auto& [i, j, a, b, c] : edges) REQUIRE(all.count({j, i, -a, -b, -c}) == 1);
    // Fewer receivers have the same edges; keys decide the order alone.
    const auto some = n / 2;
    auto first = edges;
    std::erase_if(first, [&](const Edge& e) { return std::get<0>(e) >= some; });
    REQUIRE(edges_of(find_neighbors(points, some, cell, cutoff, keys)) == first);
    auto reversed = keys;
    std::reverse(reversed.begin(), reversed.end());
    auto other = edges_of(find_neighbors(points, n, cell, cutoff, reversed));
    REQUIRE(std::is_sorted(other.begin(), other.end(), [&](const Edge& p, const Edge& q) {
      return std::tuple(std::get<0>(p), -std::get<1>(p), std::get<2>(p), std::get<3>(p)) <
             std::tuple(std::get<0>(q), -std::get<1>(q), std::get<2>(q), std::get<3>(q));
    }));
    std::sort(other.begin(), other.end());
    REQUIRE(other == edges);
  }
}

TEST_CASE("a cutoff of many cells finds images of a point itself") {
  const Cell cube = {.vectors = {Vec3{1, 0, 0}, Vec3{0, 1, 0}, Vec3{0, 0, 1}},
                     .periodic = {true, true, true}};
  const std::vector<double> point = {0.3, 0.2, 0.9};
  // Lattice points within a sphere, less its centre.
  REQUIRE(find_neighbors(point, 1, cube, 1.01, iota(1)).receivers.size() == 6);
  REQUIRE(find_neighbors(point, 1, cube, 3.01, iota(1)).receivers.size() == 122);
  // Strictly closer than the cutoff.
  REQUIRE(find_neighbors(point, 1, cube, 1.0, iota(1)).receivers.empty());
}

TEST_CASE("moving points by lattice vectors changes shifts only") {
  Rng rng(3);
  const Cell cell = quartz_cell();
  auto points = quartz_positions();
  const auto before = edges_of(find_neighbors(points, 9, cell, 4.5, iota(9)));
  std::vector<std::array<std::int32_t, 3>> moves;
  for (std::size_t i = 0; i < 9; ++i) {
    moves.push_back({static_cast<std::int32_t>(rng.integer(-3, 3)),
                     static_cast<std::int32_t>(rng.integer(-3, 3)),
                     static_cast<std::int32_t>(rng.integer(-3, 3))});
    const Vec3 s = cell.shift(moves[i]);
    for (std::size_t c = 0; c < 3; ++c) points[3 * i + c] += s[c];
  }
  auto expected = before;
  for (auto& [i, j, a, b, c] : expected) {
    const auto& to = moves[static_cast<std::size_t>(i)];
    const auto& from = moves[static_cast<std::size_t>(j)];
    a += from[0] - to[0];
    b += from[1] - to[1];
    c += from[2] - to[2];
  }
  std::sort(expected.begin(), expected.end());
  REQUIRE(edges_of(find_neighbors(points, 9, cell, 4.5, iota(9))) == expected);
}

TEST_CASE("many points: threads change nothing, and bins miss nothing") {
  Rng rng(11);
  const Cell cell = {.vectors = {Vec3{12, 0, 0}, Vec3{3, 11, 0}, Vec3{-2, 1, 13}},
                     .periodic = {true, true, false}};
  std::vector<double> points;
  for (int i = 0; i < 3 * 600; ++i) points.push_back(rng.real(0.0, 12.0));
  const auto keys = iota(600);
  const int threads = thread_count();
  set_thread_count(1);
  const auto one = edges_of(find_neighbors(points, 600, cell, 3.0, keys));
  set_thread_count(3);
  const auto three = edges_of(find_neighbors(points, 600, cell, 3.0, keys));
  set_thread_count(threads);
  REQUIRE(one == three);
  REQUIRE(one == brute_force(points, cell, 3.0));
}

TEST_CASE("cells and cutoffs without meaning are refused; points at one place are named") {
  const std::vector<double> points = {0, 0, 0, 1, 1, 1};
  const Cell none;
  REQUIRE_THROWS_AS(find_neighbors(points, 2, none, 0.0, iota(2)), UsageError);
  REQUIRE_THROWS_AS(find_neighbors(points, 2, none, 1.0, iota(1)), ShapeError);
  Cell flat = {.vectors = {Vec3{1, 0, 0}, Vec3{2, 0, 0}, Vec3{0, 0, 1}},
               .periodic = {true, true, true}};
  REQUIRE_THROWS_AS(find_neighbors(points, 2, flat, 1.0, iota(2)), ShapeError);
  flat.vectors[1] = {0, 0, 0};
  REQUIRE_THROWS_AS(find_neighbors(points, 2, flat, 1.0, iota(2)), ShapeError);
  const std::vector<double> twice = {0.5, 0, 0, 1, 1, 1, 0.5, 0, 0};
  const auto list = find_neighbors(twice, 3, none, 1.0, iota(3));
  REQUIRE(list.overlap == std::array<std::int64_t, 2>{0, 2});
  const std::vector<double> nan = {0.5, std::nan(""), 0};
  REQUIRE_THROWS_AS(find_neighbors(nan, 1, none, 1.0, iota(1)), ShapeError);
}
