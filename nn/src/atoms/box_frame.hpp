#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <tessera/kernels/neighbors.hpp>

namespace tessera::nn {

/// Coordinates in which a box of atoms is cut: fractions of the cell along periodic axes (wrapped),
/// of the extent of the atoms along others.
struct BoxFrame {
  kernels::Cell cell;  // completed
  kernels::Fractions fractions;
  kernels::Vec3 low{0, 0, 0};
  kernels::Vec3 extent{1, 1, 1};

  explicit BoxFrame(const kernels::Cell& of) : cell(of.completed()), fractions(cell) {}

  /// Least and greatest fractions, of axes that do not repeat.
  struct Range {
    kernels::Vec3 lo;
    kernels::Vec3 hi;
  };
  Range range(std::span<const double> positions) const {
    constexpr double kMost = std::numeric_limits<double>::max();
    Range r{{kMost, kMost, kMost}, {-kMost, -kMost, -kMost}};
    for (std::size_t i = 0; i + 2 < positions.size(); i += 3) {
      const kernels::Vec3 f = fractions.of(&positions[i]);
      for (std::size_t k = 0; k < 3; ++k) {
        r.lo[k] = std::min(r.lo[k], f[k]);
        r.hi[k] = std::max(r.hi[k], f[k]);
      }
    }
    return r;
  }
  void set(const Range& r) {
    for (std::size_t k = 0; k < 3; ++k) {
      low[k] = 0.0;
      extent[k] = 1.0;
      if (cell.periodic[k] || r.lo[k] > r.hi[k]) continue;
      low[k] = r.lo[k];
      extent[k] = std::max(r.hi[k] - r.lo[k], 1e-9);
    }
  }

  kernels::Vec3 unit(const double* r) const {
    kernels::Vec3 f = fractions.of(r);
    for (std::size_t k = 0; k < 3; ++k)
      f[k] = cell.periodic[k] ? f[k] - std::floor(f[k]) : (f[k] - low[k]) / extent[k];
    return f;
  }
  /// Distances between the faces of the unit cube.
  kernels::Vec3 heights() const {
    kernels::Vec3 h;
    for (std::size_t k = 0; k < 3; ++k) h[k] = extent[k] * fractions.height(static_cast<int>(k));
    return h;
  }
};

}  // namespace tessera::nn
