#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <tessera/core/error.hpp>
#include <tessera/models/atomistic/silica_order.hpp>

#include "density.hpp"

namespace tessera::atomistic {

namespace {

constexpr std::int32_t kOxygen = 8;
constexpr std::int32_t kSilicon = 14;

/// Calls f(receiver, vector to the sender) for all pairs closer than `reach`, by receiver.
template <class F>
void for_each_pair(const nn::Structure& s, double reach, F&& f) {
  std::vector<std::int64_t> ids(s.species.size());
  std::iota(ids.begin(), ids.end(), 0);
  const kernels::NeighborList list =
      kernels::find_neighbors(s.positions, s.atoms(), s.cell, reach, ids);
  for (std::size_t e = 0; e < list.receivers.size(); ++e) {
    const auto i = static_cast<std::size_t>(list.receivers[e]);
    const auto j = static_cast<std::size_t>(list.senders[e]);
    const nn::Vec3 shift =
        s.cell.shift({list.shifts[3 * e], list.shifts[3 * e + 1], list.shifts[3 * e + 2]});
    nn::Vec3 v;
    for (std::size_t c = 0; c < 3; ++c)
      v[c] = s.positions[3 * j + c] - s.positions[3 * i + c] - shift[c];
    f(i, j, v);
  }
}

double length(const nn::Vec3& v) { return std::hypot(v[0], v[1], v[2]); }

double count_of(const nn::Structure& s, std::int32_t z) {
  return static_cast<double>(std::count(s.species.begin(), s.species.end(), z));
}

/// Angles at the atoms of one element, and how many atoms have the number of bonds they should.
class Bonds {
 public:
  explicit Bonds(std::size_t wanted) : wanted_(wanted) {}
  void add(const std::vector<nn::Vec3>& bonds) {
    atoms_ += 1.0;
    if (bonds.size() == wanted_) right_ += 1.0;
    for (std::size_t i = 0; i < bonds.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        double dot = 0.0;
        for (std::size_t c = 0; c < 3; ++c) dot += bonds[i][c] * bonds[j][c];
        const double cosine = std::clamp(dot / length(bonds[i]) / length(bonds[j]), -1.0, 1.0);
        const double angle = std::acos(cosine) * 180.0 / std::numbers::pi;
        angles_ += 1.0;
        sum_ += angle;
        squares_ += angle * angle;
      }
    }
  }
  double share() const { return atoms_ > 0.0 ? right_ / atoms_ : 0.0; }
  AngleStatistics angles() const {
    if (angles_ == 0.0) return {};
    const double mean = sum_ / angles_;
    return {mean, std::sqrt(std::max(0.0, squares_ / angles_ - mean * mean))};
  }

 private:
  std::size_t wanted_;
  double atoms_ = 0.0, right_ = 0.0, angles_ = 0.0, sum_ = 0.0, squares_ = 0.0;
};

}  // namespace

double RadialDistribution::peak() const {
  if (g.empty()) return 0.0;
  const auto at = static_cast<std::size_t>(std::max_element(g.begin(), g.end()) - g.begin());
  if (g[at] == 0.0) return 0.0;
  if (at == 0 || at + 1 == g.size()) return r[at];
  const double below = g[at - 1], above = g[at + 1];
  const double bend = below - 2.0 * g[at] + above;
  const double offset = bend < 0.0 ? 0.5 * (below - above) / bend : 0.0;
  return r[at] + offset * (r[at] - r[at - 1]);
}

RadialDistribution radial_distribution(const std::vector<nn::Structure>& frames,
                                       std::int32_t a,
                                       std::int32_t b,
                                       double reach,
                                       double width) {
  if (!(width > 0.0) || !(reach >= width)) {
    throw UsageError(str("radial distribution: shells of ", width, " A up to ", reach,
                         " A. Give positive numbers, the first not above the second."));
  }
  const auto shells = static_cast<std::size_t>(std::llround(reach / width));
  RadialDistribution result;
  result.r.resize(shells);
  result.g.assign(shells, 0.0);
  for (std::size_t k = 0; k < shells; ++k) result.r[k] = (static_cast<double>(k) + 0.5) * width;
  for (const nn::Structure& s : frames) {
    const double volume = s.cell.volume();
    if (!(volume > 0.0)) {
      throw ShapeError(
          "radial distribution: a frame has no volume (what is even is counted per volume). Give "
          "periodic frames.");
    }
    const double pairs = count_of(s, a) * count_of(s, b);
    if (pairs == 0.0) continue;
    std::vector<double> found(shells, 0.0);
    for_each_pair(s, static_cast<double>(shells) * width,
                  [&](std::size_t i, std::size_t j, const nn::Vec3& v) {
                    if (s.species[i] != b || s.species[j] != a) return;
                    const auto k = static_cast<std::size_t>(length(v) / width);
                    found[std::min(k, shells - 1)] += 1.0;
                  });
    for (std::size_t k = 0; k < shells; ++k) {
      const double inner = static_cast<double>(k) * width;
      const double outer = inner + width;
      const double shell =
          4.0 / 3.0 * std::numbers::pi * (outer * outer * outer - inner * inner * inner);
      result.g[k] += found[k] * volume / (pairs * shell) / static_cast<double>(frames.size());
    }
  }
  return result;
}

SilicaOrder silica_order(const std::vector<nn::Structure>& frames, double bond) {
  SilicaOrder order;
  Bonds at_silicon(4), at_oxygen(2);
  for (const nn::Structure& s : frames) {
    if (count_of(s, kOxygen) == 0.0 || count_of(s, kSilicon) == 0.0)
      throw UsageError("silica: a frame lacks Si or O. Give silica.");
    order.density += density_of(s) / static_cast<double>(frames.size());
    std::vector<std::vector<nn::Vec3>> bonds(s.species.size());
    for_each_pair(s, bond, [&](std::size_t i, std::size_t j, const nn::Vec3& v) {
      if (s.species[i] != s.species[j]) bonds[i].push_back(v);
    });
    for (std::size_t i = 0; i < bonds.size(); ++i) {
      if (s.species[i] == kSilicon) at_silicon.add(bonds[i]);
      if (s.species[i] == kOxygen) at_oxygen.add(bonds[i]);
    }
  }
  if (frames.empty()) throw UsageError("silica: there are no frames. Give at least one.");
  order.si_with_four = at_silicon.share();
  order.oxygen_with_two = at_oxygen.share();
  order.o_si_o = at_silicon.angles();
  order.si_o_si = at_oxygen.angles();
  order.si_o = radial_distribution(frames, kOxygen, kSilicon);
  order.o_o = radial_distribution(frames, kOxygen, kOxygen);
  order.si_si = radial_distribution(frames, kSilicon, kSilicon);
  return order;
}

std::string SilicaOrder::summary() const {
  return fmt::format(
      "{:.2f} g/cm3; {:.1f} % of Si have four O, {:.1f} % of O two Si; peaks of g(r) at {:.2f} "
      "(Si-O), {:.2f} (O-O), {:.2f} A (Si-Si); angles Si-O-Si {:.0f} +- {:.0f}, O-Si-O {:.0f} +- "
      "{:.0f} degrees",
      density, 100.0 * si_with_four, 100.0 * oxygen_with_two, si_o.peak(), o_o.peak(), si_si.peak(),
      si_o_si.mean, si_o_si.deviation, o_si_o.mean, o_si_o.deviation);
}

}  // namespace tessera::atomistic
