#pragma once

#include <string>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/io/snapshots.hpp>
#include <vector>

namespace tessera::nn {

/// The checkpoints of a training in `options.directory`: the newest few, each in a directory of
/// safetensors files, one per rank that writes; written behind the training. See io::Snapshots.
///
/// ```cpp
/// nn::Checkpoints checkpoints(mesh, {.directory = "run/checkpoints", .keep = 2});
/// checkpoints.load(state);  // false: nothing to go on from
/// while (state.step < steps) {
///   ...                     // one step
///   ++state.step;
///   checkpoints.poll();
///   if (state.step % 500 == 0) checkpoints.save(state);
/// }
/// checkpoints.finish();
/// ```
///
/// Calls are collective. An IoError (a full disk, say) is thrown on all ranks alike; what was
/// committed stays whole, and the training may go on and save again.
class Checkpoints {
 public:
  /// `mesh` of the model; of a pipeline that of all stages.
  Checkpoints(const Mesh& mesh, const io::SnapshotOptions& options);
  /// Copies the state as it is now and returns; finishes the save before first. The copy holds this
  /// rank's share of parameters, optimiser and averages, in the memory pool.
  void save(TrainingState& state);
  bool poll() { return snapshots_.poll(); }
  void finish() { snapshots_.finish(); }
  /// Loads the newest whole one: damaged ones are named on stderr and passed over. Returns false
  /// when there is none. Throws DataError when all are damaged, or it belongs to another model.
  bool load(TrainingState& state);
  std::vector<std::string> list() const { return snapshots_.list(); }

 private:
  io::Snapshots snapshots_;
};

}  // namespace tessera::nn
