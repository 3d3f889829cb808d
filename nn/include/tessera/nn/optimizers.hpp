#pragma once

#include <tessera/nn/optim.hpp>

// Further methods that work element by element, and LAMB. Formulas as torch's where it has the
// method; g: gradient, p: parameter.
namespace tessera::optim {

/// Options of Rmsprop.
struct RmspropOptions {
  double lr = 1e-2;
  double alpha = 0.99;  ///< of the mean of squares
  double eps = 1e-8;
  double momentum = 0.0;
  bool centered = false;       ///< divide by the deviation in place of the root mean square
  double weight_decay = 0.0;   ///< added to the gradient
  bool decay_vectors = false;  ///< see AdamWOptions
  std::vector<Group> groups = {};
};

/// RMSprop (Hinton 2012; centered: Graves 2013): g += weight_decay p; s = alpha s + (1 - alpha)
/// g^2; u = g / (sqrt(s) + eps), where centered a = alpha a + (1 - alpha) g and s - a^2 stands for
/// s; v = momentum v + u; p -= lr v.
class Rmsprop : public Optimizer {
 public:
  explicit Rmsprop(const std::vector<nn::Parameter>& parameters,
                   const RmspropOptions& options = {});

 protected:
  void update(const std::vector<Change>& changes) override;

 private:
  RmspropOptions options_;
};

/// Options of Adagrad.
struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0.0;  ///< the rate of step t (from 1) is lr / (1 + (t - 1) lr_decay)
  double initial = 0.0;   ///< what the sum of squares starts from
  double eps = 1e-10;
  double weight_decay = 0.0;   ///< added to the gradient
  bool decay_vectors = false;  ///< see AdamWOptions
  std::vector<Group> groups = {};
};

/// Adagrad (Duchi et al. 2011): g += weight_decay p; s += g^2; p -= rate g / (sqrt(initial + s) +
/// eps).
class Adagrad : public Optimizer {
 public:
  explicit Adagrad(const std::vector<nn::Parameter>& parameters,
                   const AdagradOptions& options = {});

 protected:
  void update(const std::vector<Change>& changes) override;

 private:
  AdagradOptions options_;
};

/// Options of Lion. The paper advises 3 to 10 times less than the rate of AdamW, and as many times
/// more weight decay.
struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.0;
  bool decay_vectors = false;  ///< see AdamWOptions
  std::vector<Group> groups = {};
};

/// Lion (Chen et al. 2023): p *= 1 - lr weight_decay; p -= lr sign(beta1 m + (1 - beta1) g);
/// m = beta2 m + (1 - beta2) g.
class Lion : public Optimizer {
 public:
  explicit Lion(const std::vector<nn::Parameter>& parameters, const LionOptions& options = {});

 protected:
  void update(const std::vector<Change>& changes) override;

 private:
  LionOptions options_;
};

/// Options of Lamb.
struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 1e-2;
  bool decay_vectors = false;  ///< see AdamWOptions
  double largest_trust = 0.0;  ///< bound of |p| / |u|; 0: none
  std::vector<Group> groups = {};
};

/// LAMB (You et al. 2020): m and v as AdamW; u = (m / c1) / (sqrt(v / c2) + eps) + weight_decay p;
/// p -= lr (|p| / |u|) u, with norms over the whole parameter wherever its parts lie (one reduction
/// of two numbers per parameter); the ratio is 1 where a norm is 0. Large batches also want
/// clip_grad_norm(parameters, 1).
class Lamb : public Optimizer {
 public:
  explicit Lamb(const std::vector<nn::Parameter>& parameters, const LambOptions& options = {});

 protected:
  void update(const std::vector<Change>& changes) override;

 private:
  LambOptions options_;
};

}  // namespace tessera::optim
