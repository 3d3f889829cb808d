#pragma once

#include <memory>
#include <string>
#include <tessera/nn/io/safetensors.hpp>

#include "model.hpp"
#include "run_settings.hpp"

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

/// A trained model with what its weights file says.
struct Trained {
  std::string path;
  std::unique_ptr<RunSettings> settings;
  io::Metadata metadata;
  std::unique_ptr<Model> model;

  /// What the file says for `key`; throws DataError when it does not, or it is no number.
  const std::string& text(const std::string& key) const;
  double number(const std::string& key) const;
  /// Forward pass in evaluation; nothing is recorded under NoGrad.
  Tensor operator()(const Tensor& x) const { return (*model)(x); }
};

/// Writes the weights with everything that load_trained needs.
void save_trained(const std::string& path,
                  const Model& model,
                  RunSettings& settings,
                  const io::Metadata& numbers);
/// Throws DataError when the file is no such network.
Trained load_trained(const std::string& path, const Mesh& mesh);

}  // namespace tessera::app
