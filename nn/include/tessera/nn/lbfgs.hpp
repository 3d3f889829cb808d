#pragma once

#include <tessera/nn/optim.hpp>

namespace tessera::optim {

/// Options of Lbfgs.
struct LbfgsOptions {
  double lr = 1.0;                ///< first length tried along a direction
  std::int64_t iterations = 20;   ///< directions per step at most
  std::int64_t evaluations = 25;  ///< of the closure per step at most
  double gradient_tolerance = 1e-7;
  double change_tolerance = 1e-9;
  std::int64_t history = 10;
  bool line_search = true;  ///< strong Wolfe; false: always the length lr
};

/// L-BFGS (Nocedal 1980) with a line search for the strong Wolfe conditions by cubic interpolation
/// (c1 = 1e-4, c2 = 0.9; Nocedal & Wright, algorithms 3.5 and 3.6, after minFunc): torch's LBFGS,
/// number by number. For losses without noise: whole batches, fits of potentials, inverse problems.
///
/// Products and norms run over all parameters wherever their parts lie, in double. State: 2 history
/// + 2 tensors per parameter, and the tensor `lbfgs/numbers`.
class Lbfgs : public Optimizer {
 public:
  /// Throws UsageError unless `iterations`, `evaluations` and `history` are positive.
  explicit Lbfgs(const std::vector<nn::Parameter>& parameters, const LbfgsOptions& options = {});

  /// Computes the loss at the present values, calls backward() on it and returns it, the same
  /// number on all ranks. Parameters without a gradient count as constant.
  using Closure = std::function<double()>;
  /// Moves the parameters to where the loss is lower, evaluating `closure` several times, and
  /// returns the loss it began with. Every rank must call. Throws NotSupported in a dry run: what
  /// it evaluates depends on data.
  double step(const Closure& closure);
  void step() override;

  std::vector<std::pair<std::string, Tensor>> state() override;

 protected:
  void update(const std::vector<Change>&) override {}

 private:
  LbfgsOptions options_;
  Tensor numbers_;  // iterations, entries of the history, the oldest, step length, scale, 1 / (y s)
};

}  // namespace tessera::optim
