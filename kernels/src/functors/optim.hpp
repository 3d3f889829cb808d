#pragma once

#include "math.hpp"

namespace tessera::kernels {

template <class T>
struct AdamWStep {
  T beta1, beta2, eps, inverse_c1, inverse_c2;
  T rate, keep;

  TESSERA_HD void operator()(T& p, T g, T& m, T& v) const {
    m = beta1 * m + (T(1) - beta1) * g;
    v = beta2 * v + (T(1) - beta2) * g * g;
    p = p * keep - rate * (m * inverse_c1) / (tessera::kernels::m::sqrt(v * inverse_c2) + eps);
  }
};

template <class T>
struct SgdStep {
  T momentum;
  T rate, weight_decay;
  bool has_velocity, nesterov;

  TESSERA_HD void operator()(T& p, T g, T& v, T&) const {
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
  TESSERA_HD void operator()(T& p, T g, T&, T&) const { p = decay * p + (T(1) - decay) * g; }
};

}  // namespace tessera::kernels
