#pragma once

#include <map>
#include <string>
#include <tessera/core/scope.hpp>
#include <tessera/nn/inspect/workload.hpp>
#include <tessera/parallel/stats.hpp>
#include <vector>

namespace tessera::nn {

/// What a rank sends.
struct Traffic {
  std::int64_t messages = 0;
  std::int64_t bytes = 0;
  Traffic& operator+=(const Traffic& other);
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

/// What one layer costs one rank in a training step.
struct LayerPlan {
  /// Path of the module; "" for what runs outside of the modules below the root (the loss, say),
  /// "gradient buckets" for the sums of parameter gradients.
  std::string layer = {};
  /// Of the forward pass, in order, each once; with the algorithm where an op has several:
  /// `attention[heads(w) ring(h)]`.
  std::vector<std::string> ops = {};
  std::string layout = {};  ///< of the last output of the forward pass
  /// Elements that the forward pass reads of its input beyond this rank's part, at the low and the
  /// high end of each dimension: of other ranks, or what an edge rule makes; empty without windows.
  Dims window_lo = {};
  Dims window_hi = {};
  Traffic forward = {};
  Traffic backward = {};
  Traffic update = {};
  std::int64_t live_bytes = 0;  ///< of all tensors, when its forward pass is done
  std::int64_t peak_bytes = 0;  ///< highest while it works, in any phase
};

/// Something that a rank does in a step: an op, or a call that communicates.
struct StepEvent {
  const char* op = nullptr;  ///< name of the op; null: a call
  std::uint32_t layer = 0;   ///< of the op: index into RankPlan::layer_names
  double flops = 0.0;        ///< of the op, where it counts them
  double bytes = 0.0;        ///< that the op reads and writes
  double interior = 0.0;     ///< share of the op's work that needs no element of other ranks
  Traffic sent = {};         ///< by the call
  bool exchange = false;     ///< the call belongs to the op that follows and may fly meanwhile
  bool background = false;   ///< the call flies until the update
  Phase phase = Phase::kForward;
};

/// A training step on one rank.
struct RankPlan {
  int rank = 0;
  std::vector<LayerPlan> layers = {};  ///< in the order of first use
  parallel::CommStats sent = {};       ///< of the whole step: calls, messages, bytes
  /// The same by the mesh axes along which the receivers lie: `h`; `h+w` for diagonal neighbours
  /// and for collectives over both; "self" for none.
  std::map<std::string, Traffic> by_axes = {};
  std::vector<StepEvent> events = {};  ///< in program order; PlanOptions::events
  std::vector<std::string> layer_names = {};
  std::int64_t rest_bytes = 0;  ///< between two steps: parameters, optimiser state
  std::int64_t peak_bytes = 0;
  std::int64_t parameter_bytes = 0;
};

/// A training step on a mesh.
struct Plan {
  std::vector<MeshAxis> axes = {};
  int ranks = 1;                     ///< of the mesh
  std::vector<RankPlan> plans = {};  ///< of all ranks, or of those that stand for them

  /// Sent by all ranks, when all are planned.
  Traffic total() const;
  const RankPlan& busiest() const;  ///< sends most bytes
  const RankPlan& largest() const;  ///< needs most memory
  /// Layers with, for each number, the highest of any rank.
  std::vector<LayerPlan> layers() const;
  /// Aligned text: a row per layer, then the ranks.
  std::string table() const;
  /// All of it as JSON; the keys are those of the structs.
  std::string json() const;
};

struct PlanOptions {
  /// Up to this many ranks all are planned. Of more, those at the ends, next to the ends and in the
  /// middle of each axis: corners, edges and interior, with the smallest and largest parts that
  /// even boundaries give.
  int all_ranks = 64;
  std::vector<int> ranks = {};  ///< these alone, where any are given
  bool events = false;          ///< list what each rank does, for predictions of time
};

/// Plans a training step of `make`'s workload on a mesh of these axes: a DryRun in this process, so
/// the mesh may be of any size, and nothing is communicated or computed. The second step is the one
/// that is planned (the first makes the optimiser's state).
///
/// Messages and bytes are those that a real step counts, exactly; memory is that of the memory
/// pools. A step is assumed to clip gradients where it may.
Plan plan_step(const std::vector<MeshAxis>& axes,
               const MakeWorkload& make,
               const PlanOptions& options = {});

/// The same for one rank.
RankPlan plan_rank(const std::vector<MeshAxis>& axes,
                   int rank,
                   const MakeWorkload& make,
                   const PlanOptions& options = {});

/// What a real step of a workload counted on this rank, beside plan_rank(): runs a first step, then
/// measures a few; messages of the last, and the least memory of all.
RankPlan measure_rank(const Mesh& mesh, Workload& workload);

}  // namespace tessera::nn
