#pragma once

#include <tessera/kernels/group_norm.hpp>

#include "functors/unary.hpp"

namespace tessera::kernels {

struct Moments {
  double count = 0;
  double mean = 0;
  double m2 = 0;
};

/// Moments of the union (Chan, Golub & LeVeque 1979).
TESSERA_HD Moments merge(Moments a, Moments b) {
  if (b.count == 0) return a;
  if (a.count == 0) return b;
  const double n = a.count + b.count;
  const double delta = b.mean - a.mean;
  return {n, a.mean + delta * (b.count / n), a.m2 + b.m2 + delta * delta * (a.count * b.count / n)};
}

template <NormActivation kActivation, class T>
TESSERA_HD T norm_activation(T z) {
  if constexpr (kActivation == NormActivation::kRelu) {
    return z < T(0) ? T(0) : z;
  } else if constexpr (kActivation == NormActivation::kSilu) {
    return Unary<UnaryKind::kSilu, 0, T>{}(z);
  } else if constexpr (kActivation == NormActivation::kGelu) {
    return Unary<UnaryKind::kGelu, 0, T>{}(z);
  } else {
    return z;
  }
}

template <NormActivation kActivation, class T>
TESSERA_HD T norm_activation_slope(T z) {
  if constexpr (kActivation == NormActivation::kRelu) {
    return z > T(0) ? T(1) : T(0);
  } else if constexpr (kActivation == NormActivation::kSilu) {
    return Unary<UnaryKind::kSilu, 1, T>{}(z);
  } else if constexpr (kActivation == NormActivation::kGelu) {
    return Unary<UnaryKind::kGelu, 1, T>{}(z);
  } else {
    return T(1);
  }
}

/// What one channel of one sample needs: xhat = (x - mean - low) rstd, z = xhat gamma + beta; low
/// is what the mean rounded to T leaves out.
template <class T>
struct NormChannel {
  T mean;
  T low;
  T rstd;
  T gamma;
  T beta;
};

}  // namespace tessera::kernels
