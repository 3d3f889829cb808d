#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tessera/core/error.hpp>
#include <tessera/nn/atoms/partition.hpp>

namespace tessera::nn {

namespace {

constexpr int kHistogram = 256;
/// Rounds of counting per cut: 256^3 places along a side.
constexpr int kRounds = 3;

}  // namespace

std::array<int, 3> brick_grid(const kernels::Vec3& heights,
                              const std::array<bool, 3>& periodic,
                              int parts) {
  std::array<int, 3> best{parts, 1, 1};
  double least = std::numeric_limits<double>::max();
  for (int a = parts; a >= 1; --a) {  // of equals, the most along the first axes
    if (parts % a != 0) continue;
    for (int b = parts / a; b >= 1; --b) {
      if (parts / a % b != 0) continue;
      const std::array<int, 3> grid{a, b, parts / a / b};
      double area = 0.0;  // a face across axis k has the area volume / height
      for (std::size_t k = 0; k < 3; ++k) {
        const int faces = grid[k] == 1 ? 0 : grid[k] - (periodic[k] ? 0 : 1);
        area += faces / heights[k];
      }
      if (area < least * (1.0 - 1e-12)) {
        least = area;
        best = grid;
      }
    }
  }
  return best;
}

Regions Regions::bricks(const std::array<int, 3>& grid) {
  Regions r;
  std::vector<std::vector<double>> cuts(3);
  for (std::size_t k = 0; k < 3; ++k)
    for (int c = 1; c < grid[k]; ++c) cuts[k].push_back(static_cast<double>(c) / grid[k]);
  r.boxes_.resize(static_cast<std::size_t>(grid[0] * grid[1] * grid[2]));
  r.add({}, 0, cuts, 0);
  return r;
}

int Regions::add(const Box& box,
                 int first,
                 const std::vector<std::vector<double>>& cuts,
                 std::size_t axis) {
  const int node = static_cast<int>(nodes_.size());
  nodes_.emplace_back();
  while (axis < 3 && cuts[axis].empty()) ++axis;
  if (axis == 3) {
    nodes_[static_cast<std::size_t>(node)].low = first;
    boxes_[static_cast<std::size_t>(first)] = box;
    return node;
  }
  int inner = 1;  // parts of one slab
  for (std::size_t k = axis + 1; k < 3; ++k) inner *= static_cast<int>(cuts[k].size()) + 1;
  const std::vector<double>& here = cuts[axis];
  const std::size_t middle = here.size() / 2;
  Box low = box;
  Box high = box;
  low.hi[axis] = here[middle];
  high.lo[axis] = here[middle];
  auto low_cuts = cuts;
  auto high_cuts = cuts;
  const auto at = here.begin() + static_cast<std::ptrdiff_t>(middle);
  low_cuts[axis].assign(here.begin(), at);
  high_cuts[axis].assign(at + 1, here.end());
  const int below = add(low, first, low_cuts, axis);
  const int above = add(high, first + inner * (static_cast<int>(middle) + 1), high_cuts, axis);
  nodes_[static_cast<std::size_t>(node)] = {static_cast<int>(axis), here[middle], below, above};
  return node;
}

Regions Regions::bisection(std::span<const kernels::Vec3> points,
                           std::span<const std::int64_t> weights,
                           const kernels::Vec3& heights,
                           int parts,
                           const Sum& sum) {
  struct Open {  // a region that is still to be cut
    int node;
    int first;
    int parts;
    Box box;
    std::int64_t below = 0;   // weight left of `lo`
    std::int64_t target = 0;  // weight that the low side is to have
    double lo = 0;            // where the cut lies
    double hi = 1;
    int axis = 0;
  };
  Regions r;
  r.boxes_.resize(static_cast<std::size_t>(parts));
  r.nodes_.emplace_back();
  std::vector<Open> open{{.node = 0, .first = 0, .parts = parts, .box = {}}};
  std::vector<int> region(points.size(), 0);  // index in `open`, -1: final
  while (!open.empty()) {
    // Regions of one part are done.
    std::vector<Open> next;
    std::vector<int> place(open.size(), -1);
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i].parts == 1) {
        r.nodes_[static_cast<std::size_t>(open[i].node)].low = open[i].first;
        r.boxes_[static_cast<std::size_t>(open[i].first)] = open[i].box;
      } else {
        place[i] = static_cast<int>(next.size());
        next.push_back(open[i]);
      }
    }
    for (int& p : region)
      if (p >= 0) p = place[static_cast<std::size_t>(p)];
    open = next;
    if (open.empty()) break;

    for (Open& o : open) {
      double longest = -1.0;
      for (std::size_t k = 0; k < 3; ++k) {
        const double side = (o.box.hi[k] - o.box.lo[k]) * heights[k];
        if (side > longest * (1.0 + 1e-9)) {
          longest = side;
          o.axis = static_cast<int>(k);
        }
      }
      o.lo = o.box.lo[static_cast<std::size_t>(o.axis)];
      o.hi = o.box.hi[static_cast<std::size_t>(o.axis)];
    }
    for (int round = 0; round < kRounds; ++round) {
      // Points outside [lo, hi) count in the first and the last bin of round 0 only.
      std::vector<std::int64_t> counts(open.size() * kHistogram, 0);
      for (std::size_t i = 0; i < points.size(); ++i) {
        if (region[i] < 0) continue;
        const Open& o = open[static_cast<std::size_t>(region[i])];
        const double u = points[i][static_cast<std::size_t>(o.axis)];
        if (round > 0 && (u < o.lo || u >= o.hi)) continue;
        const double bin = (u - o.lo) / (o.hi - o.lo) * kHistogram;
        const auto b = static_cast<std::size_t>(std::clamp(bin, 0.0, kHistogram - 1.0));
        counts[static_cast<std::size_t>(region[i]) * kHistogram + b] += weights[i];
      }
      sum(counts);
      for (std::size_t i = 0; i < open.size(); ++i) {
        Open& o = open[i];
        const std::int64_t* const c = &counts[i * kHistogram];
        if (round == 0) {
          const std::int64_t total = std::accumulate(c, c + kHistogram, std::int64_t{0});
          o.target = total * (o.parts / 2) / o.parts;
        }
        std::size_t b = 0;
        while (b + 1 < kHistogram && o.below + c[b] < o.target) o.below += c[b++];
        const double width = (o.hi - o.lo) / kHistogram;
        o.hi = o.lo + width * static_cast<double>(b + 1);
        o.lo += width * static_cast<double>(b);
      }
    }

    std::vector<Open> halves;
    for (Open& o : open) {
      const auto axis = static_cast<std::size_t>(o.axis);
      const int low = static_cast<int>(r.nodes_.size());
      r.nodes_.emplace_back();
      r.nodes_.emplace_back();
      r.nodes_[static_cast<std::size_t>(o.node)] = {o.axis, o.hi, low, low + 1};
      Open below{.node = low, .first = o.first, .parts = o.parts / 2, .box = o.box};
      Open above{.node = low + 1,
                 .first = o.first + o.parts / 2,
                 .parts = o.parts - o.parts / 2,
                 .box = o.box};
      below.box.hi[axis] = o.hi;
      above.box.lo[axis] = o.hi;
      halves.push_back(below);
      halves.push_back(above);
    }
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (region[i] < 0) continue;
      const Open& o = open[static_cast<std::size_t>(region[i])];
      region[i] = 2 * region[i] + (points[i][static_cast<std::size_t>(o.axis)] < o.hi ? 0 : 1);
    }
    open = std::move(halves);
  }
  return r;
}

int Regions::part_of(const kernels::Vec3& u) const {
  if (nodes_.empty()) return 0;
  const Node* node = &nodes_[0];
  while (node->axis >= 0) {
    const bool low = u[static_cast<std::size_t>(node->axis)] < node->cut;
    node = &nodes_[static_cast<std::size_t>(low ? node->low : node->high)];
  }
  return node->low;
}

bool Regions::near(int part, const kernels::Vec3& u, const kernels::Vec3& margin) const {
  if (boxes_.empty()) return part == 0;
  const Box& b = box(part);
  for (std::size_t k = 0; k < 3; ++k) {
    // The outermost parts reach beyond the box.
    if (b.lo[k] > 0.0 && u[k] < b.lo[k] - margin[k]) return false;
    if (b.hi[k] < 1.0 && u[k] >= b.hi[k] + margin[k]) return false;
  }
  return true;
}

}  // namespace tessera::nn
