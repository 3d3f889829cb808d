#include <algorithm>
#include <cmath>
#include <limits>
#include <tessera/core/error.hpp>
#include <tessera/kernels/neighbors.hpp>

#include "launch.hpp"

namespace tessera::kernels {

namespace {

Vec3 cross(const Vec3& a, const Vec3& b) {
  return {a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
}
double dot(const Vec3& a, const Vec3& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }
double norm(const Vec3& a) { return std::sqrt(dot(a, a)); }
Vec3 scaled(const Vec3& a, double s) { return {a[0] * s, a[1] * s, a[2] * s}; }

using Shift = std::array<std::int32_t, 3>;

/// Points sorted into a grid of bins in fractional coordinates.
struct Bins {
  std::array<std::int64_t, 3> count{1, 1, 1};
  Vec3 low{};                           // where the grid starts
  Vec3 width{};                         // of a bin, fractional
  std::array<std::int64_t, 3> reach{};  // bins to either side that the cutoff touches
  std::vector<std::int64_t> begin;      // of each bin in `point`
  std::vector<std::int64_t> point;
  std::vector<Vec3> wrapped;  // positions moved into the cell, by point
  std::vector<Shift> moved;   // r = wrapped + moved . cell
  std::vector<std::array<std::int64_t, 3>> bin;
};

Bins make_bins(std::span<const double> points,
               const Cell& cell,
               const Fractions& fractions,
               double cutoff) {
  const std::size_t n = points.size() / 3;
  Bins bins;
  bins.wrapped.resize(n);
  bins.moved.resize(n);
  bins.bin.resize(n);
  std::vector<Vec3> f(n);
  Vec3 low{0, 0, 0};
  Vec3 high{1, 1, 1};
  for (std::size_t k = 0; k < 3; ++k) {
    if (cell.periodic[k]) continue;
    low[k] = std::numeric_limits<double>::max();
    high[k] = std::numeric_limits<double>::lowest();
  }
  for (std::size_t i = 0; i < n; ++i) {
    const double* const r = &points[3 * i];
    f[i] = fractions.of(r);
    Shift& moved = bins.moved[i];
    for (std::size_t k = 0; k < 3; ++k) {
      if (!std::isfinite(f[i][k])) {
        throw ShapeError(str("neighbours: point ", i,
                             " has a coordinate that is no number. Check the positions."));
      }
      if (cell.periodic[k]) {
        const double whole = std::floor(f[i][k]);
        if (std::abs(whole) > 1e9) {
          throw ShapeError(str("neighbours: point ", i, " lies ", whole,
                               " cells away from the first one. Wrap the positions."));
        }
        moved[k] = static_cast<std::int32_t>(whole);
        f[i][k] -= whole;
      } else {
        moved[k] = 0;
        low[k] = std::min(low[k], f[i][k]);
        high[k] = std::max(high[k], f[i][k]);
      }
    }
    const Vec3 back = cell.shift(moved);
    bins.wrapped[i] = {r[0] - back[0], r[1] - back[1], r[2] - back[2]};
  }

  // Half the cutoff per bin: fewer pairs are looked at in vain than with whole ones.
  for (std::size_t k = 0; k < 3; ++k) {
    const double extent = n == 0 ? 0.0 : (high[k] - low[k]) * fractions.height(static_cast<int>(k));
    bins.count[k] = static_cast<std::int64_t>(std::clamp(2.0 * extent / cutoff, 1.0, 1e6));
  }
  const std::int64_t most = 4 * static_cast<std::int64_t>(n) + 64;
  while (bins.count[0] * bins.count[1] * bins.count[2] > most) {
    auto& largest = *std::max_element(bins.count.begin(), bins.count.end());
    largest = (largest + 1) / 2;
  }
  for (std::size_t k = 0; k < 3; ++k) {
    bins.low[k] = low[k];
    const double extent = n == 0 ? 1.0 : high[k] - low[k];
    bins.width[k] = (extent > 0 ? extent : 1.0) / static_cast<double>(bins.count[k]);
    const double height = bins.width[k] * fractions.height(static_cast<int>(k));
    const double reach = cutoff / height + 1e-6;
    if (cell.periodic[k] && reach > 1e4) {
      throw ShapeError(str("neighbours: the cutoff ", cutoff, " is ", reach,
                           " times the height of the cell. Check cell and cutoff."));
    }
    bins.reach[k] = static_cast<std::int64_t>(std::min(reach, 1e6)) + 1;
    if (!cell.periodic[k]) bins.reach[k] = std::min(bins.reach[k], bins.count[k] - 1);
  }

  std::vector<std::int64_t> number(n);
  bins.begin.assign(static_cast<std::size_t>(bins.count[0] * bins.count[1] * bins.count[2]) + 1, 0);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < 3; ++k) {
      const auto b = static_cast<std::int64_t>((f[i][k] - bins.low[k]) / bins.width[k]);
      bins.bin[i][k] = std::clamp<std::int64_t>(b, 0, bins.count[k] - 1);
    }
    number[i] = (bins.bin[i][0] * bins.count[1] + bins.bin[i][1]) * bins.count[2] + bins.bin[i][2];
    ++bins.begin[static_cast<std::size_t>(number[i]) + 1];
  }
  for (std::size_t b = 1; b < bins.begin.size(); ++b) bins.begin[b] += bins.begin[b - 1];
  bins.point.resize(n);
  std::vector<std::int64_t> next(bins.begin.begin(), bins.begin.end() - 1);
  for (std::size_t i = 0; i < n; ++i)
    bins.point[static_cast<std::size_t>(next[static_cast<std::size_t>(number[i])]++)] =
        static_cast<std::int64_t>(i);
  return bins;
}

struct Edge {
  std::int64_t key;
  std::int64_t sender;
  Shift shift;
};

struct Found {
  std::vector<std::int64_t> receivers;
  std::vector<std::int64_t> senders;
  std::vector<std::int32_t> shifts;
  std::array<std::int64_t, 2> overlap{-1, -1};
};

class Search {
 public:
  Search(std::span<const double> points,
         const Cell& cell,
         double cutoff,
         std::span<const std::int64_t> keys)
      : points_(points),
        cell_(cell),
        cutoff2_(cutoff * cutoff),
        keys_(keys),
        bins_(make_bins(points, cell, Fractions(cell), cutoff)) {}

