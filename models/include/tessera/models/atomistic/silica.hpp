#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <tessera/models/atomistic/potential.hpp>
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

/// How silica is melted and quenched.
struct QuenchOptions {
  double density = 2.2;          ///< g/cm^3, of the glass
  double melt = 6000.0;          ///< K
  double end = 300.0;            ///< K
  double melt_time = 5000.0;     ///< fs at the highest temperature
  double quench_time = 60000.0;  ///< fs from there to `end`, linearly
  double dt = 1.0;               ///< fs
  double friction = 0.02;        ///< 1/fs
  std::uint64_t seed = 0;
};

/// Silica glass: `crystal` (quartz of any size) stretched to the density, melted, quenched
/// (Langevin), its atoms relaxed. `report` is told the step, the steps in all and the temperature
/// of the thermostat. All atoms on every rank of the mesh, with the labels of the potential. Every
/// rank must call. Throws UsageError for options without sense.
nn::Structure quenched(const nn::Structure& crystal,
                       std::shared_ptr<const Potential> potential,
                       const Mesh& mesh,
                       const QuenchOptions& options = {},
                       const std::function<void(std::int64_t, std::int64_t, double)>& report = {});

/// How frames of thermal motion are taken.
struct ThermalOptions {
  std::int64_t frames = 100;
  double temperature = 300.0;  ///< K, of the first frame; rises linearly to `last_temperature`
  double last_temperature = 300.0;
  double settle = 500.0;    ///< fs before the first frame
  double interval = 100.0;  ///< fs between frames
  double dt = 1.0;
  double friction = 0.02;  ///< 1/fs
  std::uint64_t seed = 0;
};

/// Frames of a Langevin run from `start`, on mesh rank 0 in `take`, labelled with the potential's
/// energy, forces and stress. Every rank must call.
void thermal_frames(const nn::Structure& start,
                    std::shared_ptr<const Potential> potential,
                    const Mesh& mesh,
                    const ThermalOptions& options,
                    const std::function<void(const nn::Structure&)>& take);

/// The same atoms with each coordinate moved by normal numbers of this width (Angstrom), keyed by
/// seed and atom, and the box strained by a symmetric matrix of normal numbers of width `strain`.
nn::Structure rattled(const nn::Structure& structure,
                      double width,
                      double strain,
                      std::uint64_t seed);

}  // namespace tessera::atomistic
