#pragma once

#include <string>
#include <tessera/nn/module.hpp>
#include <vector>

namespace tessera::nn {

/// Options of shard().
struct ShardOptions {
  /// Mesh axes whose ranks share the parameters; empty: all that split none of them in use.
  std::vector<std::string> axes = {};
  /// What is split over these ranks (ZeRO, Rajbhandari et al. 2020): 1 the state of optimisers, 2
  /// gradients, too, 3 parameters, too.
  int stage = 3;
  /// Parameters of fewer elements stay whole: each message costs time, too.
  std::int64_t min_elements = 0;
};

/// Shares the parameters of a model among the ranks of some axes; the model computes what it did.
/// Call it once, before the first forward pass, after place() where use layouts are split.
///
/// Elements that each rank sends per step, of n trainable ones on P ranks, and what it holds:
///
/// | stage | gradients          | parameters              | held per parameter (AdamW)    |
/// |-------|--------------------|-------------------------|-------------------------------|
/// | none  | 2 (P-1)/P          | 0                       | 1 + 1 + 2                     |
/// | 1     | 2 (P-1)/P          | (P-1)/P after the step  | 1 + 1 + 2/P                   |
/// | 2     | (P-1)/P            | (P-1)/P at first use    | 1 + 2/P + 2/P                 |
/// | 3     | (P-1)/P            | (P-1)/P in forward, and | 4/P, and two whole parameters |
/// |       |                    | backward where read     | at a time                     |
///
/// A parameter is split along the dimension that gives the smallest largest part, the first of
/// equals, however sizes divide. Micro-batches (`backward(loss, {.reduce = false})`) send no
/// gradients; in stages 2 and 3 these are whole until they are reduced. Throws UsageError for other
/// stages, LayoutError for an axis that the mesh lacks.
///
/// ```cpp
/// nn::shard(model, {.axes = {"data", "h"}, .stage = 3});
/// ```
void shard(Module& model, const ShardOptions& options = {});

}  // namespace tessera::nn
