#pragma once

#include <cstdint>
#include <string>
#include <tessera/models/unet.hpp>
#include <tessera/nn/io/settings.hpp>
#include <vector>

namespace tessera::app {

/// Everything that decides the result of `tessera train unet`; kept as RUN/config.toml.
struct UNetSettings {
  // data
  std::string task = "refine";
  std::string file;
  std::string variable;
  std::vector<std::string> variables;
  std::string time = "time";
  std::int64_t history = 1;
  std::int64_t lead = 1;
  std::int64_t season = 0;
  std::int64_t test = 0;
  std::int64_t factor = 4;
  std::int64_t crop = 192;
  std::vector<double> holdout;
  std::vector<std::string> periodic;
  bool flips = true;
  bool coordinates = false;

  // model
  std::int64_t base = 32;
  std::vector<std::int64_t> multipliers = {1, 2};
  std::int64_t blocks = 2;
  std::int64_t norm_groups = 0;
  std::string activation = "relu";
  double dropout = 0.0;
  std::string down = "conv";
  std::string up = "transposed";
  std::int64_t kernel = 3;
  std::string input_skip = "cubic";
  bool conserve_means = true;
  double detail_scale = 0.05;

  // training
  std::int64_t steps = 1000;
  std::int64_t batch = 4;
  double lr = 2e-3;
  double final_lr = 0.0;
  std::int64_t warmup = 50;
  double weight_decay = 0.0;
  double clip = 1.0;
  double ema = 0.99;
  std::string loss = "mse";
  std::string precision = "f32";
  std::uint64_t seed = 0;

  /// Declares all fields; they are read and written through `settings` from then on.
  void declare(io::Settings& settings);

  bool forecasts() const { return task == "forecast"; }
  DType dtype() const;
  /// The model's options, but for the channels of forecasts; throws UsageError for an unknown word.
  models::UNetOptions model(int dims, const std::vector<EdgeRule>& edges) const;
};

/// `h=2,w=2` -> axes; throws UsageError.
std::vector<MeshAxis> parse_axes(const std::string& text);
/// The mesh of these axes over all processes, node by node; empty: one axis `h` over all. Throws
/// UsageError. Every process must call.
Mesh parse_mesh(const std::string& text);
/// Axis `data` splits the samples, the others the domain dimensions in their order.
Placement field_placement(const Mesh& mesh, int dims);

}  // namespace tessera::app
