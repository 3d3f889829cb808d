#pragma once

#include <tessera/nn/layers.hpp>

namespace tessera::nn {

/// Options of LayerNorm and RmsNorm.
struct RowNormOptions {
  std::int64_t channels = 0;
  double eps = 1e-6;
  bool affine = true;  ///< false: no parameters, e.g. where a condition scales and shifts
};

/// Layer normalisation of each token; see tessera::layer_norm.
class LayerNorm : public Layer {
 public:
  /// Throws UsageError unless `channels` is positive.
  LayerNorm(const RowNormOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

  Parameter weight;  ///< gamma [channels]
  Parameter bias;    ///< beta [channels]

 private:
  RowNormOptions options_;
};

/// Normalisation of each token by its root mean square; see tessera::rms_norm.
class RmsNorm : public Layer {
 public:
  /// Throws UsageError unless `channels` is positive.
  RmsNorm(const RowNormOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

  Parameter weight;  ///< gamma [channels]

 private:
  RowNormOptions options_;
};

}  // namespace tessera::nn
