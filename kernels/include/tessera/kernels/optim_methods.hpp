#pragma once

#include <tessera/kernels/optim.hpp>

/// Updates of further optimisers, on segments as in optim.hpp. A view of state without data is an
/// absent one where the method allows it.
namespace tessera::kernels {

struct RmspropCoefficients {
  double alpha = 0.99;
  double eps = 1e-8;
  double momentum = 0.0;
};

/// `first`: s, `second`: v, `third`: a. d = g + weight_decay p; s = alpha s + (1 - alpha) d^2; with
/// `third`, a = alpha a + (1 - alpha) d and s - a^2 stands for s; u = d / (sqrt(s) + eps); with
/// `second`, v = momentum v + u, u = v; p -= rate u.
void rmsprop_step(std::span<const OptimSegment> segments, const RmspropCoefficients& coefficients);

/// `first`: s. d = g + weight_decay p; s += d^2; p -= rate d / (sqrt(initial + s) + eps).
void adagrad_step(std::span<const OptimSegment> segments, double initial, double eps);

/// `first`: m. p *= 1 - rate weight_decay; p -= rate sign(beta1 m + (1 - beta1) g); m = beta2 m +
/// (1 - beta2) g.
void lion_step(std::span<const OptimSegment> segments, double beta1, double beta2);

/// The direction of LAMB: m and v as adamw_step; the third view becomes
/// (m / c1) / (sqrt(v / c2) + eps) + weight_decay p. The parameter stays.
void lamb_direction(std::span<const OptimSegment> segments, const AdamWCoefficients& coefficients);

}  // namespace tessera::kernels
