#pragma once

#include <tessera/core/view.hpp>

namespace tessera::kernels {

/// The window of a pooling over 1 to 3 domain dimensions: output j covers inputs `j * stride -
/// pad_lo + t * dilation`, t = 0 .. kernel - 1, in each of them.
struct PoolGeometry {
  Dims kernel;
  Dims stride;
  Dims pad_lo;
  Dims pad_hi;
  Dims dilation;
  /// Adaptive pooling: the numbers of outputs m; output j of n inputs covers floor(j n / m) up to
  /// ceil((j + 1) n / m). The other lists are then not read. Empty otherwise.
  Dims bins = {};

  int dims() const { return bins.empty() ? kernel.size() : bins.size(); }
};

/// Adaptive pooling of n inputs to m outputs in one dimension: what the outputs [j.lo, j.hi) read,
/// and the outputs that read one of the inputs [i.lo, i.hi).
Interval adaptive_inputs(std::int64_t n, std::int64_t m, Interval j);
Interval adaptive_outputs(std::int64_t n, std::int64_t m, Interval i);

/// Number of outputs of one dimension: floor((n + pad_lo + pad_hi - dilation (k - 1) - 1) / stride)
/// + 1, or with `ceil_mode` the ceiling without windows that start behind n + pad_lo; 0 when the
/// window does not fit.
std::int64_t pool_size(const PoolGeometry& g, int dim, std::int64_t n, bool ceil_mode);

// Pieces are x [N, d..., C] and y [N, d..., C], f32, f64 or bf16; `index` is an int64 piece of the
// shape of y. What lies outside the box of an input is absent. Results do not depend on how the
// output is cut. Throws ShapeError or DTypeError on operands that do not fit.

/// y = the largest element of each window, index = its linear position in the global domain
/// (row-major over the domain dimensions of x). Ties go to the first in row-major order, NaN wins;
/// a window without elements yields -inf and -1.
void max_pool_forward(const PoolGeometry& g, const Piece& x, const Piece& y, const Piece& index);

/// y[n, j, c] = v[n, index[n, j, c], c]: picks from v what max_pool_forward picked from x; 0 where
/// v is absent.
void max_pool_gather(const Piece& v, const Piece& index, const Piece& y);

/// The adjoint of max_pool_gather in gather form: dx[n, i, c] = sum of dy[n, j, c] over the windows
/// j around i with index[n, j, c] = i, in ascending order of j. The boxes of dy and index are
/// equal.
void max_pool_input_grad(const PoolGeometry& g,
                         const Piece& dy,
                         const Piece& index,
                         const Piece& dx);

/// Throws ShapeError unless each element of `index`, the piece of a pooled tensor of x [N,
/// domain..., C] with this domain, is -1 or lies in the window of its place.
void check_pool_index(const PoolGeometry& g, const Shape& domain, const Piece& index);

/// y[n, j, c] = sum of the window / divisor; the divisor counts the elements of the window that lie
/// inside the global domain of x, with `count_include_pad` those inside the domain and its padding.
void avg_pool_forward(const PoolGeometry& g,
                      const Piece& x,
                      const Piece& y,
                      bool count_include_pad);

/// The adjoint in gather form: dx[n, i, c] = sum over the windows j around i of dy[n, j, c] /
/// divisor(j).
void avg_pool_input_grad(const PoolGeometry& g,
                         const Piece& dy,
                         const Piece& dx,
                         bool count_include_pad);

}  // namespace tessera::kernels
