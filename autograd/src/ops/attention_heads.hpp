#pragma once

#include <tessera/autograd/op.hpp>

// What full and local attention share.

namespace tessera {

/// Of statistics, sums and gradients.
inline DType compute_type(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

/// Keys or values [leading..., rest..., H_kv, C] as a result of layout `result` [leading..., ...,
/// H, C_v] reads them: `leading` dimensions split as the result's, heads too unless that would cut
/// one that several query heads read, the rest whole.
Tensor beside_result(const Tensor& x, const Layout& result, int leading);

}  // namespace tessera
