#pragma once

#include <array>
#include <tessera/autograd/op.hpp>
#include <tessera/kernels/local_attention.hpp>

namespace tessera {

/// The windows of local attention, as static arguments.
struct LocalArgs {
  std::int64_t dims;
  std::int64_t bias_grad;  ///< whether the gradient of the bias is an output
  std::array<kernels::LocalRule, 3> rules;

  const kernels::LocalRule& rule(int d) const { return rules[static_cast<std::size_t>(d)]; }
  EdgeRule edge(int d) const {
    return rule(d).circular != 0 ? EdgeRule::kCircular : EdgeRule::kZero;
  }
  /// Places of a window.
  std::int64_t places() const {
    std::int64_t count = 1;
    for (int d = 0; d < dims; ++d) count *= rule(d).extent;
    return count;
  }
  Interval keys_needed(int d, Interval queries) const { return rule(d).keys_needed(queries); }
  Interval queries_needed(int d, Interval keys) const { return rule(d).queries_needed(keys); }
};

struct LocalScalars {
  double scale;
};

/// Attention over the pairs of the windows (inputs q, k, v, bias) in small ops that store one
/// number per pair, and one row per pair and head.
std::vector<Tensor> local_attention_decompose(const VjpContext& context);

}  // namespace tessera
