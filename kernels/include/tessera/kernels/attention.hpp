#pragma once

#include <tessera/core/view.hpp>
#include <tessera/kernels/random.hpp>

/// Full attention in tiles with an online softmax (Milakov & Gimelshein 2018; Dao et al. 2022):
///   o[i] = sum_j d[i, j] p[i, j] v[j],  p[i, :] = softmax over j of scale q[i] . k[j] + bias[i, j]
/// with d the dropout factor, 0 or 1 / (1 - p). Memory is linear in the tokens.
///
/// Queries [samples..., domain..., H, D], keys [samples..., domain..., H_kv, D], values
/// [samples..., domain..., H_kv, D_v]: each sample by itself attends over its domain; the domains
/// of queries and keys may differ. Query head h reads key head h H_kv / H (global heads). Mask
/// (bool, true: attend) and bias (floating) are [samples|1..., H|1, query domain|1..., key
/// domain|1...]. Pieces may be any parts: the box of q says which queries are computed, that of k
/// which keys are seen; a row that sees no key is 0 and has no gradient. Accumulators, statistics
/// and gradients have the compute type: fp64 for fp64, else fp32.
namespace tessera::kernels {

struct AttentionOptions {
  double scale = 1.0;
  /// Query at row-major global position i of its domain sees keys at positions j <= i.
  bool causal = false;
  double dropout = 0.0;
  /// Dropout is that of `dropout(key, p)` on the global scores [samples..., H, query domain..., key
  /// domain...].
  PhiloxKey key = {};
  /// How many leading dimensions are samples; queries and keys agree in them. More than one where
  /// attention runs along some dimensions only, as in axial attention.
  int sample_dims = 1;
};

/// A null `view.data` stands for an absent mask or bias.
struct AttentionOperands {
  Piece q, k, v, mask, bias;
};

/// Rows so far, when keys come block after block. `sum` (as out, in the compute type; may be `out`
/// itself) holds sum_j 2^(s_ij log2(e) - largest_i) v_j, `total` [samples..., domain..., H] the sum
/// of these powers, `largest` (likewise) the reference they count from: near the largest exponent,
/// -inf before a key was seen.
struct AttentionState {
  View sum, largest, total;
  bool first = true;  ///< start from nothing; the state is not read
  bool last = true;   ///< write the result; the state is not written
};

/// Adds the keys of `x` to the rows of x.q. With `state.last`: out [samples..., domain..., H, D_v]
/// and lse [samples..., domain..., H] (compute type; the log of the sum of exponentials, the
/// largest finite number for a row that saw no key). `state.largest` may be `lse`. Throws
/// ShapeError, DTypeError.
void attention_forward(const AttentionOperands& x,
                       const AttentionOptions& options,
                       const AttentionState& state,
                       const View& out,
                       const View& lse);

/// What the gradient needs beside the operands: result, statistics and gradient of the result.
struct AttentionSaved {
  View out, lse, dout;
};

/// Adds what the keys of `x` contribute to dq, dk, dv (compute type); probabilities are computed
/// again. Each of them is summed in an order that follows from the shape alone.
void attention_grad(const AttentionOperands& x,
                    const AttentionOptions& options,
                    const AttentionSaved& saved,
                    const View& dq,
                    const View& dk,
                    const View& dv);

/// Adds the gradient of the bias to `dbias`, a piece with the shape and box of x.bias (compute
/// type), in the columns of the keys of `x`.
void attention_bias_grad(const AttentionOperands& x,
                         const AttentionOptions& options,
                         const AttentionSaved& saved,
                         const View& dbias);

}  // namespace tessera::kernels
