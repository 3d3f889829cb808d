#pragma once

#include <tessera/core/edge.hpp>
#include <tessera/core/tensor.hpp>
#include <vector>

namespace tessera {

/// Options of conv(). Lists hold one value per domain dimension; an empty list means the default
/// for all, a list of one value means that value for all.
struct ConvOptions {
  Dims stride = {};    ///< default 1
  Dims pad_lo = {};    ///< elements added before the domain; default 0
  Dims pad_hi = {};    ///< elements added behind it; default: as pad_lo
  Dims dilation = {};  ///< default 1
  std::int64_t groups = 1;
  std::vector<EdgeRule> edges = {};  ///< what the padding holds; default kZero
};

/// Options of conv_transpose().
struct ConvTransposeOptions {
  Dims stride = {};
  Dims pad_lo = {};  ///< elements cut off at the low end of the full output
  Dims pad_hi = {};  ///< default: as pad_lo
  Dims dilation = {};
  Dims output_padding = {};  ///< elements added behind; default 0
  std::int64_t groups = 1;
  std::vector<EdgeRule> edges =
      {};  ///< what is cut off: dropped (kZero) or added where the rule maps it
};

/// Convolution (cross-correlation) in 1 to 3 domain dimensions:
/// y[n, o, c] = bias[c] + sum_{t, k} w[c, t, k] x[n, o * stride - pad_lo + t * dilation, k].
///
/// x [N, domain..., C_in], w [C_out, kernel..., C_in / groups], bias [C_out] or undefined; result
/// [N, out..., C_out] with out = floor((n + pad_lo + pad_hi - dilation (k - 1) - 1) / stride) + 1.
/// Part boundaries b of x become ceil(b / stride). Throws ShapeError when sizes do not fit or the
/// output would be empty.
Tensor conv(const Tensor& x,
            const Tensor& w,
            const Tensor& bias = {},
            const ConvOptions& options = {});

/// Transposed convolution, the gradient of conv() with respect to its input:
/// x [N, domain..., C_in], w [C_in, kernel..., C_out / groups], result [N, out..., C_out] with
/// out = (n - 1) stride - pad_lo - pad_hi + dilation (k - 1) + output_padding + 1. Boundaries b
/// become stride * b.
Tensor conv_transpose(const Tensor& x,
                      const Tensor& w,
                      const Tensor& bias = {},
                      const ConvTransposeOptions& options = {});

}  // namespace tessera
