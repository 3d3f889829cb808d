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

/// Makes the directory of a run. Throws UsageError when it holds one already that is not resumed,
/// IoError when it cannot be made.
void open_run(const RunFiles& files, bool resume);

/// What the metadata of the file at `path` say for `key`; throw DataError when they do not, or it
/// is no number.
const std::string& text_in(const io::Metadata& metadata,
                           const std::string& key,
                           const std::string& path);
double number_in(const io::Metadata& metadata, const std::string& key, const std::string& path);

/// A trained model with what its weights file says.
struct Trained {
  std::string path;
  std::unique_ptr<RunSettings> settings;
  io::Metadata metadata;
  std::unique_ptr<Model> model;

  const std::string& text(const std::string& key) const { return text_in(metadata, key, path); }
  double number(const std::string& key) const { return number_in(metadata, key, path); }
  /// Forward pass in evaluation; nothing is recorded under NoGrad.
  Tensor operator()(const Tensor& x) const { return (*model)(x); }
  /// The mean of the answers to x [N, domain..., C] and to its mirror images, each turned back: 2^d
  /// forward passes (Lim et al. 2017, "Enhanced deep residual networks", geometric self-ensemble).
  Tensor over_mirrors(const Tensor& x) const;
};

/// Writes the weights with everything that load_trained needs.
void save_trained(const std::string& path,
                  const Model& model,
                  RunSettings& settings,
                  const io::Metadata& numbers);
/// Throws DataError when the file is no such network.
Trained load_trained(const std::string& path, const Mesh& mesh);

}  // namespace tessera::app
