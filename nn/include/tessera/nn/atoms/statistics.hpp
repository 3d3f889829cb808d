#pragma once

#include <cstdint>
#include <tessera/nn/atoms/structure.hpp>
#include <vector>

/// What a potential takes from its training data before the first step.
namespace tessera::nn {

/// Atomic numbers that occur, ascending.
std::vector<std::int64_t> elements_of(const std::vector<Structure>& structures);

/// Energies in eV of the frames that are isolated atoms, for `elements`. Throws DataError when one
/// is missing.
std::vector<double> isolated_energies(const std::vector<Structure>& structures,
                                      const std::vector<std::int64_t>& elements);

/// Energies per element whose sums over the atoms come closest to the labels (least squares over
/// structures with an energy, the shortest such vector where compositions do not determine it).
/// Throws DataError without energies.
std::vector<double> average_energies(const std::vector<Structure>& structures,
                                     const std::vector<std::int64_t>& elements);

/// Mean number of neighbours within `cutoff` of the atoms that have any; 1 where none has. Isolated
/// atoms are left out.
double mean_neighbors(const std::vector<Structure>& structures, double cutoff);

/// How interaction energies are scaled.
enum class EnergyScaling : std::uint8_t {
  kNone,      ///< 1
  kStd,       ///< standard deviation over structures of the interaction energy per atom
  kRmsForces  ///< root mean square of all force components
};

struct ScaleShift {
  double scale = 1.0;  ///< eV
  double shift = 0.0;  ///< eV: mean over structures of the interaction energy per atom
};
/// Of the labels, less the energies of isolated atoms; a scale of 0 becomes 1. Throws DataError
/// where there are no labels to take it from.
ScaleShift scale_shift(const std::vector<Structure>& structures,
                       const std::vector<std::int64_t>& elements,
                       const std::vector<double>& e0,
                       EnergyScaling scaling);

}  // namespace tessera::nn
