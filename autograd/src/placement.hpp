#pragma once

#include <tessera/autograd/op.hpp>
#include <vector>

namespace tessera {

/// Where the tensors of one call go: the layouts that the inputs are brought to, those that the
/// outputs have, and the algorithm of the groups that brought their own.
struct Placed {
  std::vector<Layout> in;  // undefined for absent inputs
  std::vector<Layout> out;
  void (*run)(RunContext&) = nullptr;
  AxisMask run_axes = 0;
};

/// Chooses, for each group of axes, the cheapest legal signature of `op`; a pure function of global
/// metadata.
///
/// Cost = bytes that redistribution of the inputs brings to the busiest rank + the reduction of the
/// Partial values made; the first of equals. Where nothing fits it throws LayoutError naming all
/// layouts; with `gathers` it takes what does fit, at worst whole inputs: in backward, where nobody
/// can place anything, what has a value has gradients.
Placed choose_placement(const OpDef& op, const Problem& problem, bool gathers);

}  // namespace tessera
