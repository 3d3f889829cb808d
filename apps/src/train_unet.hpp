#pragma once

#include <string>

#include "unet_settings.hpp"

namespace tessera::app {

/// How a training runs; beside the mesh nothing here changes its result.
struct TrainOptions {
  std::string mesh;
  std::string out;
  bool resume = false;
  std::int64_t checkpoint_every = 500;
  bool profile = false;  ///< writes RUN/profile
  std::int64_t profile_steps = 5;
};

/// Trains a UNet for the task that the settings name and fills the run's directory. Returns the
/// exit code: 0, or 75 when a signal asked to stop and the run can be resumed.
int train_unet(UNetSettings settings, const TrainOptions& options);

}  // namespace tessera::app
