#pragma once

#include <string>
#include <tessera/nn/nan_guard.hpp>

#include "run_settings.hpp"

namespace tessera::app {

/// How a training runs; beside the mesh nothing here changes its result.
struct TrainOptions {
  std::string mesh;
  std::string out;
  bool resume = false;
  std::int64_t checkpoint_every = 500;  ///< steps; mace: 0, at the end of an epoch once a minute
  int keep = 2;                         ///< newest checkpoints that stay
  int prefetch = 0;                     ///< batches that are read behind the steps before
  bool profile = false;                 ///< writes RUN/profile
  std::int64_t profile_steps = 5;
};

/// Trains the model for the task that the settings name and fills the run's directory. Returns the
/// exit code: 0, or 75 when a signal asked to stop and the run can be resumed.
int train(RunSettings& settings, const TrainOptions& options);

/// What `on_nan` (stop, skip) and `nan_limit` of the settings say.
nn::NanGuardOptions nan_options(const std::string& on_nan, std::int64_t nan_limit);
/// Declares both of them.
void declare_nan(io::Settings& settings, std::string& on_nan, std::int64_t& nan_limit);
/// Says at the end how many steps were left out, if any.
void print_skipped(const nn::NanGuard& guard);

}  // namespace tessera::app
