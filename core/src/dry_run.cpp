#include <numeric>
#include <tessera/core/dry_run.hpp>
#include <tessera/core/error.hpp>

namespace tessera {

DryRun::DryRun(int count) : count_(count), outside_(process()) {
  if (detail::dry) throw UsageError("dry run: there is one already. End it first.");
  if (count < 1) throw UsageError(str("dry run: of ", count, " processes. Use at least 1."));
  // A number that no other process has: no layout or group of the real job is one of these.
  const int self = std::max(outside_.count, count);
  set_process({self, self + 1});
  detail::dry = true;
}

DryRun::~DryRun() {
  detail::dry = false;
  set_process(outside_);
}

Mesh DryRun::mesh(const std::vector<MeshAxis>& axes, int rank) const {
  if (rank < 0 || rank >= count_) {
    throw UsageError(str("dry run: rank ", rank, " does not exist (there are ", count_,
                         "). Use 0 to count - 1."));
  }
  std::vector<int> processes(static_cast<std::size_t>(count_));
  std::iota(processes.begin(), processes.end(), 0);
  processes[static_cast<std::size_t>(rank)] = process().rank;
  return Mesh::of(processes, axes);
}

}  // namespace tessera
