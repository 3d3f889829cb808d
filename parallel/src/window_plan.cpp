#include <algorithm>
#include <numeric>
#include <tessera/parallel/window_plan.hpp>

#include "mesh_walk.hpp"

namespace tessera::parallel {

namespace {

/// Appends the parts of the run [at.lo, at.hi) whose real coordinates are base + sign * virtual.
void append_run(std::vector<Segment>& segments,
                Interval at,
                std::int64_t base,
                int sign,
                const Bounds& bounds) {
  while (!at.empty()) {
    const std::int64_t real = base + sign * at.lo;
    // The last boundary not above `real` starts the part that holds it, whatever empty parts
    // precede.
    const auto next = std::upper_bound(bounds.begin(), bounds.end(), real);
    const auto part = next - bounds.begin() - 1;
    const std::int64_t room =
        sign > 0 ? *next - real : real - bounds[static_cast<std::size_t>(part)] + 1;
    const std::int64_t length = std::min(at.size(), room);
    const std::int64_t last = real + sign * (length - 1);
    segments.push_back({{at.lo, at.lo + length},
                        {std::min(real, last), std::max(real, last) + 1},
                        sign,
                        static_cast<int>(part)});
    at.lo += length;
  }
}

void append_repeated(std::vector<Segment>& segments,
                     Interval at,
                     std::int64_t real,
                     const Bounds& bounds) {
  if (at.empty()) return;
  const auto next = std::upper_bound(bounds.begin(), bounds.end(), real);
  segments.push_back({at, {real, real + 1}, 0, static_cast<int>(next - bounds.begin() - 1)});
}

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/// The images of [0, n) outside of it: turn k covers n coordinates from k * n on.
void append_circular(std::vector<Segment>& segments,
                     Interval at,
                     std::int64_t n,
                     const Bounds& bounds) {
  while (!at.empty()) {
    const std::int64_t turn = floor_div(at.lo, n);
    const Interval run{at.lo, std::min(at.hi, (turn + 1) * n)};
    append_run(segments, run, -turn * n, 1, bounds);
    at.lo = run.hi;
  }
}

/// Runs of n - 1 coordinates between turning points m * (n - 1); a turning point belongs to the run
/// on its inner side, so that the domain itself is one run.
void append_reflected(std::vector<Segment>& segments,
                      Interval at,
                      std::int64_t n,
                      const Bounds& bounds) {
  const std::int64_t length = n - 1;
  while (!at.empty()) {
    const bool below = at.lo < 0;
    const std::int64_t m = floor_div(below ? at.lo : at.lo - 1, length);
    const Interval run{at.lo, std::min(at.hi, (m + 1) * length + (below ? 0 : 1))};
    const bool mirrored = m % 2 != 0;
    append_run(segments, run, mirrored ? (m + 1) * length : -m * length, mirrored ? -1 : 1, bounds);
    at.lo = run.hi;
  }
}

void append_outside(std::vector<Segment>& segments,
                    Interval at,
                    const Bounds& bounds,
                    EdgeRule edge) {
  const std::int64_t n = bounds.back();
  if (at.empty()) return;
  if (edge == EdgeRule::kReplicate || (edge == EdgeRule::kReflect && n == 1)) {
    append_repeated(segments, at, at.lo < 0 ? 0 : n - 1, bounds);
  } else if (edge == EdgeRule::kReflect) {
    append_reflected(segments, at, n, bounds);
  } else {
    append_circular(segments, at, n, bounds);
  }
}

/// One dimension of the send side: the receivers' parts that look at this rank's part, and how.
struct Receiver {
  int offset;
  std::vector<Segment> segments;
};

using SegmentLists = std::vector<const std::vector<Segment>*>;

/// Calls f(segment indices) for the product of the lists, last dimension fastest.
template <class F>
void for_each_combination(const SegmentLists& lists, F&& f) {
  std::array<std::size_t, kMaxDims> at{};
  for (const auto* list : lists)
    if (list->empty()) return;
  while (true) {
    f(at);
    std::size_t d = lists.size();
    for (; d > 0; --d) {
      if (++at[d - 1] < lists[d - 1]->size()) break;
      at[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

Cell make_cell(const SegmentLists& lists, const std::array<std::size_t, kMaxDims>& at, int peer) {
  Cell cell;
  cell.peer = peer;
  for (std::size_t d = 0; d < lists.size(); ++d) {
    const Segment& s = (*lists[d])[at[d]];
    cell.at.lo.push_back(s.at.lo);
    cell.at.hi.push_back(s.at.hi);
    cell.from.lo.push_back(s.from.lo);
    cell.from.hi.push_back(s.from.hi);
    cell.step[d] = static_cast<std::int8_t>(s.step);
  }
  return cell;
}

void sort_by_peer(std::vector<Cell>& cells) {
  std::stable_sort(cells.begin(), cells.end(),
                   [](const Cell& a, const Cell& b) { return a.peer < b.peer; });
}

/// Whether nothing of `need` can lie in `owned`; spares cutting the needs of the many far parts.
bool misses(Interval need, Interval owned, std::int64_t n, EdgeRule edge) {
  if (need.empty() || owned.empty()) return true;
  const bool inside = need.lo >= 0 && need.hi <= n;
  return (inside || edge == EdgeRule::kZero) && intersect(need, owned).empty();
}

std::int64_t elements(const std::vector<Cell>& cells) {
  return std::accumulate(cells.begin(), cells.end(), std::int64_t{0},
                         [](std::int64_t sum, const Cell& c) { return sum + c.elements(); });
}

int peers(const std::vector<Cell>& cells) {
  int count = 0;
  for (std::size_t i = 0; i < cells.size(); ++i)
    count += i == 0 || cells[i].peer != cells[i - 1].peer;
  return count;
}

}  // namespace

std::vector<Segment> window_segments(Interval need, const Bounds& bounds, EdgeRule edge) {
  std::vector<Segment> segments;
  const std::int64_t n = bounds.back();
  if (need.empty() || (n == 0 && edge == EdgeRule::kZero)) return segments;
  if (n == 0) {
    throw ShapeError(str("window: the ", name(edge), " rule has no element to show (the dimension ",
                         "is empty). Use zero padding, or skip empty inputs."));
  }
  if (edge != EdgeRule::kZero)
    append_outside(segments, {need.lo, std::min<std::int64_t>(need.hi, 0)}, bounds, edge);
  append_run(segments, intersect(need, {0, n}), 0, 1, bounds);
  if (edge != EdgeRule::kZero)
    append_outside(segments, {std::max(need.lo, n), need.hi}, bounds, edge);
  return segments;
}

std::int64_t ExchangePlan::receive_bytes(DType dtype) const {
  return elements(receives) * static_cast<std::int64_t>(size_of(dtype));
}
std::int64_t ExchangePlan::send_bytes(DType dtype) const {
  return elements(sends) * static_cast<std::int64_t>(size_of(dtype));
}
int ExchangePlan::receive_messages() const { return peers(receives); }
int ExchangePlan::send_messages() const { return peers(sends); }

ExchangePlan plan_window(const Layout& input,
                         std::span<const EdgeRule> edges,
                         int rank,
                         const NeededFunction& needed) {
  const int dims = input.dims();
  if (static_cast<int>(edges.size()) != dims) {
    throw LayoutError(str("plan_window: ", edges.size(), " edge rules for the ", dims,
                          " dimensions of ", input, ". Give one per dimension."));
  }
  ExchangePlan plan;
  plan.global = input.shape();
  plan.owned = input.owned(rank);
  plan.needed = Box(Dims::filled(dims, 0), Dims::filled(dims, 0));
  const AxisWalk walk(input.mesh());

  std::vector<Bounds> bounds;
  std::vector<std::vector<Segment>> own_segments;
  SegmentLists lists;
  std::vector<int> own_parts;
  for (int d = 0; d < dims; ++d) {
    const auto i = static_cast<std::size_t>(d);
    bounds.push_back(input.is_split(d) ? input.split(d).bounds : Bounds{0, input.shape()[d]});
    own_parts.push_back(input.part_of(d, rank));
    const Interval need = needed(d, rank);
    plan.needed.set(d, need);
    own_segments.push_back(window_segments(need, bounds[i], edges[i]));
  }
  for (const auto& s : own_segments) lists.push_back(&s);

  for_each_combination(lists, [&](const std::array<std::size_t, kMaxDims>& at) {
    int owner = rank;
    bool in_place = true;
    for (int d = 0; d < dims; ++d) {
      const auto i = static_cast<std::size_t>(d);
      const Segment& s = own_segments[i][at[i]];
      owner += walk.offset(input, d, s.part) - walk.offset(input, d, own_parts[i]);
      in_place = in_place && s.step == 1 && s.at == s.from;
    }
    if (owner == rank && in_place) return;
    (owner == rank ? plan.local : plan.receives).push_back(make_cell(lists, at, owner));
  });
  sort_by_peer(plan.receives);

  std::vector<std::vector<Receiver>> receivers(static_cast<std::size_t>(dims));
  for (int d = 0; d < dims; ++d) {
    const auto i = static_cast<std::size_t>(d);
    const int own_offset = walk.offset(input, d, own_parts[i]);
    for (int part = 0; part < input.parts(d); ++part) {
      const int offset = walk.offset(input, d, part) - own_offset;
      const Interval need = needed(d, rank + offset);
      if (misses(need, plan.owned[d], input.shape()[d], edges[i])) continue;
      Receiver receiver{offset, window_segments(need, bounds[i], edges[i])};
      std::erase_if(receiver.segments, [&](const Segment& s) { return s.part != own_parts[i]; });
      if (!receiver.segments.empty()) receivers[i].push_back(std::move(receiver));
    }
    if (receivers[i].empty()) return plan;
  }
  std::array<std::size_t, kMaxDims> at{};
  SegmentLists chosen(static_cast<std::size_t>(dims));
  while (true) {
    int peer = rank;
    for (std::size_t d = 0; d < receivers.size(); ++d) {
      peer += receivers[d][at[d]].offset;
      chosen[d] = &receivers[d][at[d]].segments;
    }
    if (peer != rank) {
      for_each_combination(chosen, [&](const std::array<std::size_t, kMaxDims>& s) {
        plan.sends.push_back(make_cell(chosen, s, peer));
      });
    }
    std::size_t d = receivers.size();
    for (; d > 0; --d) {
      if (++at[d - 1] < receivers[d - 1].size()) break;
      at[d - 1] = 0;
    }
    if (d == 0) break;
  }
  sort_by_peer(plan.sends);
  return plan;
}

Interval interior_interval(Interval work,
                           Interval owned,
                           std::int64_t n,
                           EdgeRule edge,
                           const std::function<Interval(Interval)>& need) {
  if (work.empty()) return {work.lo, work.lo};
  const bool open_low = edge == EdgeRule::kZero && owned.lo == 0;
  const bool open_high = edge == EdgeRule::kZero && owned.hi == n;
  Interval inside = work;
  if (!open_low) {
    std::int64_t bad = work.lo - 1;  // first index whose need starts late enough, by bisection
    std::int64_t good = work.hi;
    while (good - bad > 1) {
      const std::int64_t mid = bad + (good - bad) / 2;
      (need({mid, work.hi}).lo >= owned.lo ? good : bad) = mid;
    }
    inside.lo = good;
  }
  if (!open_high) {
    std::int64_t good = work.lo;
    std::int64_t bad = work.hi + 1;
    while (bad - good > 1) {
      const std::int64_t mid = good + (bad - good) / 2;
      (need({work.lo, mid}).hi <= owned.hi ? good : bad) = mid;
    }
    inside.hi = good;
  }
  return inside.empty() ? Interval{work.lo, work.lo} : inside;
}

WorkSplit split_work(const Box& work, std::span<const Interval> interior) {
  WorkSplit split;
  split.interior = work;
  for (int d = 0; d < work.dims(); ++d)
    split.interior.set(d, intersect(work[d], interior[static_cast<std::size_t>(d)]));
  split.boundary = difference(work, split.interior);
  return split;
}

}  // namespace tessera::parallel
