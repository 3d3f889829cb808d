#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

/// Activation that a fused op applies to its result.
enum class Activation : std::uint8_t { kNone, kRelu, kSilu, kGelu };

/// Group normalisation (Wu & He 2018) of x [N, domain..., C] over the domain and the C / groups
/// channels of each group: y = act((x - mean) / sqrt(var + eps) * gamma + beta); gamma, beta [C] or
/// both undefined. Statistics are merged as (n, mean, M2) in at least fp32; with the domain split
/// they take one small exchange. Only x and the statistics are kept for backward.
Tensor group_norm(const Tensor& x,
                  const Tensor& gamma,
                  const Tensor& beta,
                  std::int64_t groups,
                  double eps = 1e-5,
                  Activation activation = Activation::kNone);

/// The activation alone, as an op of its own.
Tensor activate(const Tensor& x, Activation activation);

/// Layer normalisation (Ba, Kiros & Hinton 2016) of each row of x [..., C] over its channels:
/// y = (x - mean) / sqrt(var + eps) * gamma + beta; gamma, beta [C] or undefined. Any leading
/// dimension may be split, the channels not. Only x is kept for backward.
Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps = 1e-5);

/// RMS normalisation (Zhang & Sennrich 2019): y = x / sqrt(mean(x^2) + eps) * gamma.
Tensor rms_norm(const Tensor& x, const Tensor& gamma, double eps = 1e-6);

}  // namespace tessera
