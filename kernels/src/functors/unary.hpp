#pragma once

#include <tessera/kernels/elementwise.hpp>

#include "math.hpp"

// f^(n)(x) of every UnaryKind, n = 0..3, in closed form.

namespace tessera::kernels {

/// 1 / (1 + exp(-x)) and its first three derivatives.
template <class T, int kOrder>
TESSERA_HD T sigmoid_derivative(T x) {
  const T s = T(1) / (T(1) + m::exp(-x));
  if constexpr (kOrder == 0) return s;
  if constexpr (kOrder == 1) return s * (T(1) - s);
  if constexpr (kOrder == 2) return s * (T(1) - s) * (T(1) - T(2) * s);
  if constexpr (kOrder == 3) return s * (T(1) - s) * (T(1) - T(6) * s * (T(1) - s));
}

template <class T, int kOrder>
TESSERA_HD T gelu_derivative(T x) {
  constexpr T kInvSqrt2 = T(0.70710678118654752440);
  constexpr T kInvSqrt2Pi = T(0.39894228040143267794);
  if constexpr (kOrder == 0) return T(0.5) * x * (T(1) + m::erf(x * kInvSqrt2));
  const T phi = kInvSqrt2Pi * m::exp(T(-0.5) * x * x);
  if constexpr (kOrder == 1) return T(0.5) * (T(1) + m::erf(x * kInvSqrt2)) + x * phi;
  if constexpr (kOrder == 2) return phi * (T(2) - x * x);
  if constexpr (kOrder == 3) return phi * x * (x * x - T(4));
}

template <class T, int kOrder>
TESSERA_HD T gelu_tanh_derivative(T x) {
  constexpr T kScale = T(0.79788456080286535588);  // sqrt(2 / pi)
  constexpr T kCubic = T(0.044715);
  const T t = m::tanh(kScale * (x + kCubic * x * x * x));
  if constexpr (kOrder == 0) return T(0.5) * x * (T(1) + t);
  const T u1 = kScale * (T(1) + T(3) * kCubic * x * x);
  const T u2 = T(6) * kScale * kCubic * x;
  constexpr T u3 = T(6) * kScale * kCubic;
  const T q = T(1) - t * t;
  const T t1 = q * u1;
  if constexpr (kOrder == 1) return T(0.5) * (T(1) + t) + T(0.5) * x * t1;
  const T r = u2 - T(2) * t * u1 * u1;
  const T t2 = q * r;
  if constexpr (kOrder == 2) return t1 + T(0.5) * x * t2;
  const T t3 = q * (u3 - T(2) * q * u1 * u1 * u1 - T(4) * t * u1 * u2 - T(2) * t * u1 * r);
  if constexpr (kOrder == 3) return T(1.5) * t2 + T(0.5) * x * t3;
}

template <class T, int kOrder>
TESSERA_HD T power_derivative(T x, T p) {
  T factor = T(1);
  for (int i = 0; i < kOrder; ++i) factor *= p - T(i);
  // 0 * inf at x = 0 would hide that a polynomial's higher derivatives vanish.
  const T value = factor * m::pow(x, p - T(kOrder));
  return m::select(factor == T(0), T(0), value);
}

/// f^(kOrder) of `kKind` as a functor.
template <UnaryKind kKind, int kOrder, class T>
struct Unary {
  T alpha;

