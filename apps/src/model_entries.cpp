#include "grid_settings.hpp"
#include "network.hpp"
#include "point_data.hpp"

namespace tessera::app {

const std::vector<ModelEntry>& model_entries() {
  static const std::vector<ModelEntry> all = {
      {"unet", "U-Net of residual blocks.", unet_settings, grid_data, 16, 3},
      {"vit", "Vision transformer: every patch attends to every other.", vit_settings, grid_data,
       128, 3, true},
      {"swin", "Encoder and decoder of attention in shifted windows.", swin_settings, grid_data, 64,
       3, true},
      {"unetr", "Transformer on patches with a convolutional decoder (UNETR).", unetr_settings,
       grid_data, 128, 3, true},
      {"forecaster", "Neighbourhood attention for forecasts, conditioned on the season.",
       forecaster_settings, forecast_data, 64, 3},
      {"transolver", "Slice attention for values on the points of unstructured meshes.",
       transolver_settings, point_data, 64, 1},
  };
  return all;
}

const ModelEntry& model_entry(const std::string& name) {
  std::string known;
  for (const ModelEntry& entry : model_entries()) {
    if (entry.name == name) return entry;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw UsageError(str("model: there is no model \"", name, "\". Use one of ", known, "."));
}

Dims dims_of(const char* option, const std::vector<std::int64_t>& numbers) {
  if (numbers.size() > 3) {
    throw UsageError(str(option, ": ", numbers.size(),
                         " numbers. Give one for each domain dimension, or one for all."));
  }
  return Dims(std::span(numbers));
}

}  // namespace tessera::app
