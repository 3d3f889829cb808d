#pragma once

#include <optional>
#include <string>
#include <tessera/core/scope.hpp>
#include <tessera/nn/inspect/workload.hpp>

namespace tessera::nn {

struct CompareOptions {
  std::int64_t steps = 3;
  /// Largest difference that is rounding, relative to the largest magnitude in the tensor; 0: by
  /// the coarsest element type so far, 1e-9 for f64, 1e-3 for f32, 0.1 for bf16. Sums over another
  /// number of ranks are rounded differently, and steps of training make that grow.
  double tolerance = 0.0;
  /// False: gradients and weights alone are compared. Layers whose inputs are split (tensor
  /// parallelism) add their bias to a sum not yet taken, so their ops are others than on one rank.
  bool outputs = true;
};

/// A tensor that is not the same on the mesh and on one rank.
struct Difference {
  std::int64_t step = 0;
  std::string layer;   ///< path of the module or of the parameter; empty: outside of modules
  std::string what;    ///< `output of conv (forward)`, `gradient`, `weight after the step`
  std::string layout;  ///< on the mesh
  double error = 0.0;  ///< largest difference over largest magnitude; infinite for NaN on one side
  double tolerance = 0.0;
  /// `step 0: up.0.conv: output of conv (forward) [2, 32/h, 32/w, 16] differs by 0.31 (tolerance
  /// 0.001)`
  std::string str() const;
};

/// What compare_steps() found; the same on every rank.
struct Comparison {
  std::optional<Difference> first;  ///< none: all is equal within the tolerance
  std::int64_t tensors = 0;         ///< compared
  std::string closest;              ///< the largest error that was within the tolerance, as text
};

/// Runs steps of `make`'s workload on the mesh and the same on one rank alone (rank 0 of it, beside
/// the mesh: it holds all layer outputs of a step), and compares every value on the way: the
/// outputs of all ops of the forward and backward passes in program order, then the gradients of
/// the parameters from the last to the first, then the new weights. Values are compared in the
/// workload's order of rows, and left out where it has none. Names the first that differs. Every
/// rank of the mesh must call.
Comparison compare_steps(const Mesh& mesh,
                         const MakeWorkload& make,
                         const CompareOptions& options = {});

}  // namespace tessera::nn
