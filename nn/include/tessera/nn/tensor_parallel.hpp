#pragma once

#include <string>
#include <tessera/nn/module.hpp>
#include <utility>
#include <vector>

namespace tessera::nn {

/// Rules for place(): what one mesh axis splits in use.
using PlacementRules = std::vector<std::pair<std::string, ParameterPlacement>>;

/// Rules that split each MultiHeadAttention by heads and each Mlp by hidden channels over an axis
/// of the model's mesh (Shoeybi et al. 2019); the model computes what it did. Heads that share keys
/// stay together. Where there are fewer heads than ranks, some have none.
///
/// With tokens whole on the axis a block sums what it adds twice forward and its gradients twice
/// backward: 4 all-reduces of the tokens. With tokens split over the same axis (sequence parallel,
/// Korthikanti et al. 2022) each becomes a gather before the block and a scatter of sums after it.
PlacementRules tensor_parallel(Module& model, const std::string& axis);

/// `rows`: the rule that splits a weight, or bias, by its outputs; `columns`: by its inputs, the
/// last dimension. In multiples of `multiple`.
ParameterPlacement split_rows(const Mesh& mesh, const std::string& axis, std::int64_t multiple = 1);
ParameterPlacement split_columns(const Parameter& weight,
                                 const std::string& axis,
                                 std::int64_t multiple = 1);

/// `x` [N, domain..., C] as a layer reads it whose weight is split by outputs in use: whole on the
/// axes that split them. A gather where these split the domain, else `x` itself.
Tensor gathered_for(const Tensor& x, const Parameter& weight);
/// A pending sum `y` of a layer, taken where its input `x` lies: the splits of `x` but for
/// channels. What is no pending sum stays as it is.
Tensor returned_to(const Tensor& y, const Tensor& x);

}  // namespace tessera::nn
