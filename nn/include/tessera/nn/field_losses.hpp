#pragma once

#include <span>
#include <tessera/core/edge.hpp>
#include <tessera/core/tensor.hpp>
#include <vector>

// Losses and scores of fields [N, domain..., C], wherever samples and the domain are split: sums
// over the global tensors, each taken in one reduction. bf16 is widened to fp32. An undefined
// weight is 1 everywhere.
namespace tessera::nn {

/// cos(latitude) / mean over rows, the area that a row of a regular grid stands for; `degrees` of
/// the rows along dimension `dim` of `like`. A constant [1.., rows, ..1], split as that dimension.
/// Throws ShapeError unless there is one latitude per row.
Tensor latitude_weights(std::span<const double> degrees, const Tensor& like, int dim = 1);

/// sum w (p - t)^2 / sum w over all elements; `weight` stretches to the fields (latitude_weights,
/// weights of channels [C], a mask).
Tensor weighted_mse_loss(const Tensor& prediction, const Tensor& target, const Tensor& weight = {});

/// sqrt(sum w (p - t)^2 / sum w) of each channel, [C], over samples and domain (the RMSE of
/// WeatherBench 2; Rasp et al. 2024); `weight` stretches to the fields, without channels of its own
/// ([..., 1]). A score: its gradient is infinite where the error is 0.
Tensor weighted_rmse(const Tensor& prediction, const Tensor& target, const Tensor& weight = {});

/// Anomaly correlation of each channel, [C]: with a = p - climatology, b = t - climatology,
/// sum w a b / sqrt(sum w a^2 sum w b^2) over the domain, then the mean over samples (uncentred, as
/// in WeatherBench 2). `climatology` and `weight` ([..., 1]) stretch to the fields. As a loss:
/// 1 - mean(...).
Tensor anomaly_correlation(const Tensor& prediction,
                           const Tensor& target,
                           const Tensor& climatology,
                           const Tensor& weight = {});

/// Options of ssim().
struct SsimOptions {
  std::int64_t window = 11;  ///< elements in each domain dimension
  double sigma = 1.5;        ///< of the Gaussian window, in elements
  double range = 1.0;        ///< largest value less smallest: the unit of k1 and k2
  double k1 = 0.01;
  double k2 = 0.03;
  /// What lies beyond the domain, one rule per domain dimension or one for all (kZero: the mean of
  /// y); empty: windows inside the domain only.
  std::vector<EdgeRule> edges = {};
};

/// Structural similarity (Wang et al. 2004) at each window: with means m, variances v and the
/// covariance c under a Gaussian window in 1 to 3 domain dimensions,
/// (2 m_x m_y + (k1 L)^2) (2 c + (k2 L)^2) / ((m_x^2 + m_y^2 + (k1 L)^2) (v_x + v_y + (k2 L)^2)).
/// x, y [N, domain..., C], result [N, windows..., C]. Windows reach across ranks (one exchange per
/// domain dimension); values are taken less their global mean, so that variances keep their digits.
/// Throws ShapeError where the window does not fit the domain.
Tensor ssim_map(const Tensor& x, const Tensor& y, const SsimOptions& options = {});
/// Its mean, a scalar: 1 for equal fields. The loss is 1 - ssim.
Tensor ssim(const Tensor& x, const Tensor& y, const SsimOptions& options = {});

}  // namespace tessera::nn
