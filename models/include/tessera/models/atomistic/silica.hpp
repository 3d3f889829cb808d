#pragma once

#include <array>
#include <cstdint>
#include <tessera/nn/atoms/structure.hpp>

namespace tessera::atomistic {

/// `structure` repeated along its three lattice vectors: all atoms of a copy in turn; labels and
/// columns are dropped. Throws UsageError for counts below 1.
nn::Structure supercell(const nn::Structure& structure, const std::array<std::int64_t, 3>& counts);

/// Alpha-quartz (space group P3_1 21, 9 atoms per cell; a = 4.9019 A, c = 5.3988 A), repeated.
/// Atoms of a cell: six O, then three Si.
nn::Structure quartz(const std::array<std::int64_t, 3>& counts = {1, 1, 1});

/// Silicon in the diamond structure, 8 atoms per cube of 5.431 A, repeated.
nn::Structure diamond_silicon(const std::array<std::int64_t, 3>& counts = {1, 1, 1});

}  // namespace tessera::atomistic
