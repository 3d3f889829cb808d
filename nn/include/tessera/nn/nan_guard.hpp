#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <tessera/nn/module.hpp>
#include <tessera/nn/optim.hpp>

namespace tessera::nn {

/// What becomes of a training whose loss or gradient is NaN or infinite in a step.
enum class OnNan : std::uint8_t {
  kStop,  ///< it ends with an error that names op and layer
  kSkip   ///< the step is left out
};

struct NanGuardOptions {
  OnNan on_nan = OnNan::kStop;
  /// Steps in a row that may be left out; one more ends the training.
  std::int64_t most_skips = 10;
};

/// Looks at each step between backward and the optimiser, so that a NaN or infinity never reaches
/// parameters, optimiser state or averages. All ranks decide alike: one small reduction per step
/// tells each of what any has seen.
///
/// ```cpp
/// const auto forward = [&] { return mse_loss(model(x), target); };
/// const Tensor loss = forward();
/// backward(loss);
/// if (guard.passes(step, loss.item(), forward)) {
///   optimizer.step();
///   ema.update();
/// }
/// ```
class NanGuard {
 public:
  /// `mesh` of the model; of a pipeline that of all stages. `model` and `optimizer` must live as
  /// long as the guard.
  NanGuard(const Mesh& mesh,
           Module& model,
           optim::Optimizer& optimizer,
           const NanGuardOptions& options = {});

  /// Whether the optimiser may take step `step` (from 0), whose loss is `loss`; false: it is left
  /// out, and its gradients are gone. Finishes pending gradients. Every rank must call.
  ///
  /// Throws Error on every rank where the step may not be left out. To name op and layer it takes
  /// the loss of the same step once more with `forward`, with the same random numbers, and its
  /// gradients, and looks at each op. Parameters, optimiser state and averages are as before the
  /// step.
  bool passes(std::int64_t step, double loss, const std::function<Tensor()>& forward);
  /// The same where forward and backward pass are one call: `again` makes it, and returns the loss.
  ///
  /// ```cpp
  /// const auto once = [&] { return pipeline.step(input, target, loss); };
  /// if (guard.passes(step, once(), once)) optimizer.step();
  /// ```
  bool passes(std::int64_t step, double loss, const std::function<double()>& again);

  /// Steps left out so far.
  std::int64_t skipped() const { return skipped_; }

 private:
  struct Finding;
  Finding look(double loss) const;
  std::string cause(const std::function<double()>& again);

  Mesh mesh_;
  Module& model_;
  optim::Optimizer& optimizer_;
  NanGuardOptions options_;
  std::int64_t skipped_ = 0;
  std::int64_t in_row_ = 0;
};

}  // namespace tessera::nn
