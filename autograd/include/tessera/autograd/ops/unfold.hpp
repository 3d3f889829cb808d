#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

/// Windows of unfold() and fold(); lists hold one value per domain dimension, one for all, or none
/// for the default.
struct UnfoldOptions {
  Dims kernel = {};
  Dims stride = {};  ///< default 1
  Dims pad_lo = {};  ///< zeros before the domain; default 0
  Dims pad_hi = {};  ///< zeros behind it; default: as pad_lo
  Dims dilation = {};
};

/// The windows of a convolution as channels (im2col): x [N, domain..., C] becomes
/// y[n, j, t, c] = x[n, j * stride - pad_lo + t * dilation, c], [N, out..., taps, C], taps =
/// prod(kernel) row-major over the kernel, out = floor((n + pad_lo + pad_hi - dilation (k - 1) - 1)
/// / stride) + 1; reshape(y, [N, out..., taps C]) moves nothing. Any dimension of x may be split;
/// boundaries b of the domain become ceil(b / stride). Throws ShapeError when sizes do not fit.
Tensor unfold(const Tensor& x, const UnfoldOptions& options);

/// The adjoint: adds windows y [N, out..., taps, C] up into a domain of `size`, x[n, i, c] = sum of
/// y[n, j, t, c] over j * stride - pad_lo + t * dilation = i. fold(unfold(x)) is x times the number
/// of windows that hold each element. Boundaries b become b * stride, or those of `like`.
Tensor fold(const Tensor& y,
            const Dims& size,
            const UnfoldOptions& options,
            const Layout& like = {});

}  // namespace tessera
