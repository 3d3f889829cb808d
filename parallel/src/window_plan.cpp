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

/// The elements of one part that a list of segments shows, each once.
struct Run {
  int part;
  Interval from;
};

/// Sorted by part, then position; overlapping and adjacent ones are merged.
std::vector<Run> merge(const std::vector<Segment>& segments) {
  std::vector<Run> all;
  for (const Segment& s : segments) all.push_back({s.part, s.from});
  std::sort(all.begin(), all.end(), [](const Run& a, const Run& b) {
    return a.part != b.part ? a.part < b.part : a.from.lo < b.from.lo;
  });
  std::vector<Run> runs;
  for (const Run& run : all) {
    if (!runs.empty() && runs.back().part == run.part && runs.back().from.hi >= run.from.lo) {
      runs.back().from.hi = std::max(runs.back().from.hi, run.from.hi);
    } else {
      runs.push_back(run);
    }
  }
  return runs;
}

std::size_t find_run(const std::vector<Run>& runs, const Segment& s) {
  const auto holds = [&](const Run& r) { return r.part == s.part && r.from.contains(s.from); };
  return static_cast<std::size_t>(std::find_if(runs.begin(), runs.end(), holds) - runs.begin());
}

/// Calls f(indices) for the product of index ranges, last fastest; not at all when one is empty.
template <class F>
void for_each_combination(std::span<const std::size_t> counts, F&& f) {
  std::array<std::size_t, kMaxDims> at{};
  for (const std::size_t count : counts)
    if (count == 0) return;
  while (true) {
    f(at);
    std::size_t d = counts.size();
    for (; d > 0; --d) {
      if (++at[d - 1] < counts[d - 1]) break;
      at[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

void append(Box& box, Interval interval) {
  box.lo.push_back(interval.lo);
  box.hi.push_back(interval.hi);
}

/// Whether nothing of `need` can lie in `owned`; spares cutting the needs of the many far parts.
bool misses(Interval need, Interval owned, std::int64_t n, EdgeRule edge) {
  if (need.empty() || owned.empty()) return true;
  const bool inside = need.lo >= 0 && need.hi <= n;
  return (inside || edge == EdgeRule::kZero) && intersect(need, owned).empty();
}

std::int64_t elements(const std::vector<Parcel>& parcels) {
  return std::accumulate(parcels.begin(), parcels.end(), std::int64_t{0},
                         [](std::int64_t sum, const Parcel& p) { return sum + p.box.volume(); });
}

int peers(const std::vector<Parcel>& parcels) {
  int count = 0;
  for (std::size_t i = 0; i < parcels.size(); ++i)
    count += i == 0 || parcels[i].peer != parcels[i - 1].peer;
  return count;
}

/// Sorts by peer and returns where each one went.
std::vector<int> sort_by_peer(std::vector<Parcel>& parcels) {
  std::vector<std::size_t> order(parcels.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return parcels[a].peer < parcels[b].peer; });
  std::vector<Parcel> sorted;
  std::vector<int> place(parcels.size());
  for (const std::size_t from : order) {
    place[from] = static_cast<int>(sorted.size());
    sorted.push_back(parcels[from]);
  }
  parcels = std::move(sorted);
  return place;
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
  std::vector<int> own_parts;
  std::vector<std::vector<Segment>> segments;  // what this rank sees, per dimension
  std::vector<std::vector<Run>> runs;          // the elements behind it
  std::array<std::size_t, kMaxDims> counts{};
  const std::span<const std::size_t> counted(counts.data(), static_cast<std::size_t>(dims));
  for (int d = 0; d < dims; ++d) {
    const auto i = static_cast<std::size_t>(d);
    bounds.push_back(input.is_split(d) ? input.split(d).bounds : Bounds{0, input.shape()[d]});
    own_parts.push_back(input.part_of(d, rank));
    const Interval need = needed(d, rank);
    plan.needed.set(d, need);
    segments.push_back(window_segments(need, bounds[i], edges[i]));
    runs.push_back(merge(segments[i]));
    counts[i] = runs[i].size();
  }

  std::vector<int> parcel_of;  // by combination of runs, row-major; -1 for what this rank owns
  for_each_combination(counted, [&](const std::array<std::size_t, kMaxDims>& at) {
    Parcel parcel{rank, {}};
    for (int d = 0; d < dims; ++d) {
      const auto i = static_cast<std::size_t>(d);
      const Run& run = runs[i][at[i]];
      parcel.peer += walk.offset(input, d, run.part) - walk.offset(input, d, own_parts[i]);
      append(parcel.box, run.from);
    }
    parcel_of.push_back(parcel.peer == rank ? -1 : static_cast<int>(plan.receives.size()));
    if (parcel.peer != rank) plan.receives.push_back(parcel);
  });
  const std::vector<int> place = sort_by_peer(plan.receives);

  for (int d = 0; d < dims; ++d) {
    const auto i = static_cast<std::size_t>(d);
    counts[i] = segments[i].size();
  }
  for_each_combination(counted, [&](const std::array<std::size_t, kMaxDims>& at) {
    Image image;
    bool in_place = true;
    std::size_t combination = 0;
    for (int d = 0; d < dims; ++d) {
      const auto i = static_cast<std::size_t>(d);
      const Segment& s = segments[i][at[i]];
      append(image.at, s.at);
      append(image.from, s.from);
      image.step[i] = static_cast<std::int8_t>(s.step);
      combination = combination * runs[i].size() + find_run(runs[i], s);
      in_place = in_place && s.step == 1 && s.at == s.from;
    }
    const int parcel = parcel_of[combination];
    if (parcel < 0 && in_place) return;
    image.parcel = parcel < 0 ? -1 : place[static_cast<std::size_t>(parcel)];
    plan.images.push_back(image);
  });

  // Who looks at this rank's part: per dimension the parts that do, and the runs that they see.
  struct Receiver {
    int offset;
    std::vector<Run> runs;
  };
  std::vector<std::vector<Receiver>> receivers(static_cast<std::size_t>(dims));
  for (int d = 0; d < dims; ++d) {
    const auto i = static_cast<std::size_t>(d);
    const int own_offset = walk.offset(input, d, own_parts[i]);
    for (int part = 0; part < input.parts(d); ++part) {
      const int offset = walk.offset(input, d, part) - own_offset;
      const Interval need = needed(d, rank + offset);
      if (misses(need, plan.owned[d], input.shape()[d], edges[i])) continue;
      std::vector<Run> seen = merge(window_segments(need, bounds[i], edges[i]));
      std::erase_if(seen, [&](const Run& run) { return run.part != own_parts[i]; });
      if (!seen.empty()) receivers[i].push_back({offset, std::move(seen)});
    }
    counts[i] = receivers[i].size();
  }
  for_each_combination(counted, [&](const std::array<std::size_t, kMaxDims>& who) {
    int peer = rank;
    std::array<std::size_t, kMaxDims> run_counts{};
    for (int d = 0; d < dims; ++d) {
      const auto i = static_cast<std::size_t>(d);
      peer += receivers[i][who[i]].offset;
      run_counts[i] = receivers[i][who[i]].runs.size();
    }
    if (peer == rank) return;
    const std::span<const std::size_t> runs_counted(run_counts.data(),
                                                    static_cast<std::size_t>(dims));
    for_each_combination(runs_counted, [&](const std::array<std::size_t, kMaxDims>& at) {
      Parcel parcel{peer, {}};
      for (int d = 0; d < dims; ++d) {
        const auto i = static_cast<std::size_t>(d);
        append(parcel.box, receivers[i][who[i]].runs[at[i]].from);
      }
      plan.sends.push_back(parcel);
    });
  });
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
