#include <algorithm>
#include <numeric>
#include <tessera/parallel/redistribution_plan.hpp>

#include "mesh_walk.hpp"

namespace tessera::parallel {

namespace {

/// Which ranks talk along the mesh axes. On an axis in none of the masks only equal coordinates do.
struct Rules {
  AxisMask source_all = 0;   ///< a target reads all coordinates
  AxisMask target_zero = 0;  ///< only coordinate 0 of the target reads; the others are filled
  AxisMask combine = 0;      ///< sources along it hold values of the same elements
};

AxisMask bit(int axis) { return AxisMask{1} << axis; }

Rules rules_of(const Layout& from, const Layout& to) {
  Rules rules;
  for (int a = 0; a < from.mesh().axis_count(); ++a) {
    const bool partial_after = (to.partial_axes() & bit(a)) != 0;
    if (from.split_axes() & bit(a)) {
      if (!partial_after) rules.source_all |= bit(a);
    } else if (from.partial_axes() & bit(a)) {
      if (partial_after && from.partial_op() == to.partial_op()) continue;
      rules.source_all |= bit(a);
      rules.combine |= bit(a);
      if (partial_after) rules.target_zero |= bit(a);
    } else if (partial_after) {
      rules.target_zero |= bit(a);
    }
  }
  return rules;
}

void check_same(const Layout& from, const Layout& to) {
  if (!(from.mesh() == to.mesh())) {
    throw LayoutError(str("redistribute: ", from, " lies on the mesh (", from.mesh().str(),
                          ") and ", to, " on (", to.mesh().str(), "). Use one mesh for both."));
  }
  if (!(from.shape() == to.shape())) {
    throw LayoutError(str("redistribute: ", from, " and ", to,
                          " have different shapes. Reshape before, or resolve the placement for ",
                          from.shape(), "."));
  }
}

struct PartOverlap {
  int offset;
  Interval common;
};

/// The parts of dimension `dim` that meet `mine` and lie at the coordinates of `rank` on the axes
/// outside `free`.
std::vector<PartOverlap> overlaps(
    const Layout& layout, const AxisWalk& walk, int dim, Interval mine, int rank, AxisMask free) {
  std::vector<PartOverlap> result;
  if (mine.empty()) return result;
  if (!layout.is_split(dim)) return {{0, mine}};
  const DimSplit& split = layout.split(dim);
  const Bounds& bounds = split.bounds;
  auto next = std::upper_bound(bounds.begin(), bounds.end(), mine.lo);
  for (; next != bounds.end() && *(next - 1) < mine.hi; ++next) {
    const Interval common = intersect(mine, {*(next - 1), *next});
    if (common.empty()) continue;
    const int part = static_cast<int>(next - bounds.begin()) - 1;
    const bool fits = std::all_of(split.axes.begin(), split.axes.end(), [&](int a) {
      return (free & bit(a)) ||
             walk.coordinate(split, part, a) == layout.mesh().coordinate(rank, a);
    });
    if (fits) result.push_back({walk.offset(layout, dim, part), common});
  }
  return result;
}

/// Calls f(peer, box) for the ranks whose part of `layout` meets `mine` and whose coordinates are
/// those of `rank`, except on `free` axes (any) and `zero` axes (0).
template <class F>
void for_each_peer(
    const Layout& layout, const Box& mine, int rank, AxisMask free, AxisMask zero, F&& f) {
  const Mesh& mesh = layout.mesh();
  const AxisWalk walk(mesh);
  int home = rank;
  for (int a = 0; a < mesh.axis_count(); ++a)
    if ((free | zero | layout.split_axes()) & bit(a))
      home -= mesh.coordinate(rank, a) * walk.stride(a);
  std::vector<int> bases{home};
  for (int a = 0; a < mesh.axis_count(); ++a) {
    if (!(free & ~zero & ~layout.split_axes() & bit(a))) continue;
    std::vector<int> grown;
    for (const int base : bases)
      for (int c = 0; c < mesh.axis_size(a); ++c) grown.push_back(base + c * walk.stride(a));
    bases = std::move(grown);
  }
  std::vector<std::vector<PartOverlap>> lists;
  for (int d = 0; d < layout.dims(); ++d) {
    lists.push_back(overlaps(layout, walk, d, mine[d], rank, free & ~zero));
    if (lists.back().empty()) return;
  }
  std::array<std::size_t, kMaxDims> at{};
  while (true) {
    Box box = mine;
    int offset = 0;
    for (std::size_t d = 0; d < lists.size(); ++d) {
      box.set(static_cast<int>(d), lists[d][at[d]].common);
      offset += lists[d][at[d]].offset;
    }
    for (const int base : bases) f(base + offset, box);
    std::size_t d = lists.size();
    for (; d > 0; --d) {
      if (++at[d - 1] < lists[d - 1].size()) break;
      at[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

bool all_zero(const Mesh& mesh, int rank, AxisMask axes) {
  for (int a = 0; a < mesh.axis_count(); ++a)
    if ((axes & bit(a)) && mesh.coordinate(rank, a) != 0) return false;
  return true;
}

void sort_by_peer(std::vector<Transfer>& transfers) {
  std::sort(transfers.begin(), transfers.end(),
            [](const Transfer& a, const Transfer& b) { return a.peer < b.peer; });
}

std::int64_t elements(const std::vector<Transfer>& transfers) {
  return std::accumulate(transfers.begin(), transfers.end(), std::int64_t{0},
                         [](std::int64_t sum, const Transfer& t) { return sum + t.box.volume(); });
}

/// Elements that rank `rank` receives from others in one step of transfers.
std::int64_t received_elements(
    const Layout& from, const Layout& to, const Rules& rules, const AxisWalk& walk, int rank) {
  const Mesh& mesh = from.mesh();
  if (!all_zero(mesh, rank, rules.target_zero)) return 0;
  std::int64_t all = mesh.parts(rules.combine);
  std::int64_t own = 1;
  for (int d = 0; d < from.dims(); ++d) {
    const Interval target = to.owned(d, rank);
    own *= intersect(target, from.owned(d, rank)).size();
    if ((from.axes_of(d) & ~rules.source_all) == 0) {
      all *= target.size();
      continue;
    }
    std::int64_t common = 0;
    for (const PartOverlap& o : overlaps(from, walk, d, target, rank, rules.source_all))
      common += o.common.size();
    all *= common;
  }
  return all - own;
}

}  // namespace

std::int64_t RedistributionPlan::receive_elements() const { return elements(receives); }
std::int64_t RedistributionPlan::send_elements() const { return elements(sends); }

RedistributionPlan plan_redistribution(const Layout& from, const Layout& to, int rank) {
  check_same(from, to);
  const Mesh& mesh = from.mesh();
  const Rules rules = rules_of(from, to);
  RedistributionPlan plan;
  plan.owned = from.owned(rank);
  plan.target = to.owned(rank);
  plan.combine = from.partial_op();
  plan.fill = to.partial_op();

  std::int64_t covered = 0;
  if (all_zero(mesh, rank, rules.target_zero)) {
    for_each_peer(from, plan.target, rank, rules.source_all, 0, [&](int peer, const Box& box) {
      const bool first = all_zero(mesh, peer, rules.combine);
      if (first) covered += box.volume();
      (peer == rank ? plan.local : plan.receives).push_back({peer, box, first});
    });
  }
  plan.filled = covered != plan.target.volume();

  // The other way round: a rank away from coordinate 0 of a replicated axis that becomes Partial
  // gives nothing; where values combine, all coordinates give to 0.
  if (all_zero(mesh, rank, rules.target_zero & ~rules.combine)) {
    for_each_peer(to, plan.owned, rank, rules.source_all, rules.target_zero,
                  [&](int peer, const Box& box) {
                    if (peer != rank)
                      plan.sends.push_back({peer, box, all_zero(mesh, rank, rules.combine)});
                  });
  }
  sort_by_peer(plan.receives);
  sort_by_peer(plan.sends);
  return plan;
}

std::vector<RedistributionStep> redistribution_steps(const Layout& from, const Layout& to) {
  check_same(from, to);
  std::vector<RedistributionStep> steps;
  if (from == to) return steps;
  const AxisMask reduced = from.partial_axes() & ~to.partial_axes() & ~to.split_axes();
  if (reduced == 0) return {{to, 0}};
  const Mesh& mesh = from.mesh();
  const bool can_reduce_after = to.partial_axes() == 0 || to.partial_op() == from.partial_op();
  if (can_reduce_after && mesh.parts(to.split_axes()) > mesh.parts(from.split_axes())) {
    const Layout middle = to.with_partial(to.partial_axes() | reduced, from.partial_op());
    if (!(middle == from)) steps.push_back({middle, 0});
    steps.push_back({to, reduced});
    return steps;
  }
  const Layout middle = from.with_partial(from.partial_axes() & ~reduced, from.partial_op());
  steps.push_back({middle, reduced});
  if (!(middle == to)) steps.push_back({to, 0});
  return steps;
}

RedistributionCost redistribution_cost(const Layout& from, const Layout& to) {
  RedistributionCost cost;
  Layout current = from;
  for (const RedistributionStep& step : redistribution_steps(from, to)) {
    const AxisWalk walk(from.mesh());
    const Rules rules = rules_of(current, step.to);
    const std::int64_t parts = from.mesh().parts(step.axes);
    std::int64_t total = 0;
    std::int64_t most = 0;
    for (int r = 0; r < from.mesh().size(); ++r) {
      const std::int64_t received = step.axes ? 2 * (parts - 1) * step.to.owned(r).volume() / parts
                                              : received_elements(current, step.to, rules, walk, r);
      total += received;
      most = std::max(most, received);
    }
    cost.total_elements += total;
    cost.rank_elements += most;
    cost.steps += total > 0;
    current = step.to;
  }
  return cost;
}

}  // namespace tessera::parallel
