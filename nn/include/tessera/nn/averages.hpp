#pragma once

#include <string>
#include <tessera/nn/parameter.hpp>
#include <utility>
#include <vector>

namespace tessera::optim {

/// Options of Ema.
struct EmaOptions {
  double decay = 0.999;
  /// Update t (from 1) uses min(decay, (1 + t) / (10 + t)), so that the average forgets the start.
  bool warm_up = true;
  /// The mean of all values taken, each counting alike (stochastic weight averaging, Izmailov et
  /// al. 2018), in place of the decay: update() where it should count, say once per epoch of the
  /// last quarter, or at the low points of a cyclic rate.
  bool equal = false;
};

/// Moving average of parameters: average = decay average + (1 - decay) parameter; for equal weights
/// decay = 1 - 1 / t in update t.
class Ema {
 public:
  /// Starts at the present values.
  explicit Ema(const std::vector<nn::Parameter>& parameters, const EmaOptions& options = {});
  /// Takes the present values into the average; call after each step().
  void update();
  /// Exchanges averages and parameters; call twice to get back.
  void swap();

  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t updates) { updates_ = updates; }
  /// The averages by parameter path, in the rest layouts. For checkpoints.
  std::vector<std::pair<std::string, Tensor>> state() const;

 private:
  std::vector<nn::Parameter> parameters_;
  std::vector<Tensor> averages_;
  EmaOptions options_;
  std::int64_t updates_ = 0;
};

/// While alive, the parameters hold their averages.
class EmaScope {
 public:
  explicit EmaScope(Ema& ema) : ema_(ema) { ema_.swap(); }
  ~EmaScope() { ema_.swap(); }
  EmaScope(const EmaScope&) = delete;

 private:
  Ema& ema_;
};

}  // namespace tessera::optim
