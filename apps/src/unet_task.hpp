#pragma once

#include <memory>
#include <tessera/models/unet.hpp>
#include <tessera/nn/data/forecast.hpp>
#include <tessera/nn/io/safetensors.hpp>
#include <vector>

#include "unet_settings.hpp"

namespace tessera::app {

/// What a network is trained on: an input and what is to come out. `mask` is undefined where every
/// point counts.
struct UNetBatch {
  Tensor input;
  Tensor target;
  Tensor mask;
};

/// What `tessera train unet` can learn; `data.task` names it.
class UNetTask {
 public:
  virtual ~UNetTask() = default;
  /// Options of the model as it is trained.
  virtual models::UNetOptions model() const = 0;
  /// Fixes the layouts of all batches. Collective.
  virtual void place(const Mesh& mesh, std::int64_t stride) = 0;
  /// Samples first, first + 1, ...
  virtual UNetBatch batch(std::int64_t first) const = 0;
  /// What the trained model sees beyond the edges of the whole field.
  virtual std::vector<EdgeRule> edges() const = 0;
  /// Numbers that the weights file keeps.
  virtual io::Metadata numbers() const = 0;
};

/// Throws UsageError for an unknown task, and what opening the data throws. Collective.
std::unique_ptr<UNetTask> open_task(const UNetSettings& settings, const Mesh& mesh);

/// Forecasts as the settings describe them.
data::Forecast open_forecast(const UNetSettings& settings, const Mesh& mesh);
/// Lays batches of `samples` fields out for a network of this stride and reads what scaling needs
/// (see data::Forecast::prepare). Collective.
void place_forecast(data::Forecast& data,
                    const Mesh& mesh,
                    std::int64_t samples,
                    std::int64_t stride,
                    const std::vector<data::ForecastScale>& scales = {});

}  // namespace tessera::app
