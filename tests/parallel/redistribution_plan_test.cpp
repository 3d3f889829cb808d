// ranks: 1
#include <catch2/catch.hpp>
#include <cmath>

#include "parallel/redistribution_simulation.hpp"

using namespace tessera;
using namespace tessera::parallel;
using namespace tessera::test;

namespace {

Mesh grid(const std::vector<MeshAxis>& axes) {
  int size = 1;
  for (const MeshAxis& a : axes) size *= a.size;
  std::vector<int> processes(static_cast<std::size_t>(size));
  std::iota(processes.begin(), processes.end(), 0);
  return Mesh::of(processes, axes);
}

}  // namespace

TEST_CASE("all pairs of layouts of a small matrix on a 2x3 mesh") {
  const Mesh mesh = grid({{"a", 2}, {"b", 3}});
  const Shape shape{4, 5};
  std::vector<Layout> layouts;
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < 4; ++b) {  // split 0, split 1, Partial, replicated
      std::vector<std::vector<int>> orders{{0, 1}};
      if (a == b && a < 2) orders.push_back({1, 0});
      for (const auto& order : orders) {
        std::vector<DimSplit> splits(2);
        AxisMask partial = 0;
        for (const int axis : order) {
          const int role = axis == 0 ? a : b;
          if (role < 2) splits[static_cast<std::size_t>(role)].axes.push_back(axis);
          if (role == 2) partial |= AxisMask{1} << axis;
        }
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
          layouts.push_back(Layout::make(mesh, shape, splits, partial, op));
          if (partial == 0) break;
        }
      }
    }
  }
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      const std::string wrong = check_redistribution(from, to, 11);
      if (!wrong.empty()) FAIL(wrong << ": " << from << " to " << to);
    }
  }
  CHECK(layouts.size() == 32);
}

TEST_CASE("random redistributions") {
  Random random("redistribution plans");
  for (int draw = 0; draw < 6000; ++draw) {
    const RedistributionCase c = random_redistribution(random, draw % 10 ? 24 : 64);
    const std::string wrong = check_redistribution(c.from, c.to, c.seed);
    if (!wrong.empty()) {
      FAIL(wrong << ": " << c.from << " to " << c.to << " on (" << c.from.mesh().str() << "), draw "
                 << draw);
    }
  }
}

TEST_CASE("redistributions between a thousand simulated ranks") {
  Random random("redistribution plans of 1000 ranks");
  for (const auto& axes : {std::vector<MeshAxis>{{"x", 1000}},
                           {{"x", 25}, {"y", 40}},
                           {{"x", 10}, {"y", 10}, {"z", 10}}}) {
    const Mesh mesh = grid(axes);
    const Shape shape{random.integer(20, 60), random.integer(1, 5)};
    const Layout from = random_layout(random, mesh, shape, false);
    const Layout to = random_layout(random, mesh, shape, false);
    const std::string wrong = check_redistribution(from, to, 5);
    if (!wrong.empty()) FAIL(wrong << ": " << from << " to " << to);
  }
}

TEST_CASE("what moves, and what does not") {
  const Mesh mesh = grid({{"a", 4}});
  const Shape shape{8, 12};
  const Layout everywhere = Layout::replicated(mesh, shape);
  const Layout rows = Layout::make(mesh, shape, {{{0}, {}}, {}});
  const Layout columns = Layout::make(mesh, shape, {{}, {{0}, {}}});
  const Layout sum = everywhere.with_partial(1);
  const Layout largest = everywhere.with_partial(1, ReduceOp::kMax);

  CHECK(redistribution_cost(everywhere, rows).total_elements == 0);
  CHECK(redistribution_cost(everywhere, sum).total_elements == 0);
  CHECK(redistribution_cost(rows, sum).total_elements == 0);
  CHECK(redistribution_cost(rows, rows).total_elements == 0);
  CHECK(redistribution_cost(rows, columns).total_elements == 96 * 3 / 4);
  CHECK(redistribution_cost(rows, everywhere).total_elements == 4 * 96 * 3 / 4);
  CHECK(redistribution_cost(sum, rows).total_elements == 96 * 3);           // a reduce-scatter
  CHECK(redistribution_cost(sum, everywhere).rank_elements == 96 * 3 / 2);  // an all-reduce
  CHECK(redistribution_steps(rows, rows).empty());
  CHECK(redistribution_steps(sum, everywhere).size() == 1);
  CHECK(redistribution_steps(sum, everywhere)[0].axes == 1);
  CHECK(redistribution_steps(sum, rows)[0].axes == 0);

  const RedistributionPlan root = plan_redistribution(sum, largest, 0);
  CHECK(root.receives.size() == 3);
  CHECK_FALSE(root.filled);
  const RedistributionPlan other = plan_redistribution(sum, largest, 2);
  CHECK(other.receives.empty());
  CHECK(other.filled);
  CHECK(other.fill == ReduceOp::kMax);
}

