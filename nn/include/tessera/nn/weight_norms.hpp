#pragma once

#include <tessera/nn/layers.hpp>

namespace tessera::nn {

/// Weight normalisation (Salimans & Kingma 2016): w = g v / |v|, with one length |v| and one factor
/// g per output (dimension 0 of the weight). At first g is the length that v has on average, so w
/// is about what the initialiser drew.
class WeightNorm : public Module {
 public:
  /// `init`: of v.
  WeightNorm(const Shape& shape, const Init& init, const Mesh& mesh, DType dtype);
  void fields(Fields& f) override;
  std::string describe() const override { return "WeightNorm"; }
  /// The weight.
  Tensor operator()() const;
  const Shape& shape() const { return v.shape(); }

  Parameter v;  ///< [out, ...]
  Parameter g;  ///< [out, 1...]
};

/// Spectral normalisation (Miyato et al. 2018): w / sigma, where sigma = u' W v approximates the
/// largest singular value of w as a matrix W [out, rest]. Each call in training takes one step of
/// the power iteration, v = W' u / |W' u|, u = W v / |W v| (the first call ever 15), which the
/// gradient does not pass through. u and v are buffers, saved with the model. A call that is
/// computed again in backward takes no step; it throws UsageError where another call took one in
/// between.
class SpectralNorm : public Module {
 public:
  SpectralNorm(const Shape& shape, const Init& init, const Mesh& mesh, DType dtype);
  void fields(Fields& f) override;
  std::string describe() const override { return "SpectralNorm"; }
  /// The weight.
  Tensor operator()() const;
  const Shape& shape() const { return weight.shape(); }

  Parameter weight;  ///< [out, ...]
  Tensor u;          ///< [out, 1], at first random
  Tensor v;          ///< [1, rest], at first 0

 private:
  bool started() const;
  void iterate(const Tensor& matrix) const;
  mutable bool started_ = false;
  mutable std::uint64_t steps_ = 0;
};

/// A linear layer whose weight is made by `Norm`, WeightNorm or SpectralNorm.
template <class Norm>
class NormalizedLinear : public Layer {
 public:
  /// Throws UsageError unless `in` and `out` are positive.
  NormalizedLinear(const LinearOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

  Norm weight;     ///< makes [out, in]
  Parameter bias;  ///< [out]
};

/// A convolution whose weight is made by `Norm`.
template <class Norm>
class NormalizedConv : public Layer {
 public:
  /// Throws UsageError for sizes that are not positive or lists of a wrong length.
  NormalizedConv(const ConvLayerOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

  Norm weight;     ///< makes [out, kernel..., in / groups]
  Parameter bias;  ///< [out]

 private:
  ConvOptions options_;
};

using WeightNormLinear = NormalizedLinear<WeightNorm>;
using WeightNormConv = NormalizedConv<WeightNorm>;
using SpectralNormLinear = NormalizedLinear<SpectralNorm>;
using SpectralNormConv = NormalizedConv<SpectralNorm>;

}  // namespace tessera::nn
