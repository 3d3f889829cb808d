#pragma once

#include <tessera/autograd/ops/rotary.hpp>
#include <tessera/nn/norms.hpp>

namespace tessera::nn {

/// Which keys a query of MultiHeadAttention sees.
struct AttentionReach {
  enum class Kind : std::uint8_t {
    kAll,           ///< the whole domain
    kAxes,          ///< the line or plane along `axes` (axial attention, Ho et al. 2019)
    kNeighborhood,  ///< the `window` nearest ones; see tessera::neighborhood_attention
    kWindow         ///< those of its block; see tessera::window_attention
  };
  Kind kind = Kind::kAll;
  std::vector<int> axes = {};  ///< kAxes: domain dimensions, 0 the first after N
  /// kNeighborhood, kWindow: tokens per domain dimension. Where the domain is smaller, the window
  /// is as wide as the domain.
  Dims window = {};
  Dims dilation = {};  ///< kNeighborhood: per dimension, or one for all; default 1
  Dims shift = {};     ///< kWindow: where blocks begin; default 0
  /// kNeighborhood, kWindow: adds a learned number per head and relative position.
  bool relative_bias = false;
};

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
  AttentionReach reach = {};
  bool causal = false;   ///< no later key: in row-major order; kNeighborhood: in each dimension
  double dropout = 0.0;  ///< of attention weights, while training; kAll, kAxes only
  /// One per domain dimension, or one for all: a dimension that is kCircular closes on itself.
  std::vector<EdgeRule> edges = {};
};

/// Attention with heads (Vaswani et al. 2017) on tokens x [N, domain..., channels]: queries of all
/// tokens, keys and values of the tokens of the context within reach (x itself, or another tensor:
/// cross-attention). The domain may be split in any way; what moves is what the op for the reach
/// says.
class MultiHeadAttention : public Layer {
 public:
  /// Throws UsageError for sizes that do not divide and options that contradict each other.
  MultiHeadAttention(const MultiHeadAttentionOptions& options,
                     const Mesh& mesh,
                     DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  /// Attends to `context` [N, context domain..., context_channels].
  Tensor forward(const Tensor& x, const Tensor& context) const;
  std::string describe() const override;
  /// With every size written out.
  const MultiHeadAttentionOptions& options() const { return options_; }

  /// Which domain dimensions are circles from now on (kCircular). One rule per domain dimension, or
  /// one for all.
  void set_edges(const std::vector<EdgeRule>& edges);

  Linear query;  ///< [heads * head_channels, channels]
  Linear key;    ///< [key_heads * head_channels, context_channels]
  Linear value;
  std::optional<RmsNorm> query_norm;
  std::optional<RmsNorm> key_norm;
  Parameter relative_bias;  ///< [heads, 2 window - 1...]
  Linear proj;              ///< [channels, heads * head_channels]

 private:
  MultiHeadAttention(const Mesh& mesh, DType dtype, const MultiHeadAttentionOptions& o);
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v) const;

  MultiHeadAttentionOptions options_;
};

}  // namespace tessera::nn
