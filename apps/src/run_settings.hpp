#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tessera/nn/io/settings.hpp>
#include <tessera/nn/optim.hpp>
#include <vector>

#include "network.hpp"
#include "spread.hpp"
#include "task.hpp"

namespace tessera::app {

/// Everything that decides the result of `tessera train MODEL`; kept as RUN/config.toml.
struct RunSettings {
  explicit RunSettings(const ModelEntry& entry);
  RunSettings(const RunSettings&) = delete;
  RunSettings& operator=(const RunSettings&) = delete;

  const ModelEntry& entry;
  std::unique_ptr<DataSettings> data;
  std::unique_ptr<NetworkSettings> network;

  std::int64_t steps = 1000;
  std::int64_t batch = 4;
  double lr = 2e-3;
  double final_lr = 0.0;
  std::int64_t warmup = 50;
  std::string optimizer = "adamw";
  double momentum = 0.9;
  double weight_decay = 0.0;
  double clip = 1.0;
  std::string on_nan = "stop";
  std::int64_t nan_limit = 10;
  double ema = 0.99;
  std::string loss = "mse";
  std::string precision = "f32";
  std::string compute = "same";
  std::vector<std::string> recompute;
  std::string shard = "none";
  std::string tensor;
  std::uint64_t seed = 0;

  /// Declares all settings; they are read and written through `settings` from then on.
  void declare(io::Settings& settings);

  DType dtype() const;
  std::unique_ptr<optim::Optimizer> make_optimizer(
      const std::vector<nn::Parameter>& parameters) const;
  Spread spread() const { return {shard, tensor}; }
};

}  // namespace tessera::app
