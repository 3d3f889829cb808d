#pragma once

#include <memory>
#include <string>
#include <tessera/models/atomistic/dynamics.hpp>
#include <tessera/models/atomistic/relax.hpp>
#include <tessera/nn/io/collective.hpp>

namespace tessera::app {

/// Help of the argument POTENTIAL.
inline constexpr const char* kPotentialHelp =
    "The directory of a run of train mace, its model or a converted one (.safetensors); or "
    "vashishta (SiO2), vashishta:FILE (parameters in the format of LAMMPS), stillinger-weber (Si), "
    "lennard-jones (Ar).";

/// The argument POTENTIAL, and how a learned one is used.
struct PotentialChoice {
  std::string name;
  std::string dtype = {};              ///< float64 or float32; empty: that of its file
  std::int64_t radial_intervals = -1;  ///< below 0: as in its training
};

/// Every process must call. Throws UsageError for names and choices that do not fit, and what
/// reading its files throws.
std::shared_ptr<const atomistic::Potential> load_potential(const PotentialChoice& choice,
                                                           const Mesh& mesh);

/// Help of --mesh of commands on atoms.
inline constexpr const char* kAtomsMeshHelp =
    "Axes and sizes, e.g. x=2,y=2: all processes together cut the box of atoms.";

/// Frame `index` (from 0; -1: the last) of an extended XYZ file, on every rank. Throws DataError
/// when there is none.
nn::Structure read_frame(const std::string& path, std::int64_t index);

/// Keeps of a text file the lines (of a trajectory: the frames) up to `step`; for runs that are
/// continued. A file that does not exist stays so. Of one process.
void keep_lines(const std::string& path, std::int64_t step);
void keep_frames(const std::string& path, std::int64_t step);

/// How a run is made and what it leaves: DIR/thermo.jsonl, thermo.txt, trajectory.xyz,
/// state.safetensors, final.xyz.
struct MdOptions {
  PotentialChoice potential;
  std::string start;
  std::int64_t frame = -1;
  std::string out;
  std::string mesh;
  std::string ensemble = "nve";
  std::int64_t steps = 1000;  ///< in all, with those before a continuation
  std::int64_t log_every = 10;
  std::int64_t frame_every = 100;  ///< 0: no trajectory
  std::int64_t save_every = 1000;
  bool resume = false;
  std::string cutting = "bricks";
  atomistic::DynamicsOptions dynamics;
};

/// Runs molecular dynamics. Returns the exit code: 0, or 75 when a signal asked to stop; the state
/// is saved then.
int run_md(const MdOptions& options);

/// How a structure is relaxed; `out` becomes an extended XYZ file.
struct RelaxCommand {
  PotentialChoice potential;
  std::string start;
  std::int64_t frame = -1;
  std::string out;
  std::string mesh;
  atomistic::RelaxOptions relax;
};

/// Returns the exit code: 0, or 1 when it has not converged (the file is written all the same).
int run_relax(const RelaxCommand& options);

/// What `generate sio2` makes.
struct SilicaOptions {
  std::string out;
  std::string picture;  ///< of g(r); none: not drawn
  std::string mesh;
  PotentialChoice potential = {.name = "vashishta"};
  std::string kind = "quartz";  ///< quartz, amorphous, both
  std::string cells = "2,2,2";
  std::int64_t frames = 100;
  double temperature = 300.0;
  double last_temperature = 300.0;
  double interval = 100.0;  ///< fs
  double settle = 500.0;    ///< fs
  double strain = 0.0;
  double rattle = 0.0;
  double density = 2.2;
  double melt = 6000.0;
  double melt_time = 5000.0;
  double quench_time = 60000.0;
  double dt = 1.0;
  std::uint64_t seed = 0;
};

int run_generate_sio2(const SilicaOptions& options);

}  // namespace tessera::app
