#pragma once

#include <string>
#include <tessera/models/mace.hpp>
#include <tessera/nn/atoms/objective.hpp>
#include <tessera/nn/atoms/statistics.hpp>
#include <tessera/nn/io/extxyz.hpp>
#include <tessera/nn/io/settings.hpp>

namespace tessera::app {

/// Everything that decides the result of `tessera train mace`, under the names of the published
/// training program; kept as RUN/config.toml.
struct AtomsSettings {
  AtomsSettings() = default;
  AtomsSettings(const AtomsSettings&) = delete;
  AtomsSettings& operator=(const AtomsSettings&) = delete;

  std::string train_file;
  std::string valid_file;
  double valid_fraction = 0.1;
  std::string test_file;
  io::ExtxyzOptions keys;

  std::string foundation_model;
  std::string model = "ScaleShiftMACE";
  std::string e0s = "isolated";
  std::string scaling = "rms_forces_scaling";
  bool pair_repulsion = false;
  std::string distance_transform = "None";
  std::string interaction_first = "residual";
  bool density = false;
  std::string couplings = "full";
  models::MaceOptions mace;

  std::string loss = "weighted";
  nn::AtomLossOptions weights{.energy = 1.0, .forces = 100.0, .stress = 1.0, .virials = 1.0};
  std::int64_t batch_size = 10;
  std::int64_t valid_batch_size = 10;
  std::int64_t max_num_epochs = 2048;
  std::int64_t patience = 2048;
  std::int64_t eval_interval = 1;
  std::string optimizer = "adam";
  double lr = 0.01;
  double weight_decay = 5e-7;
  bool amsgrad = true;
  std::string scheduler = "ReduceLROnPlateau";
  double lr_factor = 0.8;
  std::int64_t scheduler_patience = 50;
  double lr_scheduler_gamma = 0.9993;
  double clip_grad = 10.0;
  std::string on_nan = "stop";
  std::int64_t nan_limit = 10;
  bool ema = true;
  double ema_decay = 0.99;
  bool stage_two = false;
  std::int64_t start_stage_two = 0;
  double stage_two_lr = 1e-3;
  double stage_two_energy_weight = 1000.0;
  double stage_two_forces_weight = 100.0;
  double stage_two_stress_weight = 10.0;
  double stage_two_virials_weight = 10.0;
  std::string default_dtype = "float64";
  std::uint64_t seed = 123;

  /// Declares all settings; they are read and written through `settings` from then on.
  void declare(io::Settings& settings);

  DType dtype() const;
  /// Of the first or the second stage.
  nn::AtomLossOptions loss_options(bool second_stage) const;
  nn::EnergyScaling energy_scaling() const;
  /// The epoch in which stage two starts.
  std::int64_t second_stage_epoch() const;
  /// The model of these settings, its statistics taken from the training structures; or that of
  /// `foundation_model`. Throws UsageError and DataError.
  models::MaceOptions model_options(const std::vector<nn::Structure>& train) const;
};

}  // namespace tessera::app
