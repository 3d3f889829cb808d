#pragma once

#include <tessera/models/fields.hpp>
#include <tessera/nn/patches.hpp>
#include <tessera/nn/transformer.hpp>

namespace tessera::models {

/// Options of Swin.
struct SwinOptions {
  int dims = 2;  ///< domain dimensions, 1 to 3
  std::int64_t in_channels = 1;
  std::int64_t out_channels = 1;
  Dims patch = {4};  ///< elements of a patch per domain dimension, or one for all
  std::int64_t channels =
      96;  ///< of the finest level; each level has twice those of the one before
  std::vector<int> depths = {2, 2, 6, 2};  ///< blocks per level on the way down, finest first
  std::vector<std::int64_t> heads = {3, 6, 12, 24};  ///< per level
  int up_depth = 2;                                  ///< blocks per level on the way up
  Dims window = {8};  ///< tokens of an attention window per domain dimension, or one for all
  std::int64_t mlp_ratio = 4;
  bool qk_norm = false;
  double dropout = 0.0;  ///< of what each branch adds
  /// One per domain dimension, or one for all. Windows close where it is kCircular; there they must
  /// divide every level.
  std::vector<EdgeRule> edges = {};
  std::int64_t upscale = 1;  ///< output elements per input element, in each domain dimension
  InputSkip input_skip = InputSkip::kNone;  ///< adds the interpolated input; the head starts at 0
  bool conserve_means = false;              ///< see FieldOutput
  double detail_scale = 0.0;                ///< as in UNetOptions
  bool zero_head = false;                   ///< the output starts at zero
  std::uint64_t seed = 0;
};

/// Encoder and decoder of shifted-window attention (Liu et al. 2021; Cao et al. 2021) for fields:
/// x [N, domain..., in_channels] -> [N, upscale * domain..., out_channels].
///
/// Patches become tokens; each level has blocks with attention in windows, every other one shifted
/// by half a window, with relative position biases. Between levels 2^dims tokens are merged into
/// one with a norm behind (Liu et al. 2022), and on the way up each makes 2^dims again, which join
/// those of the way down. Any domain works: beyond the end stand zeros, and the way up goes back to
/// the same sizes. The domain may be split in any way; a window that straddles parts fetches its
/// keys from the neighbour.
class Swin : public nn::Layer {
 public:
  /// Throws UsageError for options that contradict each other.
  explicit Swin(const SwinOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(nn::Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

  const SwinOptions& options() const { return options_; }
  /// What lies beyond the domain from now on.
  void set_edges(const std::vector<EdgeRule>& edges);
  /// Elements of the input that one token of the coarsest level stands for: the least common
  /// multiple over dimensions.
  std::int64_t total_stride() const;

 private:
  using Blocks = std::vector<nn::TransformerBlock>;
  struct Descent : nn::Layer {
    Descent(const SwinOptions& options, std::size_t level, const Mesh& mesh, DType dtype);
    void fields(nn::Fields& f) override;
    Tensor forward(const Tensor& x) const override;
    std::string describe() const override { return "Descent"; }
    nn::PatchEmbed merge;
    nn::LayerNorm norm;
    Blocks blocks;
  };
  struct Ascent : nn::Module {
    Ascent(const SwinOptions& options, std::size_t level, const Mesh& mesh, DType dtype);
    void fields(nn::Fields& f) override;
    Tensor operator()(const Tensor& x, const Tensor& skip) const;
    std::string describe() const override { return "Ascent"; }
    nn::PatchUnembed expand;
    nn::Linear join;
    Blocks blocks;
  };

  SwinOptions options_;
  Tensor detail_filter_;
  nn::PatchEmbed patch_embed_;
  nn::LayerNorm embed_norm_;
  Blocks blocks_;
  std::vector<Descent> down_;
  std::vector<Ascent> up_;  // coarsest first
  nn::LayerNorm norm_;
  nn::PatchUnembed head_;
};

}  // namespace tessera::models
