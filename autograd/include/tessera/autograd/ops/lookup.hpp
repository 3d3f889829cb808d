#pragma once

#include <tessera/core/tensor.hpp>

/// Weighted sums of rows by position: the mechanism behind take_along, scatter, masked_select and
/// grid_sample. The table may be split over its domain: elements are routed between the ranks that
/// name them and those that own them, never all gathered.
namespace tessera {

/// y[b..., o..., c] = sum over k of w[b..., o..., k] x[b..., i, c], i = index[b..., o..., k];
/// x [b..., d..., C], index [b..., o..., K] i32 or i64, weights as index, or undefined for 1; y
/// [b..., o..., C], split as the index.
///
/// Indices are row-major positions in the domain d... of x; below 0 they add nothing. The first
/// `batch_dims` dimensions are common to all. Weights have the type of x, or f32 beside bf16.
/// Linear in x and in the weights; derivatives of any order. An index beyond the domain throws on
/// every rank where elements are routed; elsewhere where it lies, and ends the job from there.
Tensor lookup(const Tensor& x, const Tensor& index, const Tensor& weights, int batch_dims);

/// y[b..., i, c] = sum over all o, k with i = index[b..., o..., k] of w[b..., o..., k] g[b...,
/// o..., c]: the adjoint of lookup(); y has the layout `like` of [b..., d..., C].
Tensor lookup_add(const Tensor& g,
                  const Tensor& index,
                  const Tensor& weights,
                  const Layout& like,
                  int batch_dims);

/// The largest of these in place of the sum, 0 where there is none; without weights and gradient.
Tensor lookup_max(const Tensor& g, const Tensor& index, const Layout& like, int batch_dims);

}  // namespace tessera
