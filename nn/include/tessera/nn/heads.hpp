#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera::nn {

/// [..., heads * D] -> [..., heads, D], and back: what layers do around attention.
Tensor split_heads(const Tensor& x, std::int64_t heads);
Tensor join_heads(const Tensor& x);

}  // namespace tessera::nn
