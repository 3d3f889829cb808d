#pragma once

#include <tessera/core/memory.hpp>
#include <tessera/core/mesh.hpp>

namespace tessera {

namespace detail {
inline constinit bool dry = false;
}  // namespace detail

/// Whether this process only pretends to compute; see DryRun.
inline bool dry_run() { return detail::dry; }

/// While alive, the program runs without data: everything that depends on metadata happens as
/// always (layouts, plans, messages, allocations, the tape), and nothing else does.
///
/// - This process takes the place of one of `count` processes: see mesh().
/// - Memory pools count blocks that have no memory behind them (their addresses belong to no
///   process, so touching one faults). stats() and reset_peak() are those of the dry run.
/// - Kernels return at once; they take their scratch blocks.
/// - Messages are counted and done at once.
/// - Values that the host reads, `item()` and `at()`, are 0.
///
/// What only data can decide (rows routed by an index) throws NotSupported. All tensors made
/// meanwhile have to be gone before the end. Throws UsageError inside another one.
class DryRun {
 public:
  explicit DryRun(int count);
  ~DryRun();
  DryRun(const DryRun&) = delete;

  /// A mesh of all `count` processes in which this process is rank `rank`. Another one for each
  /// rank, so nothing that was decided for one is taken for another.
  Mesh mesh(const std::vector<MeshAxis>& axes, int rank) const;

 private:
  int count_;
  Process outside_;
};

}  // namespace tessera
