#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tessera/kernels/neighbors.hpp>
#include <utility>
#include <vector>

namespace tessera::nn {

using kernels::Cell;
using kernels::Vec3;

/// A property of each atom that the program does not interpret, as its file has it.
struct AtomColumn {
  std::string name;
  char type = 'R';  ///< S text, R real, I integer, L logical
  std::int64_t width = 1;
  std::vector<std::string> values;  ///< width per atom, as text
};

/// Atoms in a box, with what is known of them: one frame of a file. Lengths in Angstrom, energies
/// in eV, forces in eV/A, stress in eV/A^3 (positive under tension), virials = -stress * volume.
struct Structure {
  std::vector<std::int32_t> species;  ///< atomic numbers
  std::vector<double> positions;      ///< 3 per atom
  Cell cell;
  // Labels; absent ones count with weight 0.
  std::optional<double> energy;
  std::vector<double> forces;  ///< 3 per atom, or none
  std::optional<std::array<double, 9>> stress;
  std::optional<std::array<double, 9>> virials;
  double weight = 1.0;  ///< of the whole frame in a loss, times one of these:
  double energy_weight = 1.0;
  double forces_weight = 1.0;
  double stress_weight = 1.0;
  double virials_weight = 1.0;
  std::string config_type = "Default";
  std::string head = "Default";
  /// All other keys and values of the comment line, in order (values without quotes).
  std::vector<std::pair<std::string, std::string>> info;
  std::vector<AtomColumn> columns;
  std::int64_t line = 0;  ///< where the frame starts in its file, from 1; 0: made in memory

  std::int64_t atoms() const { return static_cast<std::int64_t>(species.size()); }
  /// A single atom whose energy is the zero of its element: config_type IsolatedAtom
  /// (isolated_atom).
  bool is_isolated_atom() const;
};

/// Symbol of an element, `Si` for 14; throws UsageError outside 1..118. 0 is `X`.
const char* element_symbol(std::int32_t number);
/// Atomic number of a symbol (or of a number as text), -1 for an unknown one. Case does not matter
/// beyond the first letter.
std::int32_t element_number(const std::string& symbol);
/// Standard atomic weight in u; throws UsageError outside 0..118 (0: 0).
double element_mass(std::int32_t number);

/// r nearest to the first image inside the cell: wraps positions along periodic axes, in place;
/// returns the lattice vectors (3 per atom) that were taken away: old = new + shift . cell.
std::vector<std::int32_t> wrap_positions(std::vector<double>& positions, const Cell& cell);

/// Throws DataError when the structure cannot be computed on: numbers that are none, a periodic
/// cell without volume, atoms closer than `nearest`. `where` starts the message (file and line).
void check_structure(const Structure& structure, const std::string& where, double nearest = 1e-3);

}  // namespace tessera::nn
