#pragma once

#include <array>
#include <cmath>
#include <cstddef>

namespace tessera::atomistic {

/// A chain of three thermostats on `freedom` degrees of freedom (Martyna, Klein and Tuckerman
/// 1992), with positions and velocities of its own.
struct Chain {
  static constexpr std::size_t kLinks = 3;
  std::array<double, kLinks> x{};
  std::array<double, kLinks> v{};  // 1/fs

  /// Advances by h; returns the factor of the velocities. `twice_kinetic` (eV) of what it acts on.
  double advance(double twice_kinetic, double freedom, double kt, double time, double h) {
    // Suzuki and Yoshida, fourth order.
    const double outer = 1.0 / (2.0 - std::cbrt(2.0));
    double scale = 1.0;
    for (const double weight : {outer, 1.0 - 2.0 * outer, outer}) {
      const double d = weight * h;
      const auto push = [&](std::size_t k) {
        const double brake = k + 1 < kLinks ? std::exp(-0.25 * d * v[k + 1]) : 1.0;
        const double driving = k == 0 ? twice_kinetic * scale * scale - freedom * kt
                                      : mass(k - 1, freedom, kt, time) * v[k - 1] * v[k - 1] - kt;
        v[k] = (v[k] * brake + 0.5 * d * driving / mass(k, freedom, kt, time)) * brake;
      };
      for (std::size_t k = kLinks; k-- > 0;) push(k);
      scale *= std::exp(-d * v[0]);
      for (std::size_t k = 0; k < kLinks; ++k) x[k] += d * v[k];
      for (std::size_t k = 0; k < kLinks; ++k) push(k);
    }
    return scale;
  }

  double energy(double freedom, double kt, double time) const {
    double e = 0.0;
    for (std::size_t k = 0; k < kLinks; ++k) {
      e += 0.5 * mass(k, freedom, kt, time) * v[k] * v[k] + (k == 0 ? freedom : 1.0) * kt * x[k];
    }
    return e;
  }

 private:
  /// eV fs^2
  static double mass(std::size_t k, double freedom, double kt, double time) {
    return (k == 0 ? freedom : 1.0) * kt * time * time;
  }
};

/// sinh(x) / x
inline double sinhc(double x) {
  if (std::abs(x) > 0.1) return std::sinh(x) / x;
  const double x2 = x * x;
  return 1.0 + x2 / 6.0 * (1.0 + x2 / 20.0 * (1.0 + x2 / 42.0 * (1.0 + x2 / 72.0)));
}

}  // namespace tessera::atomistic
