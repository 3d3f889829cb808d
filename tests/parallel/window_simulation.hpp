// Runs the exchange plans of all ranks of a mesh in one process, on plain arrays.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tessera/core/tensor.hpp>
#include <tessera/parallel/window_plan.hpp>
#include <vector>

#include "parallel/random_layout.hpp"

namespace tessera::test {

using parallel::ExchangePlan;
using parallel::Image;
using parallel::NeededFunction;
using parallel::Parcel;

struct WindowCase {
  Layout layout;
  std::vector<EdgeRule> edges;
  NeededFunction needed;
  std::uint64_t seed = 0;

  std::vector<ExchangePlan> plans() const {
    std::vector<ExchangePlan> all;
    for (int r = 0; r < layout.mesh().size(); ++r)
      all.push_back(parallel::plan_window(layout, edges, r, needed));
    return all;
  }
};

/// A dense array over a box.
struct Array {
  Box box;
  std::vector<double> values;

  explicit Array(const Box& b, double value = 0.0)
      : box(b), values(static_cast<std::size_t>(b.volume()), value) {}
  double& operator[](const Index& i) {
    std::int64_t offset = 0;
    for (int d = 0; d < i.size(); ++d) {
      if (i[d] < box.lo[d] || i[d] >= box.hi[d]) throw std::out_of_range("array");
      offset = offset * box[d].size() + i[d] - box.lo[d];
    }
    return values[static_cast<std::size_t>(offset)];
  }
};

/// Real element under a virtual one; nothing where none exists.
inline std::optional<Index> real_index(const WindowCase& c, const Index& at) {
  Index real = at;
  for (int d = 0; d < at.size(); ++d) {
    real[d] = map_edge(c.edges[static_cast<std::size_t>(d)], at[d], c.layout.shape()[d]);
    if (real[d] < 0) return std::nullopt;
  }
  return real;
}

/// Element of `image.from` shown at virtual position `at`.
inline Index image_source(const Image& image, const Index& at) {
  Index from = at;
  for (int d = 0; d < at.size(); ++d) {
    const std::int64_t i = at[d] - image.at.lo[d];
    const int step = image.step[static_cast<std::size_t>(d)];
    from[d] = step > 0   ? image.from.lo[d] + i
              : step < 0 ? image.from.hi[d] - 1 - i
                         : image.from.lo[d];
  }
  return from;
}

/// Coordinates on the axes that split nothing: ranks of one group hold one copy of the tensor.
inline std::int64_t replica(const Layout& layout, int rank) {
  const Mesh& mesh = layout.mesh();
  std::int64_t id = 0;
  for (int a = 0; a < mesh.axis_count(); ++a)
    if (!(layout.split_axes() >> a & 1u)) id = id * mesh.axis_size(a) + mesh.coordinate(rank, a);
  return id;
}

inline double global_value(const WindowCase& c, std::int64_t copy, const Index& i) {
  std::int64_t linear = 0;
  for (int d = 0; d < i.size(); ++d) linear = linear * c.layout.shape()[d] + i[d];
  return noise(c.seed, {copy, linear});
}

/// What is wrong with the plans of all ranks; empty when nothing is: sends match receives, every
/// needed virtual element is shown once with the right value, nothing else is, the adjoint is one,
/// and exactly the real elements that are needed and not owned travel, each once.
inline std::string check_exchange(const WindowCase& c, const std::vector<ExchangePlan>& plans) {
  const Layout& layout = c.layout;
  const int ranks = layout.mesh().size();
  const int dims = layout.dims();
  std::vector<Array> own;
  std::vector<Array> gradient;  // of own, by the adjoint
  for (int r = 0; r < ranks; ++r) {
    const ExchangePlan& plan = plans[static_cast<std::size_t>(r)];
    if (!(plan.owned == layout.owned(r))) return str("owned box of rank ", r);
    own.emplace_back(plan.owned);
    gradient.emplace_back(plan.owned);
    for_each_index(plan.owned,
                   [&](const Index& i) { own.back()[i] = global_value(c, replica(layout, r), i); });
  }

  // Messages: per pair of ranks the parcels in order.
  std::map<std::pair<int, int>, std::vector<std::pair<Box, std::vector<double>>>> wires;
  for (int s = 0; s < ranks; ++s) {
    int last = -1;
    for (const Parcel& parcel : plans[static_cast<std::size_t>(s)].sends) {
      const int receiver = parcel.peer;
      if (receiver == s || receiver < last) return str("order of the sends of rank ", s);
      last = receiver;
      if (!layout.owned(s).contains(parcel.box)) return str("rank ", s, " sends what it lacks");
      std::vector<double> packed;
      for_each_index(parcel.box, [&](const Index& i) {
        packed.push_back(own[static_cast<std::size_t>(s)][i]);
      });
      wires[{s, receiver}].emplace_back(parcel.box, std::move(packed));
    }
  }

  const auto less = [](const Index& a, const Index& b) {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  };
  std::map<std::pair<std::int64_t, Index>, double, decltype([](const auto& a, const auto& b) {
             if (a.first != b.first) return a.first < b.first;
             return std::lexicographical_compare(a.second.begin(), a.second.end(), b.second.begin(),
                                                 b.second.end());
           })>
      expected;  // gradient of the global value of each copy
  std::map<std::pair<int, int>, std::size_t> taken;
  double forward_product = 0.0;
  std::string wrong;
  for (int r = 0; r < ranks && wrong.empty(); ++r) {
    const ExchangePlan& plan = plans[static_cast<std::size_t>(r)];
    Box box = layout.owned(r);
    for (int d = 0; d < dims; ++d) box.set(d, c.needed(d, r));
    if (box.empty()) {
      if (!plan.receives.empty() || !plan.images.empty()) return str("rank ", r, " needs nothing");
      continue;
    }
    Array value(box);
    Array times(box);
    const auto put = [&](const Index& at, double v) {
      value[at] = v;
      times[at] += 1.0;
    };
    const Box in_place = intersect(box, layout.owned(r));
    for_each_index(in_place, [&](const Index& i) { put(i, own[static_cast<std::size_t>(r)][i]); });
    std::int64_t shown = in_place.volume();

    Array y(box);
    std::int64_t position = 0;
    for (double& v : y.values) v = noise(c.seed + 1, {r, position++});
    std::vector<Array> arrived;
    std::vector<Array> sums;  // the adjoint's parcels
    int last = -1;
    for (const Parcel& parcel : plan.receives) {
      if (parcel.peer == r || parcel.peer < last) return str("order of the receives of rank ", r);
      last = parcel.peer;
      auto& wire = wires[{parcel.peer, r}];
      std::size_t& next = taken[{parcel.peer, r}];
      if (next == wire.size()) return str("rank ", parcel.peer, " sends too little to ", r);
      if (!(wire[next].first == parcel.box)) {
        return str("ranks ", parcel.peer, " and ", r, " differ");
      }
      arrived.emplace_back(parcel.box).values = wire[next++].second;
      sums.emplace_back(parcel.box);
    }
    // Adjoint: values at virtual positions, summed per element, then added by the owner.
    std::set<Index, decltype(less)> seen(less);
    for (const Image& image : plan.images) {
      if (!box.contains(image.at)) return str("rank ", r, " shows what it does not need");
      if (image.parcel >= static_cast<int>(plan.receives.size())) return "an image of no parcel";
      shown += image.at.volume();
      const bool local = image.parcel < 0;
      const auto k = static_cast<std::size_t>(std::max(image.parcel, 0));
      const Box held = local ? layout.owned(r) : plan.receives[k].box;
      if (!held.contains(image.from)) return str("an image of rank ", r, " leaves its parcel");
      for_each_index(image.at, [&](const Index& at) {
        const Index source = image_source(image, at);
        put(at, (local ? own[static_cast<std::size_t>(r)] : arrived[k])[source]);
        (local ? gradient[static_cast<std::size_t>(r)] : sums[k])[source] += y[at];
        if (!local) seen.insert(source);
      });
    }
    std::int64_t travelled = 0;
    for (std::size_t k = 0; k < plan.receives.size(); ++k) {
      const Parcel& parcel = plan.receives[k];
      travelled += parcel.box.volume();
      for_each_index(parcel.box, [&](const Index& i) {
        gradient[static_cast<std::size_t>(parcel.peer)][i] += sums[k][i];
      });
    }
    if (travelled != static_cast<std::int64_t>(seen.size())) return str("bytes of rank ", r);

    std::int64_t existing = 0;
    for_each_index(box, [&](const Index& at) {
      const std::optional<Index> real = real_index(c, at);
      existing += real.has_value();
      if (times[at] != (real ? 1.0 : 0.0)) {
        wrong = str("rank ", r, " has ", at, " ", times[at], " times");
      } else if (real) {
        const std::int64_t copy = replica(layout, r);
        if (value[at] != global_value(c, copy, *real)) wrong = str("rank ", r, " value at ", at);
        expected[{copy, *real}] += y[at];
        forward_product += value[at] * y[at];
      }
    });
    if (!wrong.empty()) return wrong;
    if (shown != existing) return str("volume of rank ", r);
    for_each_index(in_place,
                   [&](const Index& i) { gradient[static_cast<std::size_t>(r)][i] += y[i]; });
  }
  for (const auto& [pair, wire] : wires)
    if (taken[pair] != wire.size()) return str("rank ", pair.first, " sends too much");

  double adjoint_product = 0.0;
  double scale = 1e-300;
  for (int r = 0; r < ranks; ++r) {
    const auto i = static_cast<std::size_t>(r);
    for_each_index(layout.owned(r), [&](const Index& at) {
      const auto it = expected.find({replica(layout, r), at});
      const double e = it == expected.end() ? 0.0 : it->second;
      if (std::abs(gradient[i][at] - e) > 1e-10) wrong = str("gradient of rank ", r, " at ", at);
      adjoint_product += own[i][at] * gradient[i][at];
      scale += std::abs(own[i][at] * gradient[i][at]);
    });
  }
  if (std::abs(adjoint_product - forward_product) > 1e-10 * scale) return "adjoint identity";
  return wrong;
}

/// Intervals without any structure: from nothing to several times the domain.
inline WindowCase random_window_case(Random& random, const Mesh& mesh, std::int64_t max_volume) {
  WindowCase c;
  Shape shape;
  const int dims = random.number(1, 3);
  for (int d = 0; d < dims; ++d) shape.push_back(random.integer(1, dims == 1 ? 40 : 12));
  c.layout = random_layout(random, mesh, shape, false);
  c.seed = static_cast<std::uint64_t>(random.integer(0, 1 << 30));
  const std::uint64_t seed = c.seed;
  const Layout layout = c.layout;
  // Wide windows on many ranks would only cost time.
  const double per_rank = static_cast<double>(max_volume) / mesh.size();
  for (int d = 0; d < dims; ++d) c.edges.push_back(static_cast<EdgeRule>(random.number(0, 3)));
  std::vector<std::int64_t> width;
  std::vector<int> kind;
  for (int d = 0; d < dims; ++d) {
    const double room = std::pow(per_rank, 1.0 / dims) / 3.0;
    width.push_back(std::min<std::int64_t>(random.integer(0, 3 * shape[d]),
                                           std::max<std::int64_t>(1, std::int64_t(room))));
    kind.push_back(random.number(0, 4));
  }
  c.needed = [=](int d, int rank) -> Interval {
    const auto i = static_cast<std::size_t>(d);
    const Interval owned = layout.owned(d, rank);
    if (kind[i] == 0) return owned;  // no window
    const std::int64_t key = replica(layout, rank) * 100003 + layout.part_of(d, rank);
    const std::int64_t w = width[i];
    const auto draw = [&](std::int64_t salt, std::int64_t lo, std::int64_t hi) {
      const double u = (noise(seed, {d, key, salt}) + 1.0) / 2.0;
      return lo + static_cast<std::int64_t>(u * static_cast<double>(hi - lo + 1));
    };
    if (kind[i] == 1) return {owned.lo - w, owned.hi + w};  // a plain halo, also of empty parts
    if (kind[i] == 2) return {owned.lo - draw(0, 0, w), owned.hi + draw(1, 0, w)};
    const std::int64_t lo = draw(2, -w, shape[d] + w);
    return {lo, lo + draw(3, -1, w)};
  };
  return c;
}

inline WindowCase random_window_case(Random& random, int max_ranks, std::int64_t max_volume) {
  return random_window_case(random, random_mesh(random, 3, max_ranks), max_volume);
}

}  // namespace tessera::test