  void neighbours_of(std::int64_t i, std::vector<Edge>& edges, Found& found) const {
    edges.clear();
    const auto receiver = static_cast<std::size_t>(i);
    const auto& at = bins_.bin[receiver];
    each(0, at, [&](std::int64_t b0, std::int32_t m0) {
      each(1, at, [&](std::int64_t b1, std::int32_t m1) {
        each(2, at, [&](std::int64_t b2, std::int32_t m2) {
          const std::int64_t bin = (b0 * bins_.count[1] + b1) * bins_.count[2] + b2;
          scan(receiver, bin, {m0, m1, m2}, edges);
        });
      });
    });
    std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
      return a.key != b.key ? a.key < b.key : a.shift < b.shift;
    });
    for (const Edge& e : edges) {
      found.receivers.push_back(i);
      found.senders.push_back(e.sender);
      found.shifts.insert(found.shifts.end(), e.shift.begin(), e.shift.end());
      if (found.overlap[0] < 0 && distance2(receiver, e) < 1e-16) found.overlap = {i, e.sender};
    }
  }

 private:
  /// f(bin along axis k, image of the cell that it belongs to).
  template <class F>
  void each(std::size_t k, const std::array<std::int64_t, 3>& at, F&& f) const {
    const std::int64_t count = bins_.count[k];
    for (std::int64_t b = at[k] - bins_.reach[k]; b <= at[k] + bins_.reach[k]; ++b) {
      if (!cell_.periodic[k]) {
        if (b >= 0 && b < count) f(b, 0);
        continue;
      }
      const std::int64_t image = b >= 0 ? b / count : -((count - 1 - b) / count);
      f(b - image * count, static_cast<std::int32_t>(image));
    }
  }

  void scan(std::size_t receiver,
            std::int64_t bin,
            const Shift& image,
            std::vector<Edge>& edges) const {
    const auto begin = static_cast<std::size_t>(bins_.begin[static_cast<std::size_t>(bin)]);
    const auto end = static_cast<std::size_t>(bins_.begin[static_cast<std::size_t>(bin) + 1]);
    if (begin == end) return;
    const Vec3 offset = cell_.shift(image);
    const Vec3& r = bins_.wrapped[receiver];
    const Vec3 from = {r[0] - offset[0], r[1] - offset[1], r[2] - offset[2]};
    const double size = norm(r) + norm(offset);
    // Wrapped positions are rounded; the exact test is on those that were given.
    const double near = cutoff2_ + 1e-12 * (cutoff2_ + size * size);
    for (std::size_t p = begin; p < end; ++p) {
      const auto sender = static_cast<std::size_t>(bins_.point[p]);
      const Vec3& s = bins_.wrapped[sender];
      const Vec3 d = {from[0] - s[0], from[1] - s[1], from[2] - s[2]};
      if (dot(d, d) > near) continue;
      Edge e{keys_[sender], bins_.point[p], {}};
      for (std::size_t k = 0; k < 3; ++k)
        e.shift[k] = bins_.moved[sender][k] - bins_.moved[receiver][k] - image[k];
      if (sender == receiver && e.shift == Shift{0, 0, 0}) continue;
      if (distance2(receiver, e) < cutoff2_) edges.push_back(e);
    }
  }

  /// |r_receiver - r_sender + S . cell|^2, the same number whichever way the edge runs.
  double distance2(std::size_t receiver, const Edge& e) const {
    const double* const a = &points_[3 * receiver];
    const double* const b = &points_[3 * static_cast<std::size_t>(e.sender)];
    const Vec3 s = cell_.shift(e.shift);
    const Vec3 d = {(a[0] - b[0]) + s[0], (a[1] - b[1]) + s[1], (a[2] - b[2]) + s[2]};
    return dot(d, d);
  }

  std::span<const double> points_;
  Cell cell_;
  double cutoff2_;
  std::span<const std::int64_t> keys_;
  Bins bins_;
};

}  // namespace

