#pragma once

#include <tessera/core/tensor.hpp>
#include <vector>

namespace tessera {

/// Marks `x` as a leaf whose gradient is wanted and returns it. Throws DTypeError unless floating.
Tensor require_grad(const Tensor& x);
/// Whether a gradient flows through or into `x`.
bool requires_grad(const Tensor& x);
bool is_leaf(const Tensor& x);

/// Options of backward().
struct BackwardOptions {
  /// False: leaves the gradients unreduced (Partial), for accumulation over micro-batches.
  bool reduce = true;
  /// Keep what the graph saved, for another backward() through it; otherwise it is freed as it is
  /// used.
  bool retain_graph = false;
};

/// Gradients of the scalar `loss` into all leaves it depends on, added to what they hold.
/// Reductions of parameter gradients start while it runs and end at the first use. Throws
/// ShapeError unless the loss has one element.
///
/// When it throws midway, leaves whose gradient was complete have it and all others are as before;
/// the graph is used up as far as the walk went. To go on, clear the gradients and compute the loss
/// again.
void backward(const Tensor& loss, const BackwardOptions& options = {});

/// Options of grad().
struct GradOptions {
  /// Record the computation of the gradients, so that they can be differentiated again.
  bool create_graph = false;
  /// Return an undefined tensor for inputs that the outputs do not depend on, instead of an error.
  bool allow_unused = false;
};

/// d(sum of outputs . grad_outputs) / d inputs, in the dual layouts of the inputs; touches no leaf.
/// `grad_outputs` may be empty when the outputs are scalars, or hold undefined tensors for them.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs,
                         const std::vector<Tensor>& inputs,
                         const GradOptions& options = {},
                         const std::vector<Tensor>& grad_outputs = {});

/// The accumulated gradient of a leaf, in its dual layout; finishes pending reductions (every rank
/// must call). Undefined when there is none.
Tensor gradient(const Tensor& leaf);
void set_gradient(const Tensor& leaf, const Tensor& value);
void clear_gradient(const Tensor& leaf);
/// Ends all pending reductions of leaf gradients, in the order they were started.
void finish_gradients();

/// While alive, ops are not recorded.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;

 private:
  bool previous_;
};
/// While alive, ops are recorded even inside a NoGrad scope.
class EnableGrad {
 public:
  EnableGrad();
  ~EnableGrad();
  EnableGrad(const EnableGrad&) = delete;

 private:
  bool previous_;
};
bool grad_enabled();

/// While alive (or with TESSERA_ANOMALY=1), the first op that makes a NaN or infinity from finite
/// inputs throws an Error that names it. Every rank throws alike.
class AnomalyMode {
 public:
  AnomalyMode();
  ~AnomalyMode();
  AnomalyMode(const AnomalyMode&) = delete;

 private:
  bool previous_;
};

/// `x` in another layout on the same mesh: the identity on global values, and so is its gradient.
Tensor redistribute(const Tensor& x, const Layout& layout);
/// Every rank gets the whole value. The explicit word for a gather.
Tensor replicate(const Tensor& x);
/// Takes a pending sum: Partial becomes Replicate.
Tensor reduced(const Tensor& x);

}  // namespace tessera
