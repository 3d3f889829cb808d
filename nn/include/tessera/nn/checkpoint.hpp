#pragma once

#include <tessera/nn/averages.hpp>
#include <tessera/nn/io/safetensors.hpp>
#include <tessera/nn/module.hpp>
#include <tessera/nn/optim.hpp>

namespace tessera::nn {

/// The ranks of `mesh` as readers or writers of one file.
io::Collective collective(const Mesh& mesh);

/// All parameters and buffers by name; the tensors are those of the model. In a pipeline, too, all
/// processes have all names; of what lies in other stages they have no part.
std::vector<std::pair<std::string, Tensor>> state_dict(Module& model);

/// Writes parameters and buffers as safetensors, by their names. Each rank writes its part, of
/// replicas the first; the file appears whole or not at all. Every rank must call.
void save_weights(const std::string& path, Module& model, const io::Metadata& metadata = {});
/// Reads them back, into any layout on any mesh, with conversion among floating types. Throws
/// DataError when the file lacks a tensor, has one too many or one of another shape; the model is
/// then unchanged.
void load_weights(const std::string& path, Module& model);

/// Everything a training needs to go on exactly where it was; null parts are left out.
struct TrainingState {
  Module* model = nullptr;
  optim::Optimizer* optimizer = nullptr;
  optim::Ema* ema = nullptr;
  std::int64_t step = 0;    ///< steps done
  io::Metadata extra = {};  ///< free text, e.g. the settings of the run
};

/// Writes model, optimiser, averages, random state and `step` into one safetensors file,
/// atomically. Continuing from it gives the same bits as never having stopped. Every rank must
/// call.
void save_checkpoint(const std::string& path, TrainingState& state);
/// Reads what `state` points to, `step` and `extra`, from such a file or a directory of Checkpoints
/// (checkpoints.hpp), on any mesh. Throws DataError like load_weights, and where a file is damaged.
void load_checkpoint(const std::string& path, TrainingState& state);

}  // namespace tessera::nn
