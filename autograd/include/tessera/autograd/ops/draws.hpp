#pragma once

#include <tessera/autograd/ops/random.hpp>

namespace tessera {

// Draws by key and global element index, as in random.hpp: the same on any mesh, without
// communication.

/// True with probability p, where dropout() of the same p and key drops. A new tensor of this
/// layout; bool.
Tensor random_bernoulli(const Layout& layout, RandomKey key, double p = 0.5);
/// True with the probability that stands in its place; the layout of `p`, whose sum is taken where
/// it is Partial. Values are compared with uniform draws of their type (bf16: of f32), so one below
/// 0 never comes true and one of 1 always does.
Tensor bernoulli(const Tensor& p, RandomKey key);

/// A random order of 0, ..., n - 1; layout [n], i64. Every rank computes its part alone. Up to 4096
/// elements all orders are equally likely; beyond, it is one of 2^64 and more bijections that a key
/// chooses (Feistel rounds keyed by Philox, with cycle walking).
Tensor random_permutation(const Layout& layout, RandomKey key);

}  // namespace tessera
