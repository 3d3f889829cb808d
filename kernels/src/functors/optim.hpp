#pragma once

#include <cmath>
#include <tessera/kernels/optim.hpp>

#include "math.hpp"

namespace tessera::kernels {

/// Means of gradients and of their squares (AdamW, LAMB).
template <class T>
struct Moments {
  T beta1, beta2, eps, inverse_c1, inverse_c2;

  template <class U>
  explicit operator Moments<U>() const {
    return {static_cast<U>(beta1), static_cast<U>(beta2), static_cast<U>(eps),
            static_cast<U>(inverse_c1), static_cast<U>(inverse_c2)};
  }
  TESSERA_HD void take(T g, T& m, T& v) const {
    m = beta1 * m + (T(1) - beta1) * g;
    v = beta2 * v + (T(1) - beta2) * g * g;
  }
};

/// Those of a step, the same for all segments.
inline Moments<double> moments_of(const AdamWCoefficients& c) {
  const auto steps = static_cast<double>(c.step);
  return {c.beta1, c.beta2, c.eps, 1.0 / (1.0 - std::pow(c.beta1, steps)),
          1.0 / (1.0 - std::pow(c.beta2, steps))};
}

template <class T>
struct AdamWStep {
  Moments<T> moments;
  T rate, keep;
  T coupled_decay;
  bool amsgrad;

  TESSERA_HD void operator()(T& p, T g, T& m, T& v, T& largest) const {
    g += coupled_decay * p;
    moments.take(g, m, v);
    largest = largest > v ? largest : v;
    const T square = amsgrad ? largest : v;
    p = p * keep - rate * (m * moments.inverse_c1) /
                       (tessera::kernels::m::sqrt(square * moments.inverse_c2) + moments.eps);
  }
};

/// The step of one segment.
template <class T>
AdamWStep<T> adamw_step_of(const OptimSegment& s, const Moments<double>& moments, bool coupled) {
  return {static_cast<Moments<T>>(moments), static_cast<T>(s.rate),
          static_cast<T>(coupled ? 1.0 : 1.0 - s.rate * s.weight_decay),
          static_cast<T>(coupled ? s.weight_decay : 0.0), s.third.data != nullptr};
}

template <class T>
struct SgdStep {
  T momentum;
  T rate, weight_decay;
  bool has_velocity, nesterov;

  TESSERA_HD void operator()(T& p, T g, T& v, T&, T&) const {
    T d = g + weight_decay * p;
    const T next = momentum * v + d;
    v = has_velocity ? next : v;
    d = has_velocity ? (nesterov ? d + momentum * next : next) : d;
    p = p - rate * d;
  }
};

template <class T>
struct EmaStep {
  T decay;
  TESSERA_HD void operator()(T& p, T g, T&, T&, T&) const { p = decay * p + (T(1) - decay) * g; }
};

}  // namespace tessera::kernels
