#pragma once

#include <tessera/models/fields.hpp>
#include <tessera/nn/encodings.hpp>
#include <tessera/nn/patches.hpp>
#include <tessera/nn/pipeline.hpp>
#include <tessera/nn/transformer.hpp>

namespace tessera::models {

/// Options of ViT.
struct ViTOptions {
  enum class Positions : std::uint8_t { kRotary, kLearned, kSinusoidal, kNone };

  int dims = 2;  ///< domain dimensions, 1 to 3
  std::int64_t in_channels = 1;
  std::int64_t out_channels = 1;
  std::int64_t classes = 0;  ///< above 0: the output is [N, classes] instead of a field
  Dims patch = {16};         ///< elements of a patch in each domain dimension, or one for all
  std::int64_t channels = 384;
  int depth = 12;
  std::int64_t heads = 6;
  std::int64_t key_heads = 0;  ///< below `heads`: grouped queries; 0: heads
  std::int64_t mlp_ratio = 4;
  bool qk_norm = false;
  bool gated_mlp = false;  ///< SwiGLU instead of GELU
  Positions positions = Positions::kRotary;
  Dims grid = {};            ///< kLearned: tokens per domain dimension in training
  double wave_base = 100.0;  ///< kRotary, kSinusoidal: longest to shortest wave
  double norm_eps = 1e-6;
  double dropout = 0.0;  ///< of what each branch adds
  double attention_dropout = 0.0;
  /// One per domain dimension, or one for all: positions wrap around where it is kCircular. Other
  /// rules only say how an added input is interpolated.
  std::vector<EdgeRule> edges = {};
  std::int64_t upscale = 1;  ///< output elements per input element, in each domain dimension
  InputSkip input_skip = InputSkip::kNone;  ///< adds the interpolated input; the head starts at 0
  bool conserve_means = false;              ///< see FieldOutput
  double detail_scale = 0.0;                ///< as in UNetOptions
  bool zero_head = false;                   ///< the output starts at zero
  std::uint64_t seed = 0;

  /// ViT-S, ViT-B, ViT-L or ViT-H: `size` is small (S), base (B), large (L) or huge (H); sets
  /// channels, depth and heads to 384, 12, 6; 768, 12, 12; 1024, 24, 16; 1280, 32, 16. Throws
  /// UsageError for other names.
  static ViTOptions preset(std::string_view size);
};

/// Vision transformer (Dosovitskiy et al. 2021) in 1 to 3 domain dimensions. Patches become tokens
/// [N, tokens..., channels] that all attend to each other, then a norm and a head: dense,
/// x [N, domain..., in_channels] -> [N, upscale * domain..., out_channels], each token making its
/// patch; or, with `classes`, the mean over all tokens, its norm and a linear layer -> [N,
/// classes].
///
/// Samples and the domain may be split over any mesh axes; tokens lie where their patches begin, so
/// parts that are multiples of total_stride() move nothing but keys and values. A domain that is no
/// multiple of the patch counts as zero beyond its end. Grids other than that of training work:
/// waves go on, learned positions are interpolated.
class ViT : public nn::Layer {
 public:
  /// Throws UsageError for options that contradict each other.
  explicit ViT(const ViTOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(nn::Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;
  /// The same as a list for nn::Pipeline: patches and positions, each block, the head. Beside the
  /// tokens travels the input, empty where the head needs no more than its shape.
  std::vector<nn::PipelineBlock> pipeline_blocks();

  const ViTOptions& options() const { return options_; }
  /// What lies beyond the domain from now on.
  void set_edges(const std::vector<EdgeRule>& edges);
  /// Elements of the input that one token stands for: the least common multiple over dimensions.
  std::int64_t total_stride() const;

 private:
  Tensor tokens(const Tensor& x) const;
  /// From the tokens and the input, or one without channels where nothing of it is added.
  Tensor head(const Tensor& tokens, const Tensor& x) const;

  ViTOptions options_;
  Tensor detail_filter_;
  nn::PatchEmbed patch_embed_;
  std::unique_ptr<nn::Layer> positions_;
  std::vector<nn::TransformerBlock> blocks_;
  nn::LayerNorm norm_;
  std::optional<nn::PatchUnembed> field_head_;
  std::optional<nn::Linear> class_head_;
};

}  // namespace tessera::models
