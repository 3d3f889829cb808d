#pragma once

#include <optional>
#include <tessera/core/tensor.hpp>
#include <vector>

// Attention of each query to keys near it, in 1 to 3 domain dimensions, in time linear in the
// tokens. Both ops take queries q [N, domain..., H, D], keys k [N, domain..., H_kv, D] and values v
// [N, domain..., H_kv, D_v] of one domain and give
//   o[i] = sum_{j in window(i)} softmax_j(scale q[i] . k[j] + bias[h, offset(i, j)]) v[j],
// [N, domain..., H, D_v]. H is a multiple of H_kv; query head h reads key head h H_kv / H. fp32,
// bf16 (statistics and sums in fp32), fp64.
//
// Samples, heads and every domain dimension may be split; of a split domain each rank receives the
// rows of k and v that its windows reach, and nothing else, while it computes what it can. Values
// and gradients of q, k, v have the same bits for every cut of the domain. Split heads must keep
// each group of query heads with its key head unless k and v are whole. Derivatives of the gradient
// are taken through small ops that store the products of all pairs.

namespace tessera {

/// Options of neighborhood_attention(). Lists hold one value per domain dimension; an empty list
/// means the default for all, a list of one value means that value for all.
struct NeighborhoodOptions {
  Dims kernel = {};                 ///< keys per query along each dimension; required
  Dims dilation = {};               ///< distance of neighbouring keys of a window; default 1
  Dims stride = {};                 ///< 1 to kernel queries in a row share one window; default 1
  std::vector<bool> causal = {};    ///< no key behind the query along the dimension; default false
  std::vector<bool> circular = {};  ///< the domain closes on itself; default false
  /// Relative positions: [H, 2 kernel[0] - 1, 2 kernel[1] - 1, ...], floating, differentiable, or
  /// undefined. The pair (i, j) reads element (j - i) / dilation + kernel - 1 along each dimension.
  Tensor bias = {};
  /// Absent: 1 / sqrt(D).
  std::optional<double> scale = {};
};

/// Neighbourhood attention (Hassani et al. 2023), dilated (Hassani & Shi 2022), strided (Hassani et
/// al. 2025) and causal: the semantics of NATTEN.
///
/// Along one dimension of size n the query i belongs to the class r = i mod dilation, whose m
/// members are counted from 0, so that i is member a = i / dilation. Its keys are members
/// [s, s + kernel) of the class with s = clamp(l - kernel / 2, 0, m - kernel), where the leader is
/// l = min(a - a mod stride + stride / 2, m - 1): windows shift inwards at the ends of the domain.
/// Causal: members [max(l - kernel + 1, 0), a] with l = min(a - a mod stride + stride - 1, m - 1).
/// Circular: neither is clamped; members are counted modulo m, and the dilation must divide n.
/// Throws ShapeError (also where kernel * dilation exceeds the domain), DTypeError, LayoutError.
Tensor neighborhood_attention(const Tensor& q,
                              const Tensor& k,
                              const Tensor& v,
                              const NeighborhoodOptions& options);

/// Options of window_attention(); lists as in NeighborhoodOptions.
struct WindowAttentionOptions {
  Dims window = {};                 ///< tokens per block along each dimension; required
  Dims shift = {};                  ///< where a block begins, 0 to window - 1; default 0
  std::vector<bool> circular = {};  ///< the domain closes on itself; default false
  /// Relative positions: [H, 2 window[0] - 1, 2 window[1] - 1, ...], floating, differentiable, or
  /// undefined. The pair (i, j) reads element j - i + window - 1 along each dimension.
  Tensor bias = {};
  /// Absent: 1 / sqrt(D).
  std::optional<double> scale = {};
};

/// Attention inside blocks [shift + m window, shift + (m + 1) window) for all integers m (Swin, Liu
/// et al. 2021). Blocks that reach beyond the domain are cut off there: exactly what a cyclic shift
/// of the tokens by -shift, attention in blocks, a mask over what was not adjacent, and the shift
/// back compute, and sizes need not be multiples of the window. Circular dimensions instead close
/// the first block with the last tokens; there the window must divide the size. Throws ShapeError
/// (also where the window exceeds the domain), DTypeError, LayoutError.
Tensor window_attention(const Tensor& q,
                        const Tensor& k,
                        const Tensor& v,
                        const WindowAttentionOptions& options);

}  // namespace tessera
