#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tessera/core/mesh.hpp>
#include <tessera/core/profile.hpp>
#include <vector>

namespace tessera::app {

/// What is profiled of a run.
struct ProfileOptions {
  std::string dir;         ///< where the files go; empty: no profile
  std::int64_t steps = 5;  ///< after the first two, which plan and fill caches
};

/// Profiles some steps of a run and writes what they did: DIR/rank<r>.json, a trace that
/// chrome://tracing and ui.perfetto.dev open, and DIR/ops.txt, the costliest ops. Every rank must
/// call.
class StepProfiler {
 public:
  /// The run has `total` steps.
  StepProfiler(ProfileOptions options, const Mesh& mesh, std::int64_t total);
  /// Before each step.
  void begin_step();
  /// After each step; writes the files after the last one that is profiled.
  void end_step();
  /// After the run: writes what a run that was too short has, and prints the table of rank 0.
  void finish();

 private:
  void write();

  ProfileOptions options_;
  Mesh mesh_;
  Profile profile_;
  std::int64_t skip_;
  std::int64_t seen_ = 0;
  std::int64_t recorded_ = 0;
  double start_ = 0.0;
  bool written_ = false;
  std::string table_;
};

/// `h+w`; "other" for no axis.
std::string axes_name(const Mesh& mesh, AxisMask axes);

/// Seconds in which this process only waited, by the mesh axes along which it waited: "h", "w" for
/// exchanges with neighbours (what goes to a diagonal one counts half for either axis), "h+w" for
/// one reduction over both, "other" for calls outside the mesh.
std::map<std::string, double> exposed_by_axes(const Profile& profile, const Mesh& mesh);

}  // namespace tessera::app
