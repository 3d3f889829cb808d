#pragma once

#include <optional>
#include <string>
#include <tessera/autograd/ops/random.hpp>
#include <tessera/core/tensor.hpp>
#include <vector>

namespace tessera {

/// Options of scaled_dot_product_attention().
struct AttentionParameters {
  /// Bool, true where the query attends to the key; [samples|1..., H|1, query domain|1..., key
  /// domain|1...] or undefined. Samples are N and the domain dimensions that are not attended over.
  Tensor mask = {};
  /// Added to the scaled products; shaped like the mask, floating, differentiable.
  Tensor bias = {};
  /// The query at row-major position i (of the dimensions attended over) attends to keys at
  /// positions j <= i.
  bool causal = false;
  /// Probability with which a weight is zeroed (the others grow by 1 / (1 - p)); the same ones on
  /// every mesh: those of `dropout(weights [samples..., H, query domain..., key domain...], p,
  /// key)`.
  double dropout = 0.0;
  RandomKey key = {};
  /// Absent: 1 / sqrt(D).
  std::optional<double> scale = {};
  /// Domain dimensions (0: the first after N) that a query attends over, e.g. {1}: along its row
  /// (axial attention, Ho et al. 2019). Empty: all. Over the others q and k have the same sizes.
  std::vector<int> dims = {};
  /// Names of mesh axes over which tokens are gathered and heads split where they would walk in a
  /// ring, {}: none. Only those that split the tokens count. Absent: the cheapest by a cost model
  /// (or TESSERA_ATTENTION=ring|heads).
  std::optional<std::vector<std::string>> exchange = {};
  /// Whether the work of a causal ring is balanced, at the price of moving the tokens. Absent:
  /// where it pays.
  std::optional<bool> balance = {};
};

/// o[i] = sum_j softmax_j(scale q[i] . k[j] + bias[i, j]) v[j] over all tokens j of the domain, for
/// each sample and head (Vaswani et al. 2017), in memory that is linear in the tokens.
///
/// q [N, domain..., H, D], k [N, key domain..., H_kv, D], v [N, key domain..., H_kv, D_v]; result
/// [N, domain..., H, D_v]. H is a multiple of H_kv; query head h reads key head h H_kv / H. A query
/// that may attend to no key gives 0. fp32, bf16 (statistics and sums in fp32), fp64.
///
/// Samples, heads and domains may be split. Where the keys are whole and the queries split, nothing
/// moves. Where keys are split over mesh axes, three algorithms serve; the cost model chooses:
/// - Ring (Liu, Zaharia & Abbeel 2023): keys and values walk through the ranks of all these axes
///   together while the queries stay; per rank (P - 1) / P of the keys and values are received
///   forward, and again backward, where their gradients go once around. A causal ring may first
///   move the tokens so that all ranks work equally (zigzag).
/// - Head exchange (DeepSpeed Ulysses, Jacobs et al. 2023): all tokens of some heads on each rank,
///   any number of heads.
/// - The hybrid of both: heads over the inner axes of each dimension, a ring over the outer ones.
/// Split heads must keep each group of query heads with its key head unless the keys are whole.
/// Derivatives of the gradient gather keys and values and form the matrix of weights. Throws
/// ShapeError, DTypeError, LayoutError, UsageError.
Tensor scaled_dot_product_attention(const Tensor& q,
                                    const Tensor& k,
                                    const Tensor& v,
                                    const AttentionParameters& parameters = {});

}  // namespace tessera
