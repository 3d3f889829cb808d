#pragma once

#include <tessera/nn/attention.hpp>
#include <tessera/nn/mlp.hpp>

namespace tessera::nn {

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
  Tensor conditioned(const Tensor& x, const Tensor& condition) const;

  Dropout dropout_;
};

}  // namespace tessera::nn
