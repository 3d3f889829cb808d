#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::app {

/// A line of `tessera bench scaling`. Seconds and bytes are those of a step.
struct ScalingLine {
  std::string model;
  std::string mode;
  std::string size;
  std::string mesh;
  std::string precision;
  std::string version;
  std::int64_t width = 0;
  std::int64_t ranks = 0;
  std::int64_t nodes = 0;
  std::int64_t threads = 0;
  std::int64_t cores_per_node = 0;
  std::int64_t voxels = 0;
  std::int64_t sent_bytes = 0;  ///< of all ranks
  std::int64_t peak_bytes = 0;  ///< of the rank that needed most
  double seconds = 0.0;
  double seconds_low = 0.0;
  double seconds_high = 0.0;
  double exposed_seconds = 0.0;  ///< mean of the ranks
  double cpu_seconds = 0.0;      ///< of all ranks
  double wait_cpu_seconds = 0.0;
  std::map<std::string, double> exposed;  ///< by mesh axes

  /// Processor time outside of waits per element of the domain.
  double work_per_voxel() const {
    return (cpu_seconds - wait_cpu_seconds) / static_cast<double>(voxels);
  }
  bool shares_cores() const { return ranks * threads > nodes * cores_per_node; }
};

/// All lines of the files; empty ones are skipped. Throws IoError when a file cannot be read and
/// DataError, with the number of the line, for one that `bench scaling` has not written.
std::vector<ScalingLine> read_scaling_lines(const std::vector<std::string>& paths);

/// A line beside the base of its series.
struct ScalingPoint {
  ScalingLine line;  ///< of several with equal ranks and mesh, that of median time
  double speed_up = 1.0;
  double efficiency = 1.0;
  bool fastest = true;  ///< of all meshes with so many ranks: on the curve
};

/// Lines that differ in ranks, nodes, mesh and threads alone, by rank.
struct ScalingSeries {
  std::string title;
  std::vector<ScalingPoint> points;
};

/// The series that the lines form. The base is the fastest line with the fewest ranks; speed-up is
/// the ratio of elements per second to it, efficiency that per rank.
std::vector<ScalingSeries> scaling_series(const std::vector<ScalingLine>& lines);

}  // namespace tessera::app
