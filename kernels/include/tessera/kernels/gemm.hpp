#pragma once

#include <tessera/core/view.hpp>

/// Matrix products on strided views; a transposed factor is a view with exchanged strides.
///
/// f32 and bf16 are computed in f32, f64 in double. The work is cut into blocks by its sizes alone,
/// so that results do not depend on the number of threads. They may differ in rounding with the
/// number of rows in a call: the libraries choose other kernels for few rows.
namespace tessera::kernels {

/// C = alpha A B + beta C with A [batch..., M, K], B [batch..., K, N], C [batch..., M, N]. Batch
/// dimensions agree (stride 0 repeats a matrix); C is not read when beta = 0. Leading dimensions
/// over which B repeats become rows of one product where the strides allow. `bias` [N], given where
/// beta = 0, is added to every row. Throws ShapeError, DTypeError (floating types only, no mix).
void gemm(
    double alpha, const View& a, const View& b, double beta, const View& c, const View& bias = {});

/// C = alpha sum_l a[l, :]^T b[l, :] + beta C over all leading indices l, with a [l..., M],
/// b [l..., N], C [M, N]: the gradient of a weight.
void outer_sum(double alpha, const View& a, const View& b, double beta, const View& c);

/// The last two dimensions exchanged.
View transposed(const View& x);

}  // namespace tessera::kernels
