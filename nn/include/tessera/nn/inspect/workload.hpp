#pragma once

#include <functional>
#include <memory>
#include <tessera/nn/module.hpp>

namespace tessera::nn {

/// A model in training, for plan_step() and compare_steps(): everything that one step does. Inputs
/// and targets are functions of the step and of global indices, so it is the same on every mesh.
class Workload {
 public:
  virtual ~Workload() = default;
  virtual Module& model() = 0;
  /// The loss of step `step` (from 0).
  virtual Tensor loss(std::int64_t step) = 0;
  /// Changes the parameters along their gradients.
  virtual void update() = 0;
  /// The same value with its rows in an order that no mesh changes, for compare_steps(); undefined
  /// where there is none, as for copies of other ranks' rows. `gathered` is the global value of a
  /// tensor that lies as `layout`. Called on rank 0 alone.
  virtual Tensor in_order(const Tensor& gathered, const Layout& layout) const {
    (void)layout;
    return gathered;
  }

  /// loss, backward, update.
  void run(std::int64_t step);
};

/// Makes the workload on a mesh: the same model, the same data, split as the mesh wants it.
using MakeWorkload = std::function<std::unique_ptr<Workload>(const Mesh&)>;

}  // namespace tessera::nn
