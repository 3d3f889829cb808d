#pragma once

#include <tessera/models/fields.hpp>
#include <tessera/models/residual.hpp>
#include <tessera/nn/patches.hpp>
#include <tessera/nn/pipeline.hpp>
#include <tessera/nn/transformer.hpp>

namespace tessera::models {

/// Options of Unetr.
struct UnetrOptions {
  int dims = 2;  ///< domain dimensions, 1 to 3
  std::int64_t in_channels = 1;
  std::int64_t out_channels = 1;
  /// Times that the decoder gets finer by 2: a patch has 2^levels elements in each dimension.
  int levels = 4;
  std::int64_t channels = 768;  ///< of a token
  int depth = 12;               ///< transformer blocks, at least one per level
  std::int64_t heads = 12;
  std::int64_t mlp_ratio = 4;
  bool qk_norm = false;
  double wave_base = 100.0;  ///< of the rotary positions: longest to shortest wave
  std::int64_t base = 16;    ///< channels of the decoder's level l are base * 2^l; input: level 0
  std::int64_t norm_groups = 8;  ///< groups of the decoder's group norms; 0: no normalisation
  Activation activation = Activation::kSilu;  ///< of the decoder
  std::int64_t kernel = 3;                    ///< of the residual blocks; odd
  double dropout = 0.0;
  /// One per domain dimension, or one for all: what convolutions see beyond the domain (default
  /// zero); positions wrap around where it is kCircular.
  std::vector<EdgeRule> edges = {};
  std::int64_t upscale = 1;  ///< output elements per input element, in each domain dimension
  InputSkip input_skip = InputSkip::kNone;  ///< adds the interpolated input; the head starts at 0
  bool conserve_means = false;              ///< see FieldOutput
  double detail_scale = 0.0;                ///< as in UNetOptions
  bool zero_head = false;                   ///< the output starts at zero
  std::uint64_t seed = 0;
};

/// UNETR (Hatamizadeh et al. 2022) in 1 to 3 domain dimensions: a transformer on patches and a
/// convolutional decoder whose skips come from within the transformer,
/// x [N, domain..., in_channels] -> [N, upscale * domain..., out_channels].
///
/// Level l has ceil(domain / 2^l) elements. The tokens are the coarsest level, `levels`, with a
/// norm behind the last block; the skip of level k in between is the tokens after depth k / levels
/// blocks, made finer by levels - k transposed convolutions of stride 2; that of level 0 is the
/// input, through a convolution and a residual block. Positions are rotary.
///
/// Samples and the domain may be split over any mesh axes; parts that are multiples of
/// total_stride() move keys, values and the edges of convolutions alone. A domain that is no
/// multiple of the patch counts as zero beyond its end for the tokens.
class Unetr : public nn::Layer {
 public:
  /// Throws UsageError for options that contradict each other.
  explicit Unetr(const UnetrOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(nn::Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;
  /// The same as a list for nn::Pipeline: patches, each block, each step of the decoder, the head.
  /// The input and the tokens that wait for their level travel beside the activation.
  std::vector<nn::PipelineBlock> pipeline_blocks();

  const UnetrOptions& options() const { return options_; }
  /// What lies beyond the domain from now on.
  void set_edges(const std::vector<EdgeRule>& edges);
  /// Elements of the input that one token stands for, per dimension.
  std::int64_t total_stride() const { return std::int64_t{1} << options_.levels; }

 private:
  /// Tokens to a finer level: a transposed convolution, then as many more as it takes, each with a
  /// residual block behind it.
  struct Rise : nn::Module {
    Rise(const UnetrOptions& options, int level, const Mesh& mesh, DType dtype);
    void fields(nn::Fields& f) override;
    /// `domain`: of the input.
    Tensor operator()(const Tensor& tokens, const Dims& domain) const;
    std::string describe() const override { return "Rise"; }
    int level;  // to which it leads
    std::vector<nn::ConvTranspose> steps;
    std::vector<ResidualBlock> blocks;
  };

  /// What the network sees of the input.
  Tensor seen(const Tensor& x) const;
  /// Whether a skip is taken behind this many blocks.
  bool branches(int blocks) const;
  /// Step i of the decoder: y, one level finer, joined with tokens of within the transformer.
  Tensor ascend(std::size_t i, const Tensor& y, const Tensor& tokens, const Tensor& x) const;
  /// Its last step: joined with the input.
  Tensor finest(const Tensor& y, const Tensor& x) const;
  Tensor head(const Tensor& y, const Tensor& x) const;

  UnetrOptions options_;
  Tensor detail_filter_;
  nn::PatchEmbed patch_embed_;
  std::vector<nn::TransformerBlock> blocks_;
  nn::LayerNorm norm_;
  nn::Conv input_conv_;
  ResidualBlock input_block_;
  std::vector<Rise> rises_;  // coarsest level first
  std::vector<Ascent> up_;   // one more: that of the input's level
  std::optional<nn::GroupNorm> head_norm_;
  nn::Conv head_;
};

}  // namespace tessera::models
