#pragma once

#include <tessera/core/view.hpp>

/// Normalisation over the domain and the channels of a group (Wu & He, ECCV 2018), x [N, d..., C].
///
/// groups = 1 with the rows as N is layer normalisation, groups = C instance normalisation, not
/// centred with groups = 1 RMS normalisation. Moments are f64 triples (count, mean, M2) with M2 the
/// sum of squared deviations from the mean; not centred: mean 0, M2 the sum of squares. Sums follow
/// fixed blocks, so they do not depend on the number of threads. A part without channels has no
/// groups: nothing is done.
namespace tessera::kernels {

/// Activation applied to the normalised and scaled value.
enum class NormActivation : std::uint8_t { kNone, kRelu, kSilu, kGelu };

struct GroupNormOptions {
  std::int64_t groups = 1;
  double eps = 1e-5;
  bool centred = true;
  NormActivation activation = NormActivation::kNone;
};

/// moments [N, groups, 3] of this part of x (count 0 where it is empty), by a two-pass sum per
/// cache-sized block; blocks are merged as in Chan, Golub & LeVeque (1979). With a `weight` of the
/// shape of x (strides 0 where it repeats), of any floating type and not negative, (sum w, sum w x
/// / sum w, sum w (x - mean)^2); weights are for host memory alone.
void group_moments(const View& x,
                   const GroupNormOptions& options,
                   const View& moments,
                   const View& weight = {});
/// moments [N, groups, 3] of the union of the P parts [P, N, groups, 3], merged in order.
void merge_moments(const View& parts, const View& moments);

/// y = act((x - mean) / sqrt(M2 / count + eps) * gamma + beta). gamma, beta [C]; null data: 1, 0.
void group_norm(const View& x,
                const View& moments,
                const View& gamma,
                const View& beta,
                const GroupNormOptions& options,
                const View& y);

/// With z the value before the activation, xhat the normalised x and g = dy act'(z):
/// dgamma [C] = sum g xhat, dbeta [C] = sum g (f64; null data: not wanted), and
/// sums [N, groups, 2] (f64) = (sum g gamma, sum g gamma xhat).
void group_norm_sums(const View& x,
                     const View& dy,
                     const View& moments,
                     const View& gamma,
                     const View& beta,
                     const GroupNormOptions& options,
                     const View& sums,
                     const View& dgamma,
                     const View& dbeta);

/// dx = (g gamma - weight (sums_0 + xhat sums_1) / count) / sqrt(var + eps) with the sums over all
/// parts; not centred: without the sums_0 term. A null weight is 1.
void group_norm_input_grad(const View& x,
                           const View& dy,
                           const View& moments,
                           const View& gamma,
                           const View& beta,
                           const View& sums,
                           const GroupNormOptions& options,
                           const View& dx,
                           const View& weight = {});

}  // namespace tessera::kernels
