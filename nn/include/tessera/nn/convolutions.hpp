#pragma once

#include <tessera/nn/layers.hpp>

namespace tessera::nn {

/// `options` with all padding at the low end of the domain dimensions `along` (0 is the first after
/// the batch; empty: all), so that an output sees no element behind its own; the size stays at
/// stride 1. The other dimensions are padded at both ends. Throws UsageError where padding is set
/// already, or `along` names no domain dimension.
ConvLayerOptions causal(ConvLayerOptions options, const Dims& along = {});

/// Convolution that sees no element behind its own along some dimensions (van den Oord et al.
/// 2016): y[i] = sum_t w[t] x[i - (k - 1 - t) dilation] at stride 1. See causal().
class CausalConv : public Conv {
 public:
  CausalConv(const ConvLayerOptions& options,
             const Mesh& mesh,
             DType dtype = DType::kFloat32,
             const Dims& along = {});
  std::string describe() const override { return "Causal" + Conv::describe(); }
};

/// Options of SeparableConv.
struct SeparableConvOptions {
  ConvLayerOptions conv = {};   ///< as of the whole; one group; initialisers and bias: see below
  std::int64_t multiplier = 1;  ///< results of the first convolution per input channel
};

/// Depthwise separable convolution (Chollet 2017): a convolution of each channel by itself, in ->
/// in * multiplier, without bias, then one of 1 x 1, in * multiplier -> out, with bias. Parts
/// exchange what the first needs.
class SeparableConv : public Layer {
 public:
  /// Throws UsageError as Conv, for groups other than 1, and for a multiplier below 1.
  SeparableConv(const SeparableConvOptions& options,
                const Mesh& mesh,
                DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override { return "SeparableConv"; }

  Conv depthwise;  ///< weight [in * multiplier, kernel..., 1]
  Conv pointwise;  ///< weight [out, 1..., in * multiplier]
};

/// What PartialConv returns.
struct MaskedTensor {
  Tensor values;  ///< [N, out..., C]
  Tensor mask;    ///< [N or 1, out..., 1], 1 where a window had an element, in the type given
};

/// Partial convolution (Liu et al. 2018) of fields with holes: with m the mask (1: valid) and S the
/// sum of m over a window of K = prod(kernel) elements,
///   y = (conv(x m) K / S + bias) where S > 0, else 0;  m' = (S > 0).
/// What lies in holes is not read: it may be NaN. The padding of zero edges counts as holes.
class PartialConv : public Module {
 public:
  /// Throws UsageError as Conv.
  PartialConv(const ConvLayerOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  /// x [N, domain..., in]; mask [N or 1, domain..., 1], bool or floating (0 or 1). Throws
  /// ShapeError when they do not fit.
  MaskedTensor operator()(const Tensor& x, const Tensor& mask) const;
  std::string describe() const override;
  bool can_recompute() const override { return true; }

  Parameter weight;  ///< [out, kernel..., in / groups]
  Parameter bias;    ///< [out]

 private:
  std::vector<Tensor> convolve(const Tensor& x, const Tensor& mask) const;
  ConvOptions options_;
};

}  // namespace tessera::nn
