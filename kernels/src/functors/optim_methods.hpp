#pragma once

#include <tessera/kernels/optim_methods.hpp>

#include "functors/optim.hpp"
#include "math.hpp"

namespace tessera::kernels {

template <class T>
struct RmspropStep {
  T alpha, eps, momentum;
  T rate, weight_decay;
  bool has_velocity, centered;

  TESSERA_HD void operator()(T& p, T g, T& square, T& v, T& mean) const {
    g += weight_decay * p;
    square = alpha * square + (T(1) - alpha) * g * g;
    mean = alpha * mean + (T(1) - alpha) * g;
    // Rounding may leave a variance just below 0.
    T variance = centered ? square - mean * mean : square;
    variance = variance > T(0) ? variance : T(0);
    const T d = g / (tessera::kernels::m::sqrt(variance) + eps);
    v = momentum * v + d;
    p = p - rate * (has_velocity ? v : d);
  }
};

template <class T>
RmspropStep<T> rmsprop_step_of(const OptimSegment& s, const RmspropCoefficients& c) {
  return {static_cast<T>(c.alpha), static_cast<T>(c.eps),          static_cast<T>(c.momentum),
          static_cast<T>(s.rate),  static_cast<T>(s.weight_decay), s.second.data != nullptr,
          s.third.data != nullptr};
}

template <class T>
struct AdagradStep {
  T initial, eps;
  T rate, weight_decay;

  TESSERA_HD void operator()(T& p, T g, T& square, T&, T&) const {
    g += weight_decay * p;
    square += g * g;
    p = p - rate * g / (tessera::kernels::m::sqrt(initial + square) + eps);
  }
};

template <class T>
struct LionStep {
  T beta1, beta2;
  T rate, keep;

  TESSERA_HD void operator()(T& p, T g, T& m, T&, T&) const {
    const T u = beta1 * m + (T(1) - beta1) * g;
    const T sign = u > T(0) ? T(1) : (u < T(0) ? T(-1) : u);
    p = p * keep - rate * sign;
    m = beta2 * m + (T(1) - beta2) * g;
  }
};

template <class T>
LionStep<T> lion_step_of(const OptimSegment& s, double beta1, double beta2) {
  return {static_cast<T>(beta1), static_cast<T>(beta2), static_cast<T>(s.rate),
          static_cast<T>(1.0 - s.rate * s.weight_decay)};
}

template <class T>
struct LambDirection {
  Moments<T> moments;
  T weight_decay;

  TESSERA_HD void operator()(T& p, T g, T& m, T& v, T& direction) const {
    moments.take(g, m, v);
    direction = (m * moments.inverse_c1) /
                    (tessera::kernels::m::sqrt(v * moments.inverse_c2) + moments.eps) +
                weight_decay * p;
  }
};

}  // namespace tessera::kernels
