// Runs the redistribution plans of all ranks of a mesh in one process, on plain arrays.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <tessera/core/tensor.hpp>
#include <tessera/parallel/redistribution_plan.hpp>
#include <vector>

#include "parallel/random_layout.hpp"

namespace tessera::test {

using parallel::RedistributionPlan;
using parallel::Transfer;

inline double reduce(ReduceOp op, double a, double b) {
  return op == ReduceOp::kSum ? a + b : op == ReduceOp::kMax ? std::max(a, b) : std::min(a, b);
}

inline double neutral(ReduceOp op) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return op == ReduceOp::kSum ? 0.0 : op == ReduceOp::kMax ? -kInfinity : kInfinity;
}

/// The part of one rank: a dense array over its box.
struct Part {
  Box box;
  std::vector<double> values;

  double& operator[](const Index& i) {
    std::int64_t offset = 0;
    for (int d = 0; d < i.size(); ++d) {
      if (i[d] < box.lo[d] || i[d] >= box.hi[d]) throw std::out_of_range("part");
      offset = offset * box[d].size() + i[d] - box.lo[d];
    }
    return values[static_cast<std::size_t>(offset)];
  }
};

using Parts = std::vector<Part>;

inline Parts make_parts(const Layout& layout,
                        const std::function<double(int rank, const Index&)>& f) {
  Parts parts;
  for (int r = 0; r < layout.mesh().size(); ++r) {
    parts.push_back({layout.owned(r), {}});
    for_each_index(layout.owned(r),
                   [&](const Index& i) { parts.back().values.push_back(f(r, i)); });
  }
  return parts;
}

inline std::int64_t linear_index(const Shape& shape, const Index& i) {
  std::int64_t linear = 0;
  for (int d = 0; d < i.size(); ++d) linear = linear * shape[d] + i[d];
  return linear;
}

/// What rank `rank` holds of the value `seed` in `layout`: a small whole number (sums are exact)
/// that depends on the coordinates on Partial axes only.
inline double piece_value(const Layout& layout, std::uint64_t seed, int rank, const Index& i) {
  std::int64_t place = 0;
  const Mesh& mesh = layout.mesh();
  for (int a = 0; a < mesh.axis_count(); ++a)
    if (layout.partial_axes() >> a & 1u)
      place = place * mesh.axis_size(a) + mesh.coordinate(rank, a);
  return std::round(1000.0 * noise(seed, {place, linear_index(layout.shape(), i)}));
}

/// The global value: the pieces of all coordinates on Partial axes combined.
inline double whole_value(const Layout& layout, std::uint64_t seed, const Index& i) {
  double value = neutral(layout.partial_op());
  for (const int r : layout.mesh().group(0, layout.partial_axes()))
    value = reduce(layout.partial_op(), value, piece_value(layout, seed, r, i));
  return value;
}

/// One step of transfers; `wrong` gets what does not fit.
inline Parts run_transfers(const Layout& to,
                           const std::vector<RedistributionPlan>& plans,
                           Parts& before,
                           std::string& wrong) {
  const int ranks = to.mesh().size();
  std::map<std::pair<int, int>, Box> wires;
  for (int s = 0; s < ranks; ++s) {
    const RedistributionPlan& plan = plans[static_cast<std::size_t>(s)];
    int last = -1;
    for (const Transfer& t : plan.sends) {
      if (t.peer == s || t.peer <= last) wrong = str("order of the sends of rank ", s);
      last = t.peer;
      if (t.box.empty()) wrong = str("rank ", s, " sends an empty box");
      if (!before[static_cast<std::size_t>(s)].box.contains(t.box))
        wrong = str("rank ", s, " sends what it lacks");
      wires[{s, t.peer}] = t.box;
    }
  }
  Parts after;
  for (int r = 0; r < ranks && wrong.empty(); ++r) {
    const RedistributionPlan& plan = plans[static_cast<std::size_t>(r)];
    if (!(plan.target == to.owned(r))) wrong = str("target of rank ", r);
    const double start =
        plan.filled ? neutral(plan.fill) : std::numeric_limits<double>::quiet_NaN();
    after.push_back(
        {plan.target, std::vector<double>(static_cast<std::size_t>(plan.target.volume()), start)});
    std::vector<Transfer> all = plan.receives;
    for (const Transfer& t : plan.local) {
      if (t.peer != r) wrong = str("a local transfer of rank ", r, " names another rank");
      all.insert(
          std::upper_bound(all.begin(), all.end(), t,
                           [](const Transfer& a, const Transfer& b) { return a.peer < b.peer; }),
          t);
    }
    int last = -1;
    for (const Transfer& t : all) {
      if (t.peer <= last) wrong = str("order of the receives of rank ", r);
      last = t.peer;
      if (t.peer != r) {
        const auto wire = wires.find({t.peer, r});
        if (wire == wires.end() || !(wire->second == t.box)) {
          wrong = str("ranks ", t.peer, " and ", r, " differ");
          break;
        }
        wires.erase(wire);
      }
      for_each_index(t.box, [&](const Index& i) {
        double& value = after.back()[i];
        const double given = before[static_cast<std::size_t>(t.peer)][i];
        value = t.first ? given : reduce(plan.combine, value, given);
      });
    }
  }
  if (wrong.empty() && !wires.empty()) wrong = "a message that nobody receives";
  return after;
}

