#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tessera/models/atomistic/potential.hpp>
#include <tessera/nn/atoms/domain.hpp>
#include <vector>

namespace tessera::atomistic {

inline constexpr double kBoltzmann = 8.617333262e-5;     ///< eV/K
inline constexpr double kAcceleration = 9.648533212e-3;  ///< A/fs^2 of 1 eV/A on 1 u
inline constexpr double kGigaPascal = 160.2176634;       ///< GPa of 1 eV/A^3

/// What is kept constant, beside the number of atoms.
enum class Ensemble : std::uint8_t {
  kNve,         ///< energy: velocity Verlet
  kLangevin,    ///< temperature: BAOAB (Leimkuhler and Matthews, Appl. Math. Res. Express 2013, 34)
  kNoseHoover,  ///< temperature: chains of three (Martyna, Klein and Tuckerman, J. Chem. Phys. 97,
                ///< 2635, 1992)
  kNpt          ///< temperature and pressure: Martyna, Tobias and Klein, J. Chem. Phys. 101, 4177
                ///< (1994), with chains of three on atoms and box
};
const char* name(Ensemble ensemble);
/// `nve`, `langevin`, `nose-hoover`, `npt`; throws UsageError for others.
Ensemble ensemble_of(const std::string& name);

struct DynamicsOptions {
  Ensemble ensemble = Ensemble::kNve;
  double dt = 1.0;             ///< fs
  double temperature = 300.0;  ///< K: of the thermostat
  /// K: of the velocities at the start, where the structure has none; below 0: `temperature`.
  double start_temperature = -1.0;
  double friction = 0.01;          ///< 1/fs; Langevin
  double thermostat_time = 100.0;  ///< fs
  double pressure = 0.0;           ///< GPa
  double barostat_time = 1000.0;   ///< fs
  /// NPT: the box keeps its shape; else it stretches along x, y and z by itself.
  bool isotropic = true;
  double skin = 1.0;  ///< Angstrom
  nn::Cutting cutting = nn::Cutting::kBricks;
  /// The mesh axes that cut the box; empty: all.
  std::vector<std::string> axes = {};
  std::uint64_t seed = 0;
};

/// Numbers of a moment; the same on every rank.
struct Thermo {
  std::int64_t step = 0;
  double time = 0;         ///< fs
  double potential = 0;    ///< eV
  double kinetic = 0;      ///< eV
  double total = 0;        ///< eV: both
  double temperature = 0;  ///< K
  double pressure = 0;     ///< GPa, with the part of motion
  double volume = 0;       ///< A^3
  double density = 0;      ///< g/cm^3
  /// eV: what the equations of motion keep (energy with that of thermostat and barostat; under
  /// Langevin less the heat that the noise brought).
  double conserved = 0;
};

/// Molecular dynamics of one system that is cut over a mesh: each rank moves the atoms it owns.
///
/// Neighbours are listed with a skin; at a rebuild atoms change ranks. Noise and the velocities at
/// the start are keyed by seed, step and atom, so that a run is the same on any mesh up to the
/// rounding of sums. All member functions that are not const are called by every rank of the mesh,
/// and so are `snapshot` and `save`.
class Dynamics {
 public:
  /// Velocities are those of the column `vel` (A/fs) of `start`, where it has one; else normal at
  /// `start_temperature`, without total momentum. Throws UsageError for options without sense.
  Dynamics(const nn::Structure& start,
           std::shared_ptr<const Potential> potential,
           const Mesh& mesh,
           const DynamicsOptions& options);
  /// Goes on from what `save` wrote, on any mesh. Options may differ; on the same number of ranks
  /// with the same options the run is the same to the bit as if it had not stopped. Throws
  /// DataError when the file is none.
  static Dynamics resume(const std::string& path,
                         std::shared_ptr<const Potential> potential,
                         const Mesh& mesh,
                         const DynamicsOptions& options);
  ~Dynamics();
  Dynamics(Dynamics&&) noexcept;

  /// Takes `count` steps.
  void advance(std::int64_t count);
  std::int64_t step() const;
  Thermo thermo() const;
  /// Of the thermostat, for ramps.
  void set_temperature(double kelvin);

  /// What was computed last.
  const Evaluation& evaluation() const;
  const nn::AtomDomain& domain() const;
  /// [N, 3], A/fs; lies as the nodes of domain().graph().
  const Tensor& velocities() const;
  /// All atoms by id on mesh rank `root` (elsewhere none): positions wrapped into the box, labels
  /// energy, forces and stress of the potential, column `vel`, `step` and `time` (fs).
  nn::Structure snapshot(int root = 0) const;
  /// Writes the state as safetensors, whole or not at all, and goes on from what was written: with
  /// neighbours listed anew, as a run that resumes does.
  void save(const std::string& path);

 private:
  struct State;
  explicit Dynamics(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tessera::atomistic
