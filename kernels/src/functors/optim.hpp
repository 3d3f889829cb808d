#pragma once

#include <cmath>
#include <tessera/kernels/optim.hpp>

#include "math.hpp"

namespace tessera::kernels {

template <class T>
struct AdamWStep {
  T beta1, beta2, eps, inverse_c1, inverse_c2;
  T rate, keep;
  T coupled_decay;
  bool amsgrad;

  TESSERA_HD void operator()(T& p, T g, T& m, T& v, T& largest) const {
    g += coupled_decay * p;
    m = beta1 * m + (T(1) - beta1) * g;
    v = beta2 * v + (T(1) - beta2) * g * g;
    largest = largest > v ? largest : v;
    const T square = amsgrad ? largest : v;
    p = p * keep - rate * (m * inverse_c1) / (tessera::kernels::m::sqrt(square * inverse_c2) + eps);
  }
};

/// The step of one segment.
template <class T>
AdamWStep<T> adamw_step_of(const OptimSegment& s, const AdamWCoefficients& c) {
  const auto steps = static_cast<double>(c.step);
  return {static_cast<T>(c.beta1),
          static_cast<T>(c.beta2),
          static_cast<T>(c.eps),
          static_cast<T>(1.0 / (1.0 - std::pow(c.beta1, steps))),
          static_cast<T>(1.0 / (1.0 - std::pow(c.beta2, steps))),
          static_cast<T>(s.rate),
          static_cast<T>(c.coupled ? 1.0 : 1.0 - s.rate * s.weight_decay),
          static_cast<T>(c.coupled ? s.weight_decay : 0.0),
          s.third.data != nullptr};
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
