#include "resume.hpp"

#include <filesystem>

namespace tessera::app {

std::string checkpoints_of(const RunFiles& files) { return files.dir + "/checkpoints"; }

void load_newest(const RunFiles& files, nn::Checkpoints& checkpoints, nn::TrainingState& state) {
  if (checkpoints.load(state)) return;
  std::error_code ignored;
  if (std::filesystem::exists(files.checkpoint(), ignored))
    return nn::load_checkpoint(files.checkpoint(), state);
  throw IoError(str("train: ", checkpoints_of(files),
                    " holds no checkpoint to continue from. Give the directory of a run, or start "
                    "one without --resume."));
}

}  // namespace tessera::app