  TESSERA_HD T operator()(T x) const {
    using K = UnaryKind;
    constexpr T zero = T(0);
    constexpr T one = T(1);
    if constexpr (kKind == K::kNeg) {
      return kOrder == 0 ? -x : kOrder == 1 ? -one : zero;
    } else if constexpr (kKind == K::kAbs) {
      if constexpr (kOrder == 0) return m::abs(x);
      if constexpr (kOrder == 1) return x > zero ? one : x < zero ? -one : x;
      return zero;
    } else if constexpr (kKind == K::kExp || (kKind == K::kExpm1 && kOrder > 0)) {
      return m::exp(x);
    } else if constexpr (kKind == K::kExpm1) {
      return m::expm1(x);
    } else if constexpr (kKind == K::kLog || kKind == K::kLog1p) {
      if constexpr (kOrder == 0) return kKind == K::kLog ? m::log(x) : m::log1p(x);
      const T r = one / (kKind == K::kLog ? x : one + x);
      return kOrder == 1 ? r : kOrder == 2 ? -r * r : T(2) * r * r * r;
    } else if constexpr (kKind == K::kSqrt) {
      const T s = m::sqrt(x);
      if constexpr (kOrder == 0) return s;
      if constexpr (kOrder == 1) return T(0.5) / s;
      if constexpr (kOrder == 2) return T(-0.25) / (s * x);
      return T(0.375) / (s * x * x);
    } else if constexpr (kKind == K::kRsqrt) {
      const T r = one / m::sqrt(x);
      const T q = one / x;
      if constexpr (kOrder == 0) return r;
      if constexpr (kOrder == 1) return T(-0.5) * r * q;
      if constexpr (kOrder == 2) return T(0.75) * r * q * q;
      return T(-1.875) * r * q * q * q;
    } else if constexpr (kKind == K::kSquare) {
      return kOrder == 0 ? x * x : kOrder == 1 ? T(2) * x : kOrder == 2 ? T(2) : zero;
    } else if constexpr (kKind == K::kReciprocal) {
      const T r = one / x;
      return kOrder == 0   ? r
             : kOrder == 1 ? -r * r
             : kOrder == 2 ? T(2) * r * r * r
                           : T(-6) * r * r * r * r;
    } else if constexpr (kKind == K::kPower) {
      return power_derivative<T, kOrder>(x, alpha);
    } else if constexpr (kKind == K::kSin) {
      if constexpr (kOrder == 0) return m::sin(x);
      if constexpr (kOrder == 1) return m::cos(x);
      if constexpr (kOrder == 2) return -m::sin(x);
      return -m::cos(x);
    } else if constexpr (kKind == K::kCos) {
      if constexpr (kOrder == 0) return m::cos(x);
      if constexpr (kOrder == 1) return -m::sin(x);
      if constexpr (kOrder == 2) return -m::cos(x);
      return m::sin(x);
    } else if constexpr (kKind == K::kTanh) {
      const T t = m::tanh(x);
      if constexpr (kOrder == 0) return t;
      const T q = one - t * t;
      return kOrder == 1 ? q : kOrder == 2 ? T(-2) * t * q : q * (T(6) * t * t - T(2));
    } else if constexpr (kKind == K::kSigmoid) {
      return sigmoid_derivative<T, kOrder>(x);
    } else if constexpr (kKind == K::kRelu) {
      if constexpr (kOrder == 0) return x < zero ? zero : x;  // keeps NaN
      return kOrder == 1 && x > zero ? one : zero;
    } else if constexpr (kKind == K::kLeakyRelu) {
      if constexpr (kOrder == 0) return x > zero ? x : alpha * x;
      return kOrder > 1 ? zero : x > zero ? one : alpha;
    } else if constexpr (kKind == K::kElu) {
      if constexpr (kOrder == 0) return m::select(x > zero, x, alpha * m::expm1(x));
      return m::select(x > zero, kOrder == 1 ? one : zero, alpha * m::exp(x));
    } else if constexpr (kKind == K::kSilu) {
      // (x s)^(n) = n s^(n-1) + x s^(n)
      const T s = one / (one + m::exp(-x));
      if constexpr (kOrder == 0) return x * s;
      const T s1 = s * (one - s);
      if constexpr (kOrder == 1) return s + x * s1;
      const T s2 = s1 * (one - T(2) * s);
      if constexpr (kOrder == 2) return T(2) * s1 + x * s2;
      const T s3 = s1 * (one - T(6) * s1);
      return T(3) * s2 + x * s3;
    } else if constexpr (kKind == K::kGelu) {
      return gelu_derivative<T, kOrder>(x);
    } else if constexpr (kKind == K::kGeluTanh) {
      return gelu_tanh_derivative<T, kOrder>(x);
    } else if constexpr (kKind == K::kSoftplus) {
      if constexpr (kOrder == 0) {
        return (x < zero ? zero : x) + m::log1p(m::exp(-m::abs(x)));
      } else {
        return sigmoid_derivative<T, kOrder - 1>(x);
      }
    } else if constexpr (kKind == K::kErf) {
      if constexpr (kOrder == 0) return m::erf(x);
      const T d = T(1.12837916709551257390) * m::exp(-x * x);  // 2 / sqrt(pi)
      return kOrder == 1 ? d : kOrder == 2 ? T(-2) * x * d : (T(4) * x * x - T(2)) * d;
    } else if constexpr (kOrder > 0) {
      return zero;
    } else if constexpr (kKind == K::kSign) {
      return x > zero ? one : x < zero ? -one : x;
    } else if constexpr (kKind == K::kFloor) {
      return m::floor(x);
    } else if constexpr (kKind == K::kCeil) {
      return m::ceil(x);
    } else {
      static_assert(kKind == K::kRound);
      return m::rint(x);
    }
  }
};

/// Calls f.operator()<kind>() for every UnaryKind, in order.
// (Formatting goes back and forth between two ways.)
// clang-format off
#define TESSERA_FOR_EACH_UNARY(X)                                                     \
  X(kNeg) X(kAbs) X(kExp) X(kExpm1) X(kLog) X(kLog1p) X(kSqrt) X(kRsqrt) X(kSquare)   \
  X(kReciprocal) X(kPower) X(kSin) X(kCos) X(kTanh) X(kSigmoid) X(kRelu)              \
  X(kLeakyRelu) X(kElu) X(kSilu) X(kGelu) X(kGeluTanh) X(kSoftplus) X(kErf) X(kSign)  \
  X(kFloor) X(kCeil) X(kRound)
// clang-format on

}  // namespace tessera::kernels
