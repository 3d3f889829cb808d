#pragma once

#include <tessera/core/view.hpp>

/// Normalisation of each row over its channels, x [..., C]: layer normalisation (Ba, Kiros & Hinton
/// 2016), or RMS normalisation (Zhang & Sennrich 2019) where it is not centred.
///
/// Statistics are taken in double (two passes over the row), and again in backward: nothing but x
/// is kept. The sums over rows follow fixed blocks.
namespace tessera::kernels {

struct LayerNormOptions {
  double eps = 1e-5;
  bool centred = true;
};

/// y = (x - mean) / sqrt(var + eps) * gamma + beta; not centred: x / sqrt(mean(x^2) + eps) * gamma
/// + beta. gamma, beta [C]; null data: 1, 0. Throws ShapeError, DTypeError.
void layer_norm(const View& x,
                const View& gamma,
                const View& beta,
                const LayerNormOptions& options,
                const View& y);

/// With xhat the normalised x: dx = (g - mean(g) - xhat mean(g xhat)) / sqrt(var + eps),
/// g = dy gamma (not centred: without mean(g)); dgamma [C] = sum dy xhat, dbeta [C] = sum dy over
/// all rows (f64). Outputs with null data are not wanted.
void layer_norm_grad(const View& x,
                     const View& dy,
                     const View& gamma,
                     const LayerNormOptions& options,
                     const View& dx,
                     const View& dgamma,
                     const View& dbeta);

}  // namespace tessera::kernels
