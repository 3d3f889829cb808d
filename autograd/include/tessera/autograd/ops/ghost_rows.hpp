#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <tessera/core/tensor.hpp>
#include <utility>
#include <vector>

namespace tessera {

/// Which rows of other ranks each rank reads beside its own, for tensors whose dimension 0 is split
/// as `owners`; made once, used for every exchange. A cheap handle.
///
/// A tensor of `ghost_rows` has R = n + (ghosts of all ranks) rows: per rank its own in order, then
/// its ghosts, ascending. Without ghosts anywhere nothing is sent and R = n.
class GhostRows {
 public:
  GhostRows() = default;
  /// `ghosts`: global rows that this rank wants, ascending, each once, none of its own. `owners`:
  /// [n]. Ranks that replicate a part must want the same. Every rank of the mesh must call: two
  /// small collectives. Throws ShapeError on every rank of a group when one wants a row that is
  /// none.
  static GhostRows make(const Layout& owners, const std::vector<std::int64_t>& ghosts);
  /// The same where this rank knows what every part wants (ghosts of part p at place p): without
  /// communication, also in a DryRun.
  static GhostRows make_known(const Layout& owners,
                              const std::vector<std::vector<std::int64_t>>& ghosts);

  bool defined() const { return static_cast<bool>(plan_); }
  /// The layout [n] of the rows as they are owned.
  const Layout& owners() const;
  /// i64 [R]: the global row in [0, n) of each row with ghosts; its layout is that of the results.
  const Tensor& rows() const;
  /// Ghosts of all ranks together: rows that one exchange moves.
  std::int64_t total() const;
  /// Ghosts of this rank.
  std::int64_t local() const;
  /// Rows that this rank sends to others.
  std::int64_t sent() const;

  struct Plan;
  const std::shared_ptr<const Plan>& plan() const { return plan_; }

 private:
  std::shared_ptr<const Plan> plan_;
};

/// x [n, ...] -> y [R, ...], y[r, ...] = x[rows[r], ...]: each ghost row is sent once, owners to
/// readers, one message between two neighbours. Derivatives of any order are this op and
/// `ghost_sum`.
Tensor ghost_rows(const Tensor& x, const GhostRows& ghosts);

/// The result of ghost_rows() while its ghosts are on their way. What is computed between the start
/// and `wait()` hides the transfer; in backward, gradients of ghosts leave where `wait()` was
/// called and are awaited where the transfer was started, so they are hidden by the gradients of
/// what stands between. The same for derivatives of any order, to the same bits.
class GhostRowsInFlight {
 public:
  GhostRowsInFlight() = default;
  /// Rows that are there already.
  GhostRowsInFlight(Tensor rows) : rows_(std::move(rows)) {}
  /// y [R, ...].
  Tensor wait() const;
  /// y without waiting: its ghosts may be read only after arrive(). For ops that begin with what
  /// reads none of them.
  Tensor early() const;
  /// Waits for the ghosts of `early()`.
  void arrive() const;

 private:
  friend GhostRowsInFlight start_ghost_rows(const Tensor& x, const GhostRows& ghosts);
  Tensor rows_;
  GhostRows ghosts_;  // undefined: all rows are there
};
/// Starts ghost_rows(). Every rank must then wait for it.
GhostRowsInFlight start_ghost_rows(const Tensor& x, const GhostRows& ghosts);

/// The adjoint, y [R, ...] -> x [n, ...]: x[rows[r], ...] += y[r, ...]; the owner's own value
/// first, then those of others in the order of the parts.
Tensor ghost_sum(const Tensor& y, const GhostRows& ghosts);

}  // namespace tessera
