#pragma once

#include <functional>
#include <span>
#include <string>
#include <tessera/autograd/ops/random.hpp>
#include <tessera/core/tensor.hpp>
#include <vector>

namespace tessera {

/// Options of recompute().
struct RecomputeOptions {
  /// Names of ops (`OpDef::name`, "attention" say) whose outputs are kept from the first run: the
  /// second does not compute them again.
  std::vector<std::string> keep = {};
};

/// From tensors to tensors: the same ops in the same order whenever it is called with the same
/// inputs.
using RecomputedFunction = std::function<std::vector<Tensor>(std::span<const Tensor>)>;

/// `f(inputs)` that keeps `inputs` and what `f` holds instead of what its ops save: the first
/// gradient that needs a saved value runs `f` again (Chen et al. 2016). Values and gradients of any
/// order are those of a plain call, to the bit. Calls may be nested. Without recording it is a
/// plain call.
///
/// Tensors that `f` takes from elsewhere (parameters) get their gradients as always. The second run
/// throws UsageError when `f` calls other ops than before, or one of its tensors was changed in
/// place; what `f` draws or counts has to go through replayed().
std::vector<Tensor> recompute(const RecomputedFunction& f,
                              const std::vector<Tensor>& inputs,
                              const RecomputeOptions& options = {});

/// The same for one tensor.
Tensor recompute(const std::function<Tensor(const Tensor&)>& f,
                 const Tensor& x,
                 const RecomputeOptions& options = {});

/// What `draw()` returns; in a second run what it returned in the first, without calling it.
RandomKey replayed(const std::function<RandomKey()>& draw);

}  // namespace tessera
