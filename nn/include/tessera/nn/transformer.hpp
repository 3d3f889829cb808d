#pragma once

#include <tessera/nn/attention.hpp>

namespace tessera::nn {

/// Options of Mlp.
struct MlpOptions {
  std::int64_t channels = 0;
  std::int64_t hidden = 0;  ///< 0: 4 * channels
  std::int64_t out = 0;     ///< 0: channels
  Activation activation = Activation::kGelu;
  /// The activation of one projection times another one: SwiGLU with kSilu (Shazeer 2020).
  bool gated = false;
  double dropout = 0.0;
};

/// fc2(act(fc1(x))), or fc2(act(gate(x)) * fc1(x)), for each token.
class Mlp : public Layer {
 public:
  Mlp(const MlpOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

  Linear fc1;
  std::optional<Linear> gate;
  Linear fc2;

 private:
  Activation activation_;
  Dropout dropout_;
};

/// Options of TransformerBlock.
struct TransformerBlockOptions {
  /// The attention: `attention.channels` is the width of the block.
  MultiHeadAttentionOptions attention = {};
  MlpOptions mlp = {};   ///< `channels` is set by the block
  double dropout = 0.0;  ///< of the results of both branches
  double eps = 1e-6;     ///< of the norms
  /// Above 0: the norms are scaled and shifted, and both branches scaled, by what a linear layer
  /// makes of a condition with that many channels (adaptive layer norm, starting with branches of
  /// zero; Peebles & Xie 2023).
  std::int64_t condition_channels = 0;
};

/// Scales and shifts of adaptive layer norms from a condition [N, C]: `count` tensors [N, 1...,
/// channels] for tokens of `dims` domain dimensions; zero before training.
class Modulation : public Module {
 public:
  Modulation(std::int64_t condition_channels,
             std::int64_t channels,
             int count,
             const Mesh& mesh,
             DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  std::vector<Tensor> operator()(const Tensor& condition, int dims) const;
  std::string describe() const override { return "Modulation"; }

  Linear linear;

 private:
  int count_;
};

/// x + attention(norm(x)), then x + mlp(norm(x)).
class TransformerBlock : public Layer {
 public:
  /// Throws UsageError for sizes that do not divide.
  TransformerBlock(const TransformerBlockOptions& options,
                   const Mesh& mesh,
                   DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  /// With a condition [N, condition_channels], which blocks made for one need.
  Tensor forward(const Tensor& x, const Tensor& condition) const;
  std::string describe() const override { return "TransformerBlock"; }

  LayerNorm norm1;
  MultiHeadAttention attn;
  LayerNorm norm2;
  Mlp mlp;
  std::optional<Modulation> modulation;

 private:
  Dropout dropout_;
};

}  // namespace tessera::nn
