#pragma once

#include <memory>
#include <string>
#include <tessera/nn/inspect/workload.hpp>
#include <tessera/nn/io/settings.hpp>
#include <vector>

namespace tessera::app {

/// How a workload changes its parameters.
enum class Update : std::uint8_t {
  kAdamW,  ///< as training does, with an average of the weights
  /// Momentum 0.9. For comparisons: AdamW divides a gradient by its own size, so that rounding of
  /// one that should be zero becomes a step as long as any other.
  kSgd
};

/// A training of a model on made-up data, as `plan` and `compare` run it.
class WorkloadSource {
 public:
  virtual ~WorkloadSource() = default;
  /// Declares the model's settings, as for training.
  virtual void declare(io::Settings& settings) = 0;
  /// Training of the model on `size`, one number per dimension of the domain. Throws UsageError for
  /// sizes and settings that do not fit. The source must live on.
  virtual nn::MakeWorkload workload(const std::vector<std::int64_t>& size, Update update) = 0;
};

/// A model that `plan` and `compare` know.
struct WorkloadEntry {
  const char* name;
  const char* help;
  const char* size_help;
  std::unique_ptr<WorkloadSource> (*make)();
};
const std::vector<WorkloadEntry>& workloads();

std::unique_ptr<WorkloadSource> unet_workload();

}  // namespace tessera::app
