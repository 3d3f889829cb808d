#pragma once

#include <array>
#include <tessera/core/view.hpp>

/// Attention to keys near the query:
///   o[i] = sum_j p[i, j] v[j],  p[i, :] = softmax over j in window(i) of
///   scale q[i] . k[j] + bias[h, offset(i, j)],
/// where window(i) is the product of one run of coordinates per domain dimension. Time is linear in
/// the tokens, no score outlives its query, and each element's terms are added in an order that its
/// window alone decides.
///
/// Queries [N, domain..., H, D], keys [N, domain..., H_kv, D], values [N, domain..., H_kv, D_v],
/// one to three domain dimensions. Query head h reads key head h H_kv / H (global heads).
/// Statistics and sums have the compute type: fp64 for fp64, else fp32.
namespace tessera::kernels {

/// Which keys a query sees along one dimension: `first`, `first + step`, ... (`count` of them) with
/// the step of the rule. Integers only: rules are static arguments of ops.
struct LocalRun {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// The windows of one dimension; tessera/autograd/ops/local_attention.hpp has the definitions. Keys
/// of circular dimensions are virtual coordinates, below 0 or beyond the size.
struct LocalRule {
  std::int64_t size = 1;      ///< of the domain
  std::int64_t extent = 1;    ///< kernel, or window
  std::int64_t dilation = 1;  ///< step of the runs; 1 for blocks
  std::int64_t stride = 1;
  std::int64_t shift = 0;  ///< of blocks
  std::int64_t blocks = 0;
  std::int64_t causal = 0;
  std::int64_t circular = 0;

  /// The keys of a query in [0, size).
  LocalRun keys(std::int64_t query) const;
  /// The queries that see a key in [0, size); virtual where circular.
  LocalRun queries(std::int64_t key) const;
  /// Hulls for non-empty intervals inside [0, size); both ends grow with those of the argument.
  Interval keys_needed(Interval queries) const;
  Interval queries_needed(Interval keys) const;
  /// Whether some query sees fewer than `extent` keys.
  bool uneven() const;
};

struct LocalOptions {
  std::array<LocalRule, 3> rules = {};  ///< one per domain dimension
  double scale = 1.0;
};

/// `bias` [H, 2 extent - 1...] has a null `view.data` where it is absent.
struct LocalOperands {
  Piece q, k, v, bias;
};

/// Computes the queries in the box of x.q: out [N, domain..., H, D_v] and lse [N, domain..., H]
/// (compute type; the log of the sum of exponentials), views of that box. k and v hold every key
/// that these queries see. Throws ShapeError, DTypeError, DeviceError.
void local_attention_forward(const LocalOperands& x,
                             const LocalOptions& options,
                             const View& out,
                             const View& lse);

/// For the queries in the box of x.q, from the views lse and dout of that box: dq, delta[i] =
/// out[i] . dout[i] (compute type, like lse; from the probabilities, not from a rounded result),
/// and the gradient of the bias, added to `dbias` (compute type, dense; null data: not wanted).
void local_attention_query_grad(const LocalOperands& x,
                                const LocalOptions& options,
                                const View& lse,
                                const View& dout,
                                const View& dq,
                                const View& delta,
                                const View& dbias);

/// For the keys in the box of x.k and x.v: dk and dv, views of that box. x.q, lse, delta and dout
/// hold every query that sees one of these keys.
void local_attention_key_grad(const LocalOperands& x,
                              const LocalOptions& options,
                              const Piece& lse,
                              const Piece& delta,
                              const Piece& dout,
                              const View& dk,
                              const View& dv);

/// y[n, i, t, h, c] = x[n, key t of query i, h, c], where t counts the window row by row with
/// extent[d] places along each dimension; 0 in places without a key. x [N, domain..., H, C], y [N,
/// domain..., product of extents, H, C]; the queries in the box of y are computed.
void local_gather(const Piece& x, const LocalOptions& options, const Piece& y);

/// x[n, j, h, c] = sum of y[n, i, t, h, c] over all queries i that see key j at place t: the
/// adjoint. The keys in the box of x are computed.
void local_scatter(const Piece& y, const LocalOptions& options, const Piece& x);

}  // namespace tessera::kernels
