#pragma once

#include <tessera/autograd/ops/ghost_rows.hpp>
#include <tessera/core/tensor.hpp>
#include <tessera/kernels/irreps.hpp>

/// Ops of equivariant networks on features [node, lm, K] of natural parity (kernels/irreps.hpp). In
/// fp64 or fp32, any channels; multiples of a vector register (8 and 16) are the fast case.
///
/// Nodes, edges and rows may be split on dimension 0, each with boundaries of its own, over the
/// same mesh axes: then nothing is communicated, and gradients of weights are pending sums. All ops
/// are derivatives of scalar forms by some of their arguments, and so are their gradients: each
/// family is one record, differentiable to any order unless said otherwise.
namespace tessera {

/// Real harmonics [E, (lmax + 1)^2] of the directions v / |v| of v [E, 3] (x, y, z), component
/// normalisation: sum over m of Y_lm^2 = 2 l + 1; Y_1 = sqrt(3) (x, y, z) / |v|. Differentiable up
/// to third derivatives (NotSupported beyond). Zero vectors give NaN. lmax <= 10.
Tensor spherical_harmonics(const Tensor& v, int lmax);

/// y[n, lm, :] = x[n, lm, :] w[l]: channels mixed per l. x [N, (lx + 1)^2, K], w [l + 1, K, K']
/// with l <= lx; rows of higher l are left out. With `species` [N] (int32 or int64): w [l + 1,
/// elements, K, K'], and each node takes the matrix of its element. The result is [N, (l + 1)^2,
/// K'].
Tensor irreps_linear(const Tensor& x, const Tensor& w, const Tensor& species = {});

/// The products that a convolution takes: features up to l_in times harmonics up to l_edge into l
/// <= l_out; `kernels::tensor_paths(l_in, l_edge, l_out)` lists them.
struct ConvolutionPaths {
  std::int64_t l_in = 0;
  std::int64_t l_edge = 0;
  std::int64_t l_out = 0;
};

/// M[i, row_p + c, k] = sum over edges e with receiver i of R[e, p, k] sqrt(2 l3 + 1) sum over a, b
/// of C^{l1 l2 l3}_{abc} u[sender_e, l1 l1 + a, k] y[e, l2 l2 + b], with R = h w: the message
/// passing of an equivariant network with nothing of the size edges x paths x channels in memory,
/// neither here nor in gradients of any order (Batatia et al. 2022, eqs. 8 to 10).
///
/// u [R, (l_in + 1)^2, K]: rows that edges start from (own nodes, then copies of others'); y [E,
/// (l_edge + 1)^2]; h [E, H]: last hidden layer of the radial network; w [H, P K], path by path;
/// senders [E]: global rows of u; receivers [E]: global nodes, ascending; int32 or int64. `nodes`:
/// a layout whose dimension 0 is that of the nodes. The result is [N, paths.rows, K].
///
/// Edges of a rank may only name rows and nodes of that rank; anything else, or receivers out of
/// order, throws there. With `first_row` [E] edge e has R = sum over t of h[e, t] w[first_row_e +
/// t] instead: w is then a table [S, P K] (splines: h holds the H values of the basis).
///
/// While ghosts of u are on their way, edges of receivers that need none of them come first, with
/// the same result to the bit. (Channels that are multiples of a vector register; otherwise the
/// ghosts are awaited first.)
Tensor equivariant_convolution(const GhostRowsInFlight& u,
                               const Tensor& y,
                               const Tensor& h,
                               const Tensor& w,
                               const Tensor& senders,
                               const Tensor& receivers,
                               const ConvolutionPaths& paths,
                               const Layout& nodes,
                               const Tensor& first_row = {});

/// y[n, lm, :] = sum over paths p into l of x[n, row_p + m, :] w[p]: mixes what a convolution gives
/// back to one feature per l. x [N, paths.rows, K], w [P, K, K'] -> [N, (l_out + 1)^2, K'].
Tensor path_linear(const Tensor& x, const Tensor& w, const ConvolutionPaths& paths);

/// Static data of a symmetric contraction; `kernels::contraction_blocks` says which weight is
/// which.
struct ContractionSpec {
  std::int64_t lmax = 0;
  std::int64_t l_out = 0;
  std::int64_t correlation = 3;  ///< 1 to 3
  kernels::CouplingBasis basis = kernels::CouplingBasis::kFull;
};

/// B[n, l l + M, k] = sum over orders nu <= correlation and couplings eta into l of w[z_n, eta, k]
/// sum over i of U[M, i_1, ..., i_nu; eta] a[n, i_1, k] ... a[n, i_nu, k] (Batatia et al. 2022, eq.
/// 11), as a sparse polynomial. a [N, (lmax + 1)^2, K]; w [elements, weights, K] in the order of
/// contraction_blocks; species [N] int32 or int64. The result is [N, (l_out + 1)^2, K].
Tensor symmetric_contraction(const Tensor& a,
                             const Tensor& w,
                             const Tensor& species,
                             const ContractionSpec& spec);

}  // namespace tessera
