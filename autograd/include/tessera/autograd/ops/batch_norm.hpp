#pragma once

#include <tessera/autograd/ops/norm.hpp>

namespace tessera {

/// Options of batch_norm().
struct BatchNormSettings {
  double eps = 1e-5;
  Activation activation = Activation::kNone;
  /// What each element counts in the statistics, not negative, of any floating type: [domain...] or
  /// [N, domain..., 1], with 1 in dimensions along which it does not change; e.g. cos(latitude)
  /// [rows, 1]. Undefined: all count alike. It has no gradient.
  Tensor area = {};
};

/// What batch_norm() returns.
struct BatchNormResult {
  Tensor y;        ///< as x
  Tensor moments;  ///< f64 [1, C, 3]: count, mean and M2 = sum (x - mean)^2 of each channel
};

/// Batch normalisation (Ioffe & Szegedy 2015) of x [N, domain..., C] over samples and domain:
/// y = act((x - mean) / sqrt(var + eps) * gamma + beta), var = M2 / count; gamma, beta [C] or both
/// undefined.
///
/// Statistics are global: those of the parts are merged as (n, mean, M2) over all ranks that share
/// samples or domain, in one small exchange; the moments have the same bits on every rank. With an
/// area a: mean = sum a x / sum a, var = sum a (x - mean)^2 / sum a. The moments have no gradient
/// of their own; y's passes through them. Only x and the moments are kept for backward.
BatchNormResult batch_norm(const Tensor& x,
                           const Tensor& gamma,
                           const Tensor& beta,
                           const BatchNormSettings& settings = {});

/// The same with given moments, f64 [1, C, 3] as above, which are constants: y = act((x - mean) /
/// sqrt(M2 / count + eps) * gamma + beta). What a batch norm does in evaluation.
Tensor normalize_with(const Tensor& x,
                      const Tensor& moments,
                      const Tensor& gamma,
                      const Tensor& beta,
                      double eps = 1e-5,
                      Activation activation = Activation::kNone);

/// group_norm() whose statistics count each element by its `area` (see BatchNormSettings).
Tensor group_norm(const Tensor& x,
                  const Tensor& gamma,
                  const Tensor& beta,
                  std::int64_t groups,
                  double eps,
                  Activation activation,
                  const Tensor& area);

}  // namespace tessera
