#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tessera::parallel {

/// In which order the stages of a pipeline work.
enum class PipelineSchedule : std::uint8_t {
  /// One forward, one backward (Narayanan et al. 2019): stage s of S runs S - s - 1 forwards ahead,
  /// so it holds the activations of at most S - s micro-batches. Idle share of the time of M
  /// micro-batches: (S - 1) / (M + S - 1).
  kOneForwardOneBackward,
  /// Each stage has V chunks of the model, chunk c of stage s being piece c S + s (Narayanan et al.
  /// 2021): idle for (S - 1) / (V M + S - 1), with V times the messages and the activations of at
  /// most 2 (S - s - 1) + (V - 1) S + 1 chunks. M must be a multiple of S.
  kInterleaved,
  /// Forward passes alone.
  kForward
};

/// `1f1b`, `interleaved`, `forward`.
const char* name(PipelineSchedule schedule);

/// One piece of work of a stage: a chunk of its own (from 0) for a micro-batch.
struct PipelineAction {
  enum class Kind : std::uint8_t { kForward, kBackward };
  Kind kind = Kind::kForward;
  int micro_batch = 0;
  int chunk = 0;
  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};

/// How a pipeline is cut.
struct PipelineShape {
  int stages = 1;
  int chunks = 1;  ///< of each stage; above 1 for kInterleaved and kForward only
  int micro_batches = 1;
};

/// What stage `stage` does, in order. For each chunk micro-batches come in rising order, forward
/// and backward, on every stage. A pure function; stages that never block on sending cannot block
/// each other. Throws UsageError for sizes that the schedule cannot do.
std::vector<PipelineAction> pipeline_schedule(PipelineSchedule schedule,
                                              const PipelineShape& shape,
                                              int stage);

/// The cut of a list into `parts` runs, none empty, whose largest sum of `costs` is the smallest
/// possible: 0 = b_0 < b_1 < ... < b_parts = n. Of several such cuts the one whose first runs are
/// the shortest. Throws UsageError when there are fewer costs than parts, or one is negative or not
/// finite.
std::vector<int> balanced_runs(std::span<const double> costs, int parts);

}  // namespace tessera::parallel
