#pragma once

#include <tessera/core/tensor.hpp>
#include <vector>

namespace tessera {

/// A stretch of a longer backward pass: from the gradients of `outputs` to those of `inputs`, which
/// are returned in their dual layouts (undefined where the outputs do not depend on one), and into
/// all other leaves, as backward() adds them. Outputs without gradients are left out; an output may
/// be one of the inputs. The graph is freed as it is used.
///
/// `last`: no later stretch reaches the leaves that this one does, so the reductions of their
/// gradients start while it runs; those of others wait. Throws UsageError unless there is one
/// gradient per output, ShapeError where one has another shape.
std::vector<Tensor> backward_through(const std::vector<Tensor>& outputs,
                                     const std::vector<Tensor>& gradients,
                                     const std::vector<Tensor>& inputs,
                                     bool last);

/// `x` as backward_through() needs it, for a time when nobody needs its values: its place on the
/// tape, shape, layout and type, without the memory (reading it gives one arbitrary number).
Tensor without_values(const Tensor& x);

}  // namespace tessera