/// What is wrong with going from `from` to `to`; empty when nothing is.
inline std::string check_redistribution(const Layout& from, const Layout& to, std::uint64_t seed) {
  const Mesh& mesh = from.mesh();
  Parts parts =
      make_parts(from, [&](int r, const Index& i) { return piece_value(from, seed, r, i); });
  std::string wrong;
  Layout current = from;
  std::int64_t total = 0;
  std::int64_t busiest = 0;
  for (const parallel::RedistributionStep& step : parallel::redistribution_steps(from, to)) {
    if (step.axes) {
      if (!(current.with_partial(current.partial_axes() & ~step.axes, current.partial_op()) ==
            step.to))
        return "an all-reduce that changes more than its axes";
      Parts after = parts;
      const std::int64_t p = mesh.parts(step.axes);
      std::int64_t most = 0;
      for (int r = 0; r < mesh.size(); ++r) {
        const auto group = mesh.group(r, step.axes);
        for_each_index(current.owned(r), [&](const Index& i) {
          double value = neutral(current.partial_op());
          for (const int s : group)
            value = reduce(current.partial_op(), value, parts[static_cast<std::size_t>(s)][i]);
          after[static_cast<std::size_t>(r)][i] = value;
        });
        const std::int64_t moved = 2 * (p - 1) * current.owned(r).volume() / p;
        total += moved;
        most = std::max(most, moved);
      }
      busiest += most;
      parts = std::move(after);
    } else {
      std::vector<RedistributionPlan> plans;
      std::int64_t most = 0;
      for (int r = 0; r < mesh.size(); ++r) {
        plans.push_back(parallel::plan_redistribution(current, step.to, r));
        total += plans.back().receive_elements();
        most = std::max(most, plans.back().receive_elements());
      }
      busiest += most;
      parts = run_transfers(step.to, plans, parts, wrong);
      if (!wrong.empty()) return wrong;
    }
    current = step.to;
  }
  if (!(current == to)) return "the steps lead elsewhere";

  for (int r = 0; r < mesh.size() && wrong.empty(); ++r) {
    const auto group = mesh.group(r, to.partial_axes());
    for_each_index(to.owned(r), [&](const Index& i) {
      double value = neutral(to.partial_op());
      for (const int s : group)
        value = reduce(to.partial_op(), value, parts[static_cast<std::size_t>(s)][i]);
      const double expected = whole_value(from, seed, i);
      if (!(value == expected)) wrong = str("rank ", r, " at ", i, ": ", value, ", not ", expected);
    });
  }
  if (!wrong.empty()) return wrong;

  const parallel::RedistributionCost cost = parallel::redistribution_cost(from, to);
  if (cost.total_elements != total || cost.rank_elements != busiest) return "cost";
  return "";
}

struct RedistributionCase {
  Layout from;
  Layout to;
  std::uint64_t seed;
};

inline RedistributionCase random_redistribution(Random& random, int max_ranks) {
  const Mesh mesh = random_mesh(random, 4, max_ranks);
  Shape shape;
  const int dims = random.number(0, 3);
  for (int d = 0; d < dims; ++d) shape.push_back(random.integer(random.chance(0.05) ? 0 : 1, 9));
  return {random_layout(random, mesh, shape, true), random_layout(random, mesh, shape, true),
          static_cast<std::uint64_t>(random.integer(0, 1 << 30))};
}

}  // namespace tessera::test
