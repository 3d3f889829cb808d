#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace tessera::parallel {

/// Cores by number, as bits.
using CoreSet = std::array<std::uint64_t, 16>;

/// Those on which this process may run.
CoreSet own_cores();
int count(const CoreSet& cores);
/// `0-3, 8`
std::string text_of(const CoreSet& cores);

/// How the processes of the job lie on this node; set at the start of the job.
struct LocalJob {
  int processes = 1;
  CoreSet cores{};  ///< of all of them together
};
void set_local_job(const LocalJob& job);

/// Cores that the control group grants at once; 0: no limit. Of the files below `root`.
double cpu_quota(const std::string& root = "/sys/fs/cgroup");
/// Bytes that it grants; 0: no limit.
std::int64_t memory_quota(const std::string& root = "/sys/fs/cgroup");

}  // namespace tessera::parallel
