#pragma once

#include <functional>
#include <span>
#include <tessera/core/view.hpp>
#include <tessera/kernels/irreps.hpp>

/// Kernels of equivariant networks, f32 and f64 (DTypeError for others), on the CPU. Results do not
/// depend on the number of threads. Any strides are right; dense views are the fast case.
namespace tessera::kernels {

/// The form phi(g, v; a_1, ..., a_d) = the d-th derivative of sum over lm of g[lm] Y_lm(v / |v|)
/// along a_1, ..., a_d, by edges. v and a_i [E, 3]; at most 3 directions. Without `g` (null data):
/// out [E, (lmax + 1)^2] = d phi / d g; with g [E, (lmax + 1)^2]: out [E, 3] = d phi / d v.
void spherical_harmonics(
    int lmax, const View& g, const View& v, std::span<const View> directions, const View& out);

/// `rows` rows of x from x_row, times matrix `weight`, are added to rows of g from g_row.
struct MixBlock {
  std::int64_t x_row, g_row, rows, weight;
};
enum class MixSlot { kG, kX, kW };
/// The form sum over n, blocks, rows r of g[n, g_row + r, :] . (x[n, x_row + r, :] w[weight, z_n])
/// with g [N, rows, K'], x [N, rows, K], w [matrices, elements, K, K'] and species z [N] (i32 or
/// i64; null data: one element). out = its derivative by `slot`, whose own view is not read. Throws
/// ShapeError for a species without matrices.
void channel_mix(std::span<const MixBlock> blocks,
                 MixSlot slot,
                 const View& g,
                 const View& x,
                 const View& w,
                 const View& species,
                 const View& out);

/// A symmetric contraction (autograd/ops/equivariant.hpp) as the form phi(g, w, a; a_1, ..., a_d) =
/// the d-th derivative of sum over M, k of g[n, M, k] B[n, M, k](a; w) along a_1, ..., a_d, summed
/// over n. One argument is asked for: the one whose view has null data.
struct SymmetricContraction {
  int lmax = 0;
  int l_out = 0;
  int correlation = 3;
  CouplingBasis basis = CouplingBasis::kFull;
  View g;                            ///< [N, (l_out + 1)^2, K]
  View w;                            ///< [elements, weights, K]
  View a;                            ///< [N, (lmax + 1)^2, K]; always given
  View species;                      ///< [N], i32 or i64; throws ShapeError outside [0, elements)
  std::span<const View> directions;  ///< as a; at most 3
};
enum class ContractionSlot { kG, kW, kA };
/// out = d phi / d slot, of that argument's shape.
void symmetric_contraction(const SymmetricContraction& c, ContractionSlot slot, const View& out);

/// The 5-linear form S(g, u, y, h, w) = sum over e, p, k, a, b, c of sqrt(2 l3 + 1) C^p_{abc}
/// g[receiver_e, row_p + c, k] u[sender_e, l1 l1 + a, k] y[e, l2 l2 + b] R[e, p, k] with R[e, p, k]
/// = sum over j of h[e, j] w[j, p, k], or with `first_row` of h[e, j] w[first_row_e + j, p, k].
struct EdgeConvolution {
  const TensorPaths* paths = nullptr;
  View g;                            ///< [N, paths.rows, K]
  View u;                            ///< [R, (l_in + 1)^2, K]
  View y;                            ///< [E, (l_edge + 1)^2]
  View h;                            ///< [E, H]
  View w;                            ///< [H or S, P * K]
  View senders, receivers;           ///< [E], i32 or i64; receivers ascend
  View first_row;                    ///< [E] or null data
  std::int64_t sender_origin = 0;    ///< the sender that is row 0 of u
  std::int64_t receiver_origin = 0;  ///< the receiver that is row 0 of g
  std::int64_t row_count = 0;        ///< rows of u
  std::int64_t node_count = 0;       ///< rows of g
  std::int64_t channels = 0;
  /// Not null: the rows of u from `own_rows` on are there only when `arrived` has returned, which
  /// is called once. Where `g` alone is wanted, receivers that need none of these rows come first;
  /// the result is the same to the bit.
  std::int64_t own_rows = 0;
  std::function<void()> arrived = {};
};
/// Gradients that are wanted; the others have null data. All are set, not added to.
struct EdgeConvolutionGradients {
  View g, u, y, h, w;
};
/// Derivatives of S. An argument may have null data where no gradient that is wanted reads it.
/// Throws ShapeError for senders and receivers that the views do not hold and for receivers out of
/// order, NotSupported for l > 4.
void edge_convolution(const EdgeConvolution& c, const EdgeConvolutionGradients& out);
/// Floating-point operations of that call.
double edge_convolution_cost(const EdgeConvolution& c, const EdgeConvolutionGradients& out);

}  // namespace tessera::kernels
