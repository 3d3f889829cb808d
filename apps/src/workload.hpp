#pragma once

#include <memory>
#include <optional>
#include <tessera/nn/averages.hpp>
#include <tessera/nn/inspect/workload.hpp>
#include <tessera/nn/optim.hpp>
#include <vector>

#include "run_settings.hpp"

namespace tessera::app {

/// How a workload changes its parameters.
enum class Update : std::uint8_t {
  kTraining,  ///< as the settings say, with an average of the weights
  /// Momentum 0.9. For comparisons: AdamW divides a gradient by its own size, so that rounding of
  /// one that should be zero becomes a step as long as any other.
  kSgd
};

/// Changes the parameters of a workload.
class Updater {
 public:
  /// `training` with an average of the weights of this decay if any; or SGD with its rate and
  /// `weight_decay`.
  Updater(std::vector<nn::Parameter> parameters,
          Update update,
          std::unique_ptr<optim::Optimizer> training,
          double weight_decay,
          double clip,
          std::optional<double> average_decay);
  void step();

 private:
  std::vector<nn::Parameter> parameters_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<optim::Ema> average_;
  double clip_;
};

/// A training as train() runs it on made-up data of `size`, one number per dimension of the domain,
/// for `plan` and `compare`, its parameters spread so. Throws UsageError for sizes and settings
/// that do not fit. `settings` must live on.
nn::MakeWorkload workload(const RunSettings& settings,
                          const std::vector<std::int64_t>& size,
                          Update update,
                          const Spread& spread);

}  // namespace tessera::app
