#pragma once

#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/random.hpp>
#include <tessera/kernels/attention.hpp>

namespace tessera {

struct AttentionArgs {
  std::int64_t causal;
  std::int64_t bias_grad;  ///< attention_grad: whether output 3 is there
};
struct AttentionScalars {
  double scale;
  double dropout;
  RandomKey key;
};

kernels::AttentionOptions attention_options(const void* args, const void* dynamic);

/// q, k, v, mask, bias -> out, log-sum-exp: queries stay, keys and values walk through the ranks
/// of `axes`. The next block travels while one is worked on; beside the tensors there are never
/// more than two blocks of keys and values.
void run_attention(RunContext& context);
/// q, k, v, mask, bias, out, lse, dout -> dq, dk, dv (, dbias): the gradients of a block walk with
/// it, one step behind.
void run_attention_grad(RunContext& context);

}  // namespace tessera
