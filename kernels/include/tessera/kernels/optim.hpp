#pragma once

#include <span>
#include <tessera/core/view.hpp>

/// Updates of optimisers on flat parameters: many segments in one call. All views of a segment are
/// dense and have one floating element type and size; f64 is computed in double, the others in
/// float.
namespace tessera::kernels {

/// One parameter's part: value, gradient, and the state that the method needs (null data where it
/// needs none).
struct OptimSegment {
  View parameter;
  View gradient;
  View first;   ///< AdamW: mean of gradients; SGD: velocity
  View second;  ///< AdamW: mean of squares
  double rate = 0.0;
  double weight_decay = 0.0;
  View third = {};  ///< AdamW: largest mean of squares so far (amsgrad)
};

struct AdamWCoefficients {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  std::int64_t step = 1;  ///< counts from 1
  bool coupled = false;   ///< Adam: the decay is part of the gradient
};

/// AdamW (Loshchilov & Hutter 2019): p *= 1 - rate weight_decay; m = beta1 m + (1 - beta1) g;
/// v = beta2 v + (1 - beta2) g^2; p -= rate (m / c1) / (sqrt(v / c2) + eps), c = 1 - beta^step.
/// Coupled (Adam, Kingma & Ba 2015): g += weight_decay p instead. With `third`, the largest v so
/// far stands in its place (amsgrad, Reddi et al. 2018).
void adamw_step(std::span<const OptimSegment> segments, const AdamWCoefficients& coefficients);

/// d = g + weight_decay p; with a velocity: v = momentum v + d, d = v (nesterov: d + momentum v);
/// p -= rate d.
void sgd_step(std::span<const OptimSegment> segments, double momentum, bool nesterov);

/// average = decay average + (1 - decay) value, for pairs (parameter = average, gradient = value).
void ema_step(std::span<const OptimSegment> segments, double decay);

/// Sum of squares of all elements, in double, in fixed order.
double sum_of_squares(std::span<const View> views);

}  // namespace tessera::kernels