double Cell::volume() const { return std::abs(dot(vectors[0], cross(vectors[1], vectors[2]))); }

Cell Cell::completed() const {
  Cell full = *this;
  std::vector<std::size_t> missing;
  for (std::size_t k = 0; k < 3; ++k) {
    if (norm(vectors[k]) > 0.0) continue;
    if (periodic[k]) {
      throw ShapeError(str("cell: vector ", k,
                           " is zero, and the box repeats along it. Give the lattice vector, or "
                           "set pbc to F there."));
    }
    missing.push_back(k);
  }
  if (missing.size() == 3) {
    full.vectors = {Vec3{1, 0, 0}, Vec3{0, 1, 0}, Vec3{0, 0, 1}};
  } else if (missing.size() == 2) {
    const std::size_t present = 3 - missing[0] - missing[1];
    const Vec3& a = vectors[present];
    std::size_t smallest = 0;
    for (std::size_t c = 1; c < 3; ++c)
      if (std::abs(a[c]) < std::abs(a[smallest])) smallest = c;
    Vec3 other{0, 0, 0};
    other[smallest] = 1.0;
    const Vec3 u = cross(a, other);
    const Vec3 v = cross(a, u);
    full.vectors[missing[0]] = scaled(u, 1.0 / norm(u));
    full.vectors[missing[1]] = scaled(v, 1.0 / norm(v));
  } else if (missing.size() == 1) {
    const std::size_t k = missing[0];
    const Vec3 u = cross(vectors[(k + 1) % 3], vectors[(k + 2) % 3]);
    if (norm(u) > 0.0) full.vectors[k] = scaled(u, 1.0 / norm(u));
  }
  const double lengths = norm(full.vectors[0]) * norm(full.vectors[1]) * norm(full.vectors[2]);
  if (!(full.volume() > 1e-10 * lengths)) {
    throw ShapeError(
        "cell: its volume is zero (two lattice vectors are parallel, or all lie in one plane). "
        "Check the lattice.");
  }
  return full;
}

