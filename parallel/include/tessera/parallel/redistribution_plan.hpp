#pragma once

#include <cstdint>
#include <tessera/core/layout.hpp>
#include <vector>

namespace tessera::parallel {

/// A box (global coordinates) that moves between two ranks.
struct Transfer {
  int peer = 0;  ///< mesh rank on the other side
  Box box;
  bool first = true;  ///< false: combines with what an earlier rank gave for the same elements
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// What one rank sends and receives so that a tensor changes its layout. Sorted by peer; between
/// two ranks there is at most one transfer each way.
struct RedistributionPlan {
  Box owned;   ///< before
  Box target;  ///< after
  std::vector<Transfer> receives;
  std::vector<Transfer> sends;
  std::vector<Transfer> local;        ///< at most one, from this rank to itself
  ReduceOp combine = ReduceOp::kSum;  ///< how transfers to the same elements combine, in rank order
  ReduceOp fill = ReduceOp::kSum;     ///< its neutral element fills what nobody sends
  bool filled = false;                ///< whether part of the target is filled

  bool communicates() const { return !receives.empty() || !sends.empty(); }
  std::int64_t receive_elements() const;
  std::int64_t send_elements() const;
};

/// The direct way from `from` to `to` for mesh rank `rank`; a pure function of global metadata.
///
/// Which source ranks s a target rank r reads, per mesh axis a:
///
/// | before \ after | split or replicated    | Partial, same op | Partial, another op      |
/// |----------------|------------------------|------------------|--------------------------|
/// | split          | all s_a (boxes meet)   | s_a = r_a, rest neutral                     ||
/// | replicated     | s_a = r_a              | coordinate 0 only, elsewhere neutral        ||
/// | Partial        | all s_a, combined      | s_a = r_a        | all s_a at coordinate 0  |
///
/// Costs O(parts + transfers of this rank). Throws LayoutError when meshes or shapes differ.
RedistributionPlan plan_redistribution(const Layout& from, const Layout& to, int rank);

/// One step of a redistribution: an all-reduce over `axes`, or (0) transfers between ranks.
struct RedistributionStep {
  Layout to;
  AxisMask axes = 0;
};

/// The steps that lead from `from` to `to`; empty when they are equal. Axes on which a Partial
/// value becomes replicated are all-reduced, before or after the transfers, where a rank holds
/// fewer elements; everything else is one step of transfers.
std::vector<RedistributionStep> redistribution_steps(const Layout& from, const Layout& to);

/// What a redistribution moves.
struct RedistributionCost {
  std::int64_t total_elements = 0;  ///< received by all ranks together
  std::int64_t rank_elements = 0;   ///< received by the busiest rank, step by step
  int steps = 0;                    ///< that communicate
};

/// Exact for transfers, 2 (P-1)/P elements per element and rank for all-reduces over P ranks. The
/// same on every rank; O(ranks * dims).
RedistributionCost redistribution_cost(const Layout& from, const Layout& to);

}  // namespace tessera::parallel
