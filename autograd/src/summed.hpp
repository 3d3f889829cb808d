#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

/// a + b, in the memory of one of them where nobody else can see it and nothing is recorded.
Tensor summed(Tensor a, Tensor b);

}  // namespace tessera