Vec3 Cell::shift(const std::array<std::int32_t, 3>& s) const {
  Vec3 r{};
  for (std::size_t c = 0; c < 3; ++c)
    for (std::size_t k = 0; k < 3; ++k) r[c] += s[k] * vectors[k][c];
  return r;
}

Fractions::Fractions(const Cell& completed) : vectors_(completed.vectors) {
  const double det = dot(vectors_[0], cross(vectors_[1], vectors_[2]));
  for (std::size_t k = 0; k < 3; ++k) {
    const Vec3 normal = cross(vectors_[(k + 1) % 3], vectors_[(k + 2) % 3]);
    inverse_[k] = scaled(normal, 1.0 / det);
    height_[k] = 1.0 / norm(inverse_[k]);
  }
}

Vec3 Fractions::of(const double* r) const {
  const Vec3 v{r[0], r[1], r[2]};
  return {dot(inverse_[0], v), dot(inverse_[1], v), dot(inverse_[2], v)};
}

Vec3 Fractions::cartesian(const Vec3& f) const {
  Vec3 r{};
  for (std::size_t c = 0; c < 3; ++c)
    for (std::size_t k = 0; k < 3; ++k) r[c] += f[k] * vectors_[k][c];
  return r;
}

NeighborList find_neighbors(std::span<const double> points,
                            std::int64_t receivers,
                            const Cell& cell,
                            double cutoff,
                            std::span<const std::int64_t> keys) {
  if (!(cutoff > 0.0) || !std::isfinite(cutoff))
    throw UsageError(str("neighbours: the cutoff is ", cutoff, ". Give a positive distance."));
  if (points.size() != 3 * keys.size() || receivers > static_cast<std::int64_t>(keys.size())) {
    throw ShapeError(str("neighbours: ", points.size(), " coordinates, ", keys.size(), " keys and ",
                         receivers,
                         " receivers do not fit. Give 3 coordinates and a key for each "
                         "point."));
  }
  const Search search(points, cell.completed(), cutoff, keys);
  constexpr std::int64_t kReceivers = 256;
  const std::int64_t chunks = (receivers + kReceivers - 1) / kReceivers;
  std::vector<Found> found(static_cast<std::size_t>(chunks));
  parallel_for(chunks, [&](std::int64_t c) {
    std::vector<Edge> edges;
    const std::int64_t end = std::min(receivers, (c + 1) * kReceivers);
    for (std::int64_t i = c * kReceivers; i < end; ++i)
      search.neighbours_of(i, edges, found[static_cast<std::size_t>(c)]);
  });
  NeighborList list;
  std::size_t total = 0;
  for (const Found& f : found) total += f.receivers.size();
  list.receivers.reserve(total);
  list.senders.reserve(total);
  list.shifts.reserve(3 * total);
  for (Found& f : found) {
    list.receivers.insert(list.receivers.end(), f.receivers.begin(), f.receivers.end());
    list.senders.insert(list.senders.end(), f.senders.begin(), f.senders.end());
    list.shifts.insert(list.shifts.end(), f.shifts.begin(), f.shifts.end());
    if (list.overlap[0] < 0) list.overlap = f.overlap;
    f = {};
  }
  return list;
}

}  // namespace tessera::kernels
