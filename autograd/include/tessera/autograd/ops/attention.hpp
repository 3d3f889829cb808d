#pragma once

#include <optional>
#include <tessera/autograd/ops/random.hpp>
#include <tessera/core/tensor.hpp>

namespace tessera {

/// Options of scaled_dot_product_attention().
struct AttentionParameters {
  /// Bool, true where the query attends to the key; [N|1, H|1, query domain|1..., key
  /// domain|1...] or undefined.
  Tensor mask = {};
  /// Added to the scaled products; shaped like the mask, floating, differentiable.
  Tensor bias = {};
  /// The query at row-major global position i attends to keys at positions j <= i.
  bool causal = false;
  /// Probability with which a weight is zeroed (the others grow by 1 / (1 - p)); the same ones on
  /// every mesh: those of `dropout(weights [N, H, query domain..., key domain...], p, key)`.
  double dropout = 0.0;
  RandomKey key = {};
  /// Absent: 1 / sqrt(D).
  std::optional<double> scale = {};
};

/// o[i] = sum_j softmax_j(scale q[i] . k[j] + bias[i, j]) v[j] over all tokens j of the domain, for
/// each sample and head (Vaswani et al. 2017), in memory that is linear in the tokens.
///
/// q [N, domain..., H, D], k [N, key domain..., H_kv, D], v [N, key domain..., H_kv, D_v]; result
/// [N, domain..., H, D_v]. H is a multiple of H_kv; query head h reads key head h H_kv / H. A query
/// that may attend to no key gives 0. fp32, bf16 (statistics and sums in fp32), fp64.
///
/// Samples, heads and domains may be split. Where keys are split over mesh axes, keys and values
/// walk in a ring through the ranks of all these axes together (Liu, Zaharia & Abbeel 2023) while
/// the queries stay; per rank (P - 1) / P of the keys and values are received forward, and again
/// backward, where their gradients go once around. Where the keys are whole and the queries split,
/// nothing moves. Split heads must keep each group of query heads with its key head unless the keys
/// are whole. Derivatives of the gradient gather keys and values and form the matrix of weights.
/// Throws ShapeError, DTypeError, LayoutError, UsageError.
Tensor scaled_dot_product_attention(const Tensor& q,
                                    const Tensor& k,
                                    const Tensor& v,
                                    const AttentionParameters& parameters = {});

}  // namespace tessera
