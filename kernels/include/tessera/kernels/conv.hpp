#pragma once

#include <optional>
#include <tessera/core/view.hpp>

namespace tessera::kernels {

/// The window of a convolution over 1 to 3 domain dimensions: output j reads inputs
/// `j * stride - pad_lo + t * dilation`, t = 0 .. kernel - 1, in each of them.
///
/// The padding at the upper end shows only in the size of the output. The number of groups follows
/// from the shapes of the operands (channels of x over the last dimension of w), so that pieces of
/// a grouped convolution work alike.
struct ConvGeometry {
  Dims kernel;
  Dims stride;
  Dims pad_lo;
  Dims dilation;

  int dims() const { return kernel.size(); }
};

// Pieces are x [N, d..., C_in], y [N, d..., C_out]; weights w [C_out, k..., C_in / groups], bias
// [C_out]. Boxes say in global coordinates of the batch and domain dimensions what is given and
// what is to be computed; what lies outside an input's box adds nothing. f32, f64 and bf16 (sums in
// f32); all operands of a call have one element type. Every element of y and dx sums over the taps
// in row-major order, then over channels, whatever the boxes and strides are: the result does not
// depend on how the output is cut. Throws ShapeError or DTypeError on operands that do not fit.

/// y[n, j, o] = bias[o] + sum over t, c of x[n, j * stride - pad_lo + t * dilation, c] * w[o, t, c]
/// for j in the box of y.
void conv_forward(const ConvGeometry& g,
                  const Piece& x,
                  const View& w,
                  const std::optional<View>& bias,
                  const Piece& y);

/// The adjoint in x, in gather form: dx[n, i, c] = sum over t, o, j with j * stride - pad_lo + t *
/// dilation = i of dy[n, j, o] * w[o, t, c], for i in the box of dx, whose coordinates may lie
/// outside the domain (the padding). The transposed convolution of dy is the same sum; an optional
/// bias [C_in] is added for it.
void conv_input_grad(const ConvGeometry& g,
                     const Piece& dy,
                     const View& w,
                     const Piece& dx,
                     const std::optional<View>& bias = std::nullopt);

/// dw[o, t, c] = sum over n, j of dy[n, j, o] * x[n, j * stride - pad_lo + t * dilation, c] over
/// the box of dy; `accumulate` adds to dw instead. The order of the sum is fixed by the shapes, not
/// by the number of threads.
void conv_weight_grad(
    const ConvGeometry& g, const Piece& x, const Piece& dy, const View& dw, bool accumulate);

}  // namespace tessera::kernels
