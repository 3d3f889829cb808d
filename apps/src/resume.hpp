#pragma once

#include <string>
#include <tessera/nn/checkpoints.hpp>

#include "trained.hpp"

namespace tessera::app {

/// Help of --keep.
inline constexpr const char* kKeepHelp =
    "Newest checkpoints that stay; where one is damaged, --resume takes the one before.";

/// Where the checkpoints of a run lie.
std::string checkpoints_of(const RunFiles& files);

/// Loads the newest whole checkpoint of a run, or the one file that earlier versions wrote. Throws
/// IoError when there is none.
void load_newest(const RunFiles& files, nn::Checkpoints& checkpoints, nn::TrainingState& state);

}  // namespace tessera::app
