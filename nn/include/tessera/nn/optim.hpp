#pragma once

#include <limits>
#include <string>
#include <tessera/nn/parameter.hpp>
#include <utility>
#include <vector>

namespace tessera::kernels {
struct OptimSegment;
}

namespace tessera::optim {

/// Deviations for the parameters whose path matches `pattern` (see nn::glob_match); of several that
/// match the last counts.
struct Group {
  std::string pattern;
  double lr_scale = 1.0;
  double weight_decay = -1.0;  ///< negative: that of the optimiser
};

/// Changes parameters along their gradients. Works on each rank's part, whatever the layout, so
/// split parameters have split state.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Finishes pending gradient reductions, changes every parameter that has a gradient, and clears
  /// the gradients. Every rank must call.
  void step();
  /// Clears the gradients without a step; finishes pending reductions first.
  void zero_grad();

  double lr() const { return lr_; }
  void set_lr(double lr) { lr_ = lr; }
  /// Steps done; counts for bias corrections.
  std::int64_t steps() const { return steps_; }
  const std::vector<nn::Parameter>& parameters() const { return parameters_; }

  /// The state's tensors by name, `<parameter path>/<what>`, in the rest layouts of the parameters;
  /// made (zero) when they do not exist yet. For checkpoints.
  std::vector<std::pair<std::string, Tensor>> state();
  void set_steps(std::int64_t steps) { steps_ = steps; }

 protected:
  /// Throws UsageError when two parameters have the same path, or none is trainable, or a group
  /// matches none. `decay_vectors`: see AdamWOptions.
  Optimizer(const std::vector<nn::Parameter>& parameters,
            std::vector<const char*> slot_names,  // at most three: the kernels' first to third
            double lr,
            double weight_decay,
            bool decay_vectors,
            const std::vector<Group>& groups);
  /// Changes all parameters that have a gradient, in one pass; steps() counts this step already.
  virtual void update(const std::vector<kernels::OptimSegment>& segments) = 0;

 private:
  struct Item {
    nn::Parameter parameter;
    double lr_scale = 1.0;
    double weight_decay = 0.0;
    std::vector<Tensor> slots = {};
  };
  void make_slots(Item& item) const;
  std::vector<nn::Parameter> parameters_;
  std::vector<Item> items_;
  std::vector<const char*> slot_names_;
  double lr_;
  std::int64_t steps_ = 0;
};

/// Options of Sgd.
struct SgdOptions {
  double lr = 1e-2;
  double momentum = 0.0;
  bool nesterov = false;
  double weight_decay = 0.0;   ///< added to the gradient
  bool decay_vectors = false;  ///< false: parameters of one dimension (biases, norms) do not decay
  std::vector<Group> groups = {};
};

/// Stochastic gradient descent: g += weight_decay p; v = momentum v + g; p -= lr v
/// (nesterov: p -= lr (g + momentum v)).
class Sgd : public Optimizer {
 public:
  explicit Sgd(const std::vector<nn::Parameter>& parameters, const SgdOptions& options = {});

 protected:
  void update(const std::vector<kernels::OptimSegment>& segments) override;

 private:
  SgdOptions options_;
};

/// Options of AdamW.
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool decay_vectors = false;  ///< false: parameters of one dimension (biases, norms) do not decay
  std::vector<Group> groups = {};
  bool amsgrad = false;  ///< the largest v so far in place of v (Reddi et al. 2018)
  bool coupled = false;  ///< Adam: g += weight_decay p, and p does not decay by itself
};

/// AdamW (Loshchilov & Hutter 2019): p *= 1 - lr weight_decay; m = beta1 m + (1 - beta1) g;
/// v = beta2 v + (1 - beta2) g^2; p -= lr (m / c1) / (sqrt(v / c2) + eps), c = 1 - beta^steps.
class AdamW : public Optimizer {
 public:
  explicit AdamW(const std::vector<nn::Parameter>& parameters, const AdamWOptions& options = {});

 protected:
  void update(const std::vector<kernels::OptimSegment>& segments) override;

 private:
  AdamWOptions options_;
};

/// Norm of all gradients together, sqrt(sum g^2), each element counted once wherever it lies; one
/// reduction of a scalar. Finishes pending reductions; every rank must call.
double grad_norm(const std::vector<nn::Parameter>& parameters);

/// Scales all gradients by max_norm / norm where the norm exceeds `max_norm` (Pascanu et al. 2013),
/// and returns the norm before.
double clip_grad_norm(const std::vector<nn::Parameter>& parameters, double max_norm);

/// Options of Ema.
struct EmaOptions {
  double decay = 0.999;
  /// Update t (from 1) uses min(decay, (1 + t) / (10 + t)), so that the average forgets the start.
  bool warm_up = true;
};

/// Exponential moving average of parameters: average = decay average + (1 - decay) parameter.
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

/// Options of PlateauSchedule.
struct PlateauOptions {
  double factor = 0.8;
  std::int64_t patience = 50;
  double threshold = 1e-4;  ///< by how much of itself the best loss must fall to count
};

/// A factor of the learning rate that falls when a loss has not improved for more than `patience`
/// calls: what torch calls ReduceLROnPlateau.
class PlateauSchedule {
 public:
  explicit PlateauSchedule(const PlateauOptions& options = {}) : options_(options) {}
  /// Takes the next loss; NaN counts as no improvement.
  void update(double loss);
  double scale() const { return state_.scale; }

  /// For checkpoints.
  struct State {
    double scale = 1.0;
    double best = std::numeric_limits<double>::infinity();
    std::int64_t bad = 0;  ///< calls since the last improvement or fall
  };
  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }

 private:
  PlateauOptions options_;
  State state_;
};

/// Learning rate by step: linear from 0 over `warmup` steps to `lr`, then half a cosine to
/// `final_lr` at step `steps` (Loshchilov & Hutter 2017). A pure function, so resuming needs no
/// state.
struct CosineSchedule {
  double lr = 1e-3;
  std::int64_t steps = 1;
  std::int64_t warmup = 0;
  double final_lr = 0.0;
  /// The rate for step `step` (from 0).
  double operator()(std::int64_t step) const;
};

}  // namespace tessera::optim
