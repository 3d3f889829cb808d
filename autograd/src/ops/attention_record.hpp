#pragma once

#include <string>
#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/random.hpp>
#include <tessera/kernels/attention.hpp>

// What the files of full attention share: arguments, and how dimensions are arranged.

namespace tessera {

/// Inputs: q, k, v, mask, bias; of the gradient also out, log-sum-exp, dout. Outputs: out,
/// log-sum-exp; of the gradient dq, dk, dv and, if wanted, dbias.
struct AttentionArgs {
  std::int64_t causal;
  std::int64_t bias_grad;  ///< attention_grad: whether output 3 is there
  std::int64_t attended;   ///< bit d: domain dimension d is attended over; 0: all
  std::int64_t exchange;   ///< the axes that exchange heads; kAutomatic: the cheapest
  std::int64_t balance;    ///< 1: causal work is balanced, 0: not; kAutomatic: where it pays
  static constexpr std::int64_t kAutomatic = -1;
};
struct AttentionScalars {
  double scale;
  double dropout;
  RandomKey key;
};

/// The dimensions of q and k, [N, domain..., H, C], in the order [samples..., attended..., H, C] in
/// which kernels, masks and biases count them: domain dimensions that are not attended over are
/// samples.
struct AttentionDims {
  AttentionDims(const AttentionArgs& args, int domain);

  Dims samples;   ///< dimensions of q and k, the first is 0
  Dims attended;  ///< the same

  /// Dimension `d` < dims() - 2 of q in masks and biases [samples..., H, query..., key...].
  int in_pairs(int d) const;
  int heads_in_pairs() const { return samples.size(); }
  /// `x` [N, domain..., H(, C)] in the kernels' order.
  Piece arranged(const Piece& x) const;
  View arranged(const View& x) const;

 private:
  bool moves_ = false;
};

/// For kernels; `dims` are those of q.
kernels::AttentionOptions attention_options(const void* args,
                                            const void* dynamic,
                                            const AttentionDims& dims);

/// Legal placements of forward and gradient (attention_placement.cpp).
void attention_signatures(const Problem& problem,
                          const AxisGroup& group,
                          std::vector<Signature>& legal);
void attention_grad_signatures(const Problem& problem,
                               const AxisGroup& group,
                               std::vector<Signature>& legal);

/// The algorithms for keys that are split (attention_ring.cpp).
void run_attention(RunContext& context);
void run_attention_grad(RunContext& context);

/// The same maths in small ops, for derivatives of the gradient (attention_decompose.cpp).
std::vector<Tensor> attention_decompose(const VjpContext& context);

}  // namespace tessera
