#pragma once

#include <optional>
#include <string>
#include <tessera/models/unet.hpp>
#include <tessera/nn/data/forecast.hpp>
#include <tessera/nn/data/scores.hpp>
#include <tessera/nn/data/super_resolution.hpp>
#include <tessera/nn/io/safetensors.hpp>

#include "unet_settings.hpp"

namespace tessera::app {

/// Files of a run.
struct RunFiles {
  std::string dir;
  std::string config() const { return dir + "/config.toml"; }
  std::string metrics() const { return dir + "/metrics.jsonl"; }
  std::string checkpoint() const { return dir + "/checkpoint.safetensors"; }
  std::string weights() const { return dir + "/model.safetensors"; }
  std::string evaluation() const { return dir + "/evaluation.json"; }
  std::string loss_picture() const { return dir + "/loss.png"; }
  std::string profile() const { return dir + "/profile"; }
  std::string error_picture() const { return dir + "/prediction.png"; }
};

/// The pairs that `settings` describe; `normalization` is computed where it is not given.
data::SuperResolution open_data(const UNetSettings& settings,
                                const Mesh& mesh,
                                const std::optional<data::Normalization>& normalization = {});

/// What the network sees beyond the edges of the whole field: circular where it is periodic, else
/// the border element again.
std::vector<EdgeRule> edges_of(const data::GridField& field);
/// The same for crops, which close a circle only where they go all around.
std::vector<EdgeRule> edges_of_crops(const data::SuperResolution& data);

/// A trained network with the numbers that its weights file keeps.
struct TrainedUNet {
  UNetSettings settings;
  data::Normalization normalization;        ///< of refining
  std::vector<data::ForecastScale> scales;  ///< of forecasts
  models::UNet model;
};

/// Writes the weights with everything that load_unet needs.
void save_unet(const std::string& path,
               models::UNet& model,
               const UNetSettings& settings,
               const io::Metadata& numbers);
/// Throws DataError when the file is no such network.
TrainedUNet load_unet(const std::string& path, const Mesh& mesh);

/// Forward pass without gradients, on one sample in the layout of the mesh.
Tensor predict(const models::UNet& model, const Tensor& input);

}  // namespace tessera::app
