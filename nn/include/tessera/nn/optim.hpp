#pragma once

#include <functional>
#include <span>
#include <string>
#include <tessera/nn/parameter.hpp>
#include <utility>
#include <vector>

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
  /// the gradients. Every rank must call. Lbfgs has a step of its own and throws UsageError here.
  virtual void step();
  /// Clears the gradients without a step; finishes pending reductions first.
  void zero_grad();

  double lr() const { return lr_; }
  void set_lr(double lr) { lr_ = lr; }
  /// Steps done; counts for bias corrections.
  std::int64_t steps() const { return steps_; }
  const std::vector<nn::Parameter>& parameters() const { return parameters_; }

  /// The state's tensors by name, `<parameter path>/<what>`, in the rest layouts of the parameters;
  /// made (zero) when they do not exist yet. For checkpoints.
  virtual std::vector<std::pair<std::string, Tensor>> state();
  void set_steps(std::int64_t steps) { steps_ = steps; }

 protected:
  /// Names of a parameter's state.
  using SlotNames = std::function<std::vector<std::string>(const nn::Parameter&)>;
  /// One parameter in a step: this rank's share of its value, gradient and state, all in its
  /// optimizer_layout() and dense.
  struct Change {
    const nn::Parameter* parameter = nullptr;
    std::size_t index = 0;          ///< in parameters()
    Tensor value;                   ///< what update() changes in place
    Tensor gradient;                ///< zero where there was none
    std::span<const Tensor> slots;  ///< in the order of their names; changed in place
    double rate = 0.0;              ///< learning rate, with the scale of the group
    double weight_decay = 0.0;
  };

  /// Throws UsageError when two parameters have the same path, or none is trainable, or a group
  /// matches none. `decay_vectors`: see AdamWOptions.
  Optimizer(const std::vector<nn::Parameter>& parameters,
            const SlotNames& slot_names,
            double lr,
            double weight_decay,
            bool decay_vectors,
            const std::vector<Group>& groups);
  /// Changes all parameters that have a gradient; steps() counts this step already.
  virtual void update(const std::vector<Change>& changes) = 0;

  /// What the parameters that lie here have to change, those without a gradient left out unless
  /// `all`. Finishes pending reductions and clears the gradients.
  std::vector<Change> take_changes(bool all = false);
  /// Brings the changed values to the parameters.
  void give_back(const std::vector<Change>& changes);
  void count_step() { ++steps_; }

 private:
  struct Item {
    nn::Parameter parameter;
    std::vector<std::string> slot_names;
    double lr_scale = 1.0;
    double weight_decay = 0.0;
    std::vector<Tensor> slots = {};
  };
  static void make_slots(Item& item);
  std::vector<nn::Parameter> parameters_;
  std::vector<Item> items_;  // one per parameter
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
  void update(const std::vector<Change>& changes) override;

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
  void update(const std::vector<Change>& changes) override;

 private:
  AdamWOptions options_;
};

/// Norm of all gradients together, sqrt(sum g^2), each element counted once wherever it lies; one
/// reduction of a scalar. Finishes pending reductions; every rank must call.
double grad_norm(const std::vector<nn::Parameter>& parameters);

/// Scales all gradients by max_norm / norm where the norm exceeds `max_norm` (Pascanu et al. 2013),
/// and returns the norm before.
double clip_grad_norm(const std::vector<nn::Parameter>& parameters, double max_norm);

}  // namespace tessera::optim
