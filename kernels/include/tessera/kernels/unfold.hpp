#pragma once

#include <tessera/core/view.hpp>

namespace tessera::kernels {

/// Windows over 1 to 3 domain dimensions: that of output j holds, in each of them, the elements
/// `j * stride - pad_lo + t * dilation`, t = 0 .. kernel - 1.
struct UnfoldGeometry {
  Dims kernel;
  Dims stride;
  Dims pad_lo;
  Dims dilation;

  int dims() const { return kernel.size(); }
};

// Pieces are x [N, d..., C] and y [N, d..., taps, C] with taps = prod(kernel), row-major over the
// kernel, f32, f64 or bf16. What lies outside the box of an input is zero. Results do not depend on
// how the output is cut. Throws ShapeError or DTypeError on operands that do not fit.

/// y[n, j, t, c] = x[n, j * stride - pad_lo + t * dilation, c].
void unfold(const UnfoldGeometry& g, const Piece& x, const Piece& y);

/// The adjoint in gather form: x[n, i, c] = sum of y[n, j, t, c] over the taps t, ascending, with
/// j * stride - pad_lo + t * dilation = i.
void fold(const UnfoldGeometry& g, const Piece& y, const Piece& x);

}  // namespace tessera::kernels
