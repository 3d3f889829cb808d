#pragma once

#include <tessera/models/fields.hpp>
#include <tessera/models/residual.hpp>
#include <tessera/nn/patches.hpp>
#include <tessera/nn/pipeline.hpp>
#include <tessera/nn/transformer.hpp>

namespace tessera::models {

/// Options of UNet.
struct UNetOptions {
  enum class Down : std::uint8_t { kConv, kMaxPool, kAvgPool };
  using Up = AscentKind;
  using InputSkip = models::InputSkip;

  int dims = 2;  ///< domain dimensions, 1 to 3
  std::int64_t in_channels = 1;
  std::int64_t out_channels = 1;
  std::int64_t base = 32;  ///< channels of the finest level
  /// Channels of level l are base * multipliers[l]; one entry per level, each half as fine.
  std::vector<std::int64_t> multipliers = {1, 2, 4, 8};
  /// Above 1: the finest level has a point per patch of this many elements in each dimension; a
  /// head makes each patch again. Costs patch^dims times less, for details of a patch.
  std::int64_t patch = 1;
  int blocks = 1;                ///< residual blocks per level, on the way down and up
  std::int64_t norm_groups = 8;  ///< groups of the group norms; 0: no normalisation
  Activation activation = Activation::kSilu;
  double dropout = 0.0;
  Down down = Down::kConv;  ///< 3^dims convolution of stride 2, or pooling of 2
  Up up = Up::kTransposed;  ///< how a level gets finer
  std::int64_t kernel = 3;  ///< of the residual blocks; odd
  /// Transformer blocks on the coarsest level, behind its residual blocks: every point attends to
  /// every other, with rotary positions (Chen et al. 2021, TransUNet).
  int attention_blocks = 0;
  std::int64_t heads = 4;            ///< of their attention
  std::vector<EdgeRule> edges = {};  ///< one per domain dimension, or one for all; default zero
  /// The output has `upscale` times as many elements in each domain dimension (pixel shuffle).
  std::int64_t upscale = 1;
  /// Adds the input (its first out_channels channels), interpolated to the output's size: the
  /// network learns what the interpolation lacks, and starts at zero.
  InputSkip input_skip = InputSkip::kNone;
  /// Shifts each block of upscale^dims outputs so that its mean is the input element (the additive
  /// constraint layer of Harder et al. 2023), for inputs that are block means.
  bool conserve_means = false;
  /// Above 0: the unit of details, relative to the values. The network also sees each input channel
  /// minus its mean over the 3^dims points around, divided by this; its output is multiplied by it.
  /// Smooth fields with small details train faster.
  double detail_scale = 0.0;
  /// The output starts at zero, as it does with `input_skip`: for targets that are corrections.
  bool zero_head = false;
  std::uint64_t seed = 0;
};

/// U-Net (Ronneberger et al. 2015) of residual blocks, in 1 to 3 domain dimensions:
/// x [N, domain..., in_channels] -> [N, upscale * domain..., out_channels].
///
/// Any domain size works: a level of n elements is followed by one of ceil(n / 2), and the ascent
/// goes back to exactly n. Parts whose boundaries are multiples of total_stride() align on all
/// levels. The domain may be split over any mesh axes, the batch too.
class UNet : public nn::Layer {
 public:
  /// Throws UsageError for options that contradict each other.
  explicit UNet(const UNetOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(nn::Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;
  /// The same as a list for nn::Pipeline: stem, blocks, descents, ascents, head. The input and the
  /// skips that wait for their ascent travel beside the activation.
  std::vector<nn::PipelineBlock> pipeline_blocks();

  const UNetOptions& options() const { return options_; }
  /// What lies beyond the domain from now on: a network trained on crops sees a closed circle only
  /// once it gets the whole field.
  void set_edges(const std::vector<EdgeRule>& edges);
  /// Elements of the input that one element of the coarsest level stands for, per dimension.
  std::int64_t total_stride() const { return options_.patch << (options_.multipliers.size() - 1); }

 private:
  struct Descent : nn::Module {
    Descent(std::int64_t in,
            std::int64_t out,
            const UNetOptions& options,
            const Mesh& mesh,
            DType dtype);
    void fields(nn::Fields& f) override;
    Tensor operator()(const Tensor& x) const;
    std::string describe() const override { return "Descent"; }
    std::optional<nn::Conv> conv;
    std::unique_ptr<nn::Layer> pool;
    std::vector<ResidualBlock> blocks;
  };

  Tensor stem(const Tensor& x) const;
  /// `x`: the input, or one without channels where nothing of it is added.
  Tensor head(const Tensor& y, const Tensor& x) const;

  UNetOptions options_;
  Tensor detail_filter_;             // of a convolution: x minus its mean
  std::unique_ptr<nn::Layer> stem_;  // a convolution, or patches
  std::vector<ResidualBlock> blocks_;
  std::vector<Descent> down_;
  std::vector<nn::TransformerBlock> attention_;
  std::vector<Ascent> up_;  // coarsest first
  std::optional<nn::GroupNorm> norm_;
  std::optional<nn::Conv> head_;
  std::optional<nn::PatchUnembed> patch_head_;
};

}  // namespace tessera::models
