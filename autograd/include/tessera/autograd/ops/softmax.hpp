#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

// Over the listed dimensions together (negative counts from the end), also where they are split:
// the maxima and sums are then reduced, nothing else moves. Made of smaller ops, so derivatives of
// any order exist. The largest element is subtracted first: no overflow. A softmax over the last
// dimension alone, where that is not split, is one pass over memory and keeps its result alone.

/// exp(x) / sum exp(x)
Tensor softmax(const Tensor& x, const Dims& dims = {-1});
/// x - log(sum exp(x))
Tensor log_softmax(const Tensor& x, const Dims& dims = {-1});

}  // namespace tessera