TEST_CASE("a sum over one axis is taken where a rank holds less") {
  const Mesh mesh = grid({{"a", 2}, {"b", 3}});
  const Shape shape{6, 6};
  const Layout split_sum = Layout::make(mesh, shape, {{{0}, {}}, {}}, 2);
  const Layout whole = Layout::replicated(mesh, shape);
  const auto before = redistribution_steps(split_sum, whole);
  REQUIRE(before.size() == 2);  // reduce the half, then gather
  CHECK(before[0].axes == 2);
  const Layout both = whole.with_partial(3);
  const Layout rows = Layout::make(mesh, shape, {{{0}, {}}, {}});
  const auto after = redistribution_steps(both, rows);
  REQUIRE(after.size() == 2);  // reduce-scatter over a, then reduce the half over b
  CHECK(after[0].axes == 0);
  CHECK(after[1].axes == 2);
}

TEST_CASE("a plan of one of ten thousand ranks is short") {
  const Mesh mesh = grid({{"a", 100}, {"b", 100}});
  const Shape shape{10000, 16};
  const Layout from = Layout::make(mesh, shape, {{{0, 1}, {}}, {}});
  Bounds shifted = balanced_bounds(10000, 10000);
  for (std::size_t i = 1; i + 1 < shifted.size(); ++i) shifted[i] -= 1;
  const Layout to = Layout::make(mesh, shape, {{{0, 1}, shifted}, {}});
  const RedistributionPlan plan = plan_redistribution(from, to, 5000);
  CHECK(plan.receives.size() == 1);
  CHECK(plan.sends.size() == 1);
  const Layout rows = Layout::make(mesh, shape, {{{0}, {}}, {}});
  CHECK(plan_redistribution(from, rows, 77).receives.size() == 99);
}

TEST_CASE("planted faults in redistribution plans are found") {
  Random random("planted faults");
  int planted = 0;
  for (int draw = 0; draw < 200; ++draw) {
    const RedistributionCase c = random_redistribution(random, 12);
    std::vector<RedistributionPlan> plans;
    for (int r = 0; r < c.from.mesh().size(); ++r)
      plans.push_back(plan_redistribution(c.from, c.to, r));
    Parts parts = make_parts(
        c.from, [&](int r, const Index& i) { return piece_value(c.from, c.seed, r, i); });
    std::string wrong;
    run_transfers(c.to, plans, parts, wrong);
    REQUIRE(wrong == "");
    for (RedistributionPlan& plan : plans) {
      if (plan.receives.empty()) continue;
      plan.receives.pop_back();
      run_transfers(c.to, plans, parts, wrong);
      CHECK(wrong != "");
      ++planted;
      break;
    }
  }
  CHECK(planted > 0);
}

TEST_CASE("layouts of other meshes or shapes are refused") {
  const Layout a = Layout::replicated(grid({{"a", 2}}), {3});
  const Layout b = Layout::replicated(grid({{"b", 2}}), {3});
  const Layout c = Layout::replicated(grid({{"a", 2}}), {4});
  CHECK_THROWS_AS(plan_redistribution(a, b, 0), LayoutError);
  CHECK_THROWS_AS(redistribution_steps(a, c), LayoutError);
  CHECK_THROWS_AS(redistribution_cost(a, c), LayoutError);
}
