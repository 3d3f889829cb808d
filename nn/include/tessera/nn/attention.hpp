#pragma once

#include <tessera/autograd/ops/rotary.hpp>
#include <tessera/nn/norms.hpp>

namespace tessera::nn {

/// Options of MultiHeadAttention.
struct MultiHeadAttentionOptions {
  std::int64_t channels = 0;
  std::int64_t heads = 8;
  std::int64_t key_heads = 0;         ///< below `heads`: groups of query heads share keys; 0: heads
  std::int64_t head_channels = 0;     ///< 0: channels / heads
  std::int64_t context_channels = 0;  ///< of the tokens that are attended to; 0: channels
  bool bias = true;
  /// Queries and keys are normalised per head (root mean square with learned factors; Henry et al.
  /// 2020): attention stays soft in deep networks.
  bool qk_norm = false;
  std::optional<RotaryOptions> rotary = {};  ///< queries and keys are turned by their positions
  bool causal = false;
  double dropout = 0.0;  ///< of attention weights, while training
};

/// Attention with heads (Vaswani et al. 2017) on tokens x [N, domain..., channels]: queries of all
/// tokens, keys and values of all tokens of the context (x itself, or another tensor: cross-
/// attention). The domain may be split in any way; see scaled_dot_product_attention.
class MultiHeadAttention : public Layer {
 public:
  /// Throws UsageError for sizes that do not divide.
  MultiHeadAttention(const MultiHeadAttentionOptions& options,
                     const Mesh& mesh,
                     DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  /// Attends to `context` [N, context domain..., context_channels].
  Tensor forward(const Tensor& x, const Tensor& context) const;
  std::string describe() const override;

  /// Which domain dimensions are circles from now on: positions wrap around there (kCircular). One
  /// rule per domain dimension, or one for all.
  void set_edges(const std::vector<EdgeRule>& edges);

  Linear query;  ///< [heads * head_channels, channels]
  Linear key;    ///< [key_heads * head_channels, context_channels]
  Linear value;
  std::optional<RmsNorm> query_norm;
  std::optional<RmsNorm> key_norm;
  Linear proj;  ///< [channels, heads * head_channels]

 private:
  MultiHeadAttention(const Mesh& mesh, DType dtype, const MultiHeadAttentionOptions& complete);

  MultiHeadAttentionOptions options_;
};

/// [..., heads * D] -> [..., heads, D], and back: what layers do around attention.
Tensor split_heads(const Tensor& x, std::int64_t heads);
Tensor join_heads(const Tensor& x);

}  // namespace tessera::nn
