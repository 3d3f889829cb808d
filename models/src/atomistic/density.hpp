#pragma once

#include <tessera/nn/atoms/structure.hpp>

namespace tessera::atomistic {

/// In g/cm^3, of a mass in u and a volume in A^3.
inline double density_of(double mass, double volume) { return 1.66053906660 * mass / volume; }

inline double density_of(const nn::Structure& s) {
  double mass = 0.0;
  for (const std::int32_t z : s.species) mass += nn::element_mass(z);
  return density_of(mass, s.cell.volume());
}

}  // namespace tessera::atomistic
