#pragma once

#include <cstdint>
#include <span>
#include <tessera/core/dtype.hpp>
#include <tessera/core/layout.hpp>

namespace tessera::parallel {

/// out[i] = ((x_0[i] + x_1[i]) + x_2[i]) + ... (or maximum, minimum) over `inputs` in their order;
/// `out` may be one of them.
void reduce_in_order(
    DType dtype, ReduceOp op, std::span<const void* const> inputs, void* out, std::int64_t count);

}  // namespace tessera::parallel
