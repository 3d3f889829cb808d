#pragma once

#include <string_view>
#include <tessera/core/tensor.hpp>
#include <vector>

namespace tessera {

/// Sums of products in Einstein's notation: `einsum("bij,bjk->bik", {a, b})` is
/// y[b, i, k] = sum over j of a[b, i, j] b[b, j, k].
///
/// One letter per dimension of each operand; letters that the result lacks are summed over. A
/// letter twice in one operand takes its diagonal. Without `->` the result has the letters that
/// occur once, in the order of the alphabet. `...` stands for the dimensions that are not named,
/// aligned at the right, and comes first in a result that is not given. Sizes must be equal:
/// nothing stretches.
///
/// Operands are contracted from left to right, two at a time, as one matrix product where something
/// is summed. Any dimension may be split: sums over one are Partial, and of two operands that split
/// one mesh axis differently the smaller is moved, where matmul() allows it. Derivatives of any
/// order. Throws ShapeError where the equation does not fit the operands.
Tensor einsum(std::string_view equation, const std::vector<Tensor>& operands);

}  // namespace tessera
