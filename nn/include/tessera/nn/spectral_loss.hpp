#pragma once

#include <cstdint>
#include <tessera/core/tensor.hpp>

namespace tessera::nn {

/// Power |X_k|^2 of the discrete Fourier transform over the domain, with
/// X_k = sum_j x_j exp(-2 pi i k . j / n) / sqrt(prod n), so that the powers of all frequencies sum
/// to the squares of x. x [N, domain..., C] of 1 to 3 domain dimensions; result [N, K..., C] with
/// K = n, in the last one n / 2 + 1: of frequencies k and n - k, whose powers are equal, the first.
///
/// Made of products with the matrices of cosines and sines, n operations per element and dimension
/// (as a convolution of n taps on one channel), differentiable to any order. A split dimension is
/// made whole by moving its split to another one; nothing is gathered while there is one.
Tensor power_spectrum(const Tensor& x);

/// What spectral_loss() compares at each frequency.
enum class SpectralKind : std::uint8_t {
  kAmplitude,  ///< sqrt(|X|^2 + eps)
  kPower,      ///< |X|^2
  kLogPower    ///< log(|X|^2 + eps)
};

/// Options of spectral_loss().
struct SpectralOptions {
  SpectralKind kind = SpectralKind::kAmplitude;
  double eps = 1e-8;
  /// Frequencies weigh (1 + |k|)^slope, |k| the length of the vector of waves per domain (of k and
  /// n - k the smaller): above 0 for sharp fields.
  double slope = 0.0;
};

/// Weighted mean over samples, all frequencies and channels of the squared difference of what
/// `kind` says, of prediction and target [N, domain..., C]: a loss that does not punish fine
/// structure for being out of place. A scalar, at least fp32.
Tensor spectral_loss(const Tensor& prediction,
                     const Tensor& target,
                     const SpectralOptions& options = {});

}  // namespace tessera::nn
