#pragma once

#include <tessera/autograd/ops/batch_norm.hpp>
#include <tessera/nn/layers.hpp>

namespace tessera::nn {

/// Options of BatchNorm.
struct BatchNormOptions {
  std::int64_t channels = 0;
  double eps = 1e-5;
  double momentum = 0.1;  ///< weight of the newest batch in the running statistics, in (0, 1]
  bool affine = true;     ///< gamma and beta
  Activation activation = Activation::kNone;  ///< applied to the result, in the same pass
};

/// Batch normalisation (Ioffe & Szegedy 2015) of x [N, domain..., channels] over samples and
/// domain, with statistics of the whole batch whatever splits it; see tessera::batch_norm.
///
/// In training each call also moves the running statistics: r = (1 - momentum) r + momentum s, s
/// the batch's mean and its variance with n / (n - 1), n = elements per channel (as PyTorch). They
/// are equal to the bit on every rank, f64 buffers, saved with the model; evaluation normalises
/// with them. A call that is computed again in backward moves them once. Throws ShapeError in
/// training on one element per channel (the result would be beta); a batch without any moves
/// nothing.
class BatchNorm : public Layer {
 public:
  /// Throws UsageError unless `channels` is positive and 0 < momentum <= 1.
  BatchNorm(const BatchNormOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

  /// What each element counts in the statistics from now on (see BatchNormSettings::area); an
  /// undefined tensor: all alike. It belongs to the grid, not to the model: files do not hold it.
  void set_area(const Tensor& area) { area_ = area; }

  Parameter weight;     ///< gamma [channels]
  Parameter bias;       ///< beta [channels]
  Tensor running_mean;  ///< [channels], at first 0
  Tensor running_var;   ///< [channels], at first 1

 private:
  void track(const Tensor& moments, std::int64_t elements) const;
  BatchNormOptions options_;
  Tensor area_;
};

/// GroupNorm whose statistics count each element by its area, e.g. cos(latitude) [rows, 1].
class AreaGroupNorm : public GroupNorm {
 public:
  using GroupNorm::GroupNorm;
  Tensor forward(const Tensor& x) const override;
  /// As BatchNorm::set_area().
  void set_area(const Tensor& area) { area_ = area; }

 private:
  Tensor area_;
};

/// Options of InstanceNorm.
struct InstanceNormOptions {
  std::int64_t channels = 0;
  double eps = 1e-5;
  bool affine = true;
  Activation activation = Activation::kNone;
};

/// Instance normalisation (Ulyanov, Vedaldi & Lempitsky 2016): each channel of each sample over the
/// domain, which is a group norm of `channels` groups.
class InstanceNorm : public AreaGroupNorm {
 public:
  /// Throws UsageError unless `channels` is positive.
  InstanceNorm(const InstanceNormOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  std::string describe() const override;
};

}  // namespace tessera::nn
