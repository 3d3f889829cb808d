#pragma once

#include <optional>
#include <tessera/autograd/ops/interpolate.hpp>
#include <tessera/nn/layers.hpp>

/// Convolutional pieces of encoders and decoders of fields.
namespace tessera::models {

/// Options that the convolutions of a network share.
struct ResidualOptions {
  int dims = 2;                  ///< domain dimensions, 1 to 3
  std::int64_t kernel = 3;       ///< odd
  std::int64_t norm_groups = 8;  ///< groups of the group norms; 0: no normalisation
  Activation activation = Activation::kSilu;
  double dropout = 0.0;
  std::vector<EdgeRule> edges = {};  ///< one per domain dimension, or one for all; default zero
};

/// A convolution of options.kernel that keeps the size; `init` of its weight and its bias.
nn::Conv same_conv(std::int64_t in,
                   std::int64_t out,
                   const ResidualOptions& options,
                   const Mesh& mesh,
                   DType dtype,
                   const nn::Init& init = {});
/// A group norm with the activation; none where options.norm_groups is 0.
std::optional<nn::GroupNorm> norm_with_activation(std::int64_t channels,
                                                  const ResidualOptions& options,
                                                  const Mesh& mesh,
                                                  DType dtype);

/// x + conv(act(conv(x))) with group norms before the activations where there are any, then
/// norm-act-conv twice (He et al. 2016); a 1x1 convolution carries x where the channels change.
class ResidualBlock : public nn::Layer {
 public:
  ResidualBlock(std::int64_t in,
                std::int64_t out,
                const ResidualOptions& options,
                const Mesh& mesh,
                DType dtype);
  void fields(nn::Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override { return "ResidualBlock"; }

 private:
  Activation activation_;
  std::optional<nn::GroupNorm> norm1_;
  std::optional<nn::GroupNorm> norm2_;
  nn::Conv conv1_;
  nn::Conv conv2_;
  nn::Dropout dropout_;
  std::optional<nn::Conv> shortcut_;
};

/// How a level gets finer: a 2^dims transposed convolution, or an interpolation and a 1x1
/// convolution.
enum class AscentKind : std::uint8_t { kTransposed, kLinear, kNearest };

/// A step of a decoder: x [N, coarse..., in] made as large as `skip` [N, domain..., out], joined
/// with it, then residual blocks -> [N, domain..., out].
class Ascent : public nn::Module {
 public:
  Ascent(std::int64_t in,
         std::int64_t out,
         AscentKind kind,
         int blocks,
         const ResidualOptions& options,
         const Mesh& mesh,
         DType dtype);
  void fields(nn::Fields& f) override;
  Tensor operator()(const Tensor& x, const Tensor& skip) const;
  std::string describe() const override { return "Ascent"; }

 private:
  InterpolateMode mode_ = InterpolateMode::kNearest;
  std::optional<nn::ConvTranspose> transposed_;
  std::optional<nn::Conv> conv_;
  std::vector<ResidualBlock> blocks_;
};

}  // namespace tessera::models
