#pragma once

#include "cpu/simd.hpp"

namespace tessera::kernels::cpu {

/// What a jet is made of: numbers, or whole registers.
template <class T>
struct Registers {};
template <class E>
struct JetPart {
  using Type = E;
};
template <class T>
struct JetPart<Registers<T>> {
  using Type = typename Simd<T>::Type;
};

/// A value and its derivatives along kOrder directions, each taken at most once: part[s] is the
/// mixed derivative along the directions in the bit set s. Products follow from e_i e_i = 0.
template <class E, int kOrder>
struct alignas(sizeof(typename JetPart<E>::Type)) Jet {
  using V = typename JetPart<E>::Type;
  static constexpr unsigned kParts = 1u << kOrder;
  static constexpr unsigned kTop = kParts - 1;
  V part[kParts];

  static Jet constant(V value) {
    Jet x{};
    x.part[0] = value;
    return x;
  }
};

template <class E, int kOrder>
inline Jet<E, kOrder> operator*(const Jet<E, kOrder>& a, const Jet<E, kOrder>& b) {
  Jet<E, kOrder> c;
  for (unsigned s = 0; s < c.kParts; ++s) {
    typename Jet<E, kOrder>::V sum = a.part[s] * b.part[0];
    for (unsigned t = 0; t < s; ++t)
      if ((t & s) == t) sum += a.part[t] * b.part[s ^ t];
    c.part[s] = sum;
  }
  return c;
}

/// The last part of a product alone.
template <class E, int kOrder>
inline typename Jet<E, kOrder>::V top_of_product(const Jet<E, kOrder>& a, const Jet<E, kOrder>& b) {
  typename Jet<E, kOrder>::V sum = a.part[0] * b.part[a.kTop];
  for (unsigned s = 1; s < a.kParts; ++s) sum += a.part[s] * b.part[a.kTop ^ s];
  return sum;
}

template <class E, int kOrder>
inline Jet<E, kOrder> operator+(Jet<E, kOrder> a, const Jet<E, kOrder>& b) {
  for (unsigned s = 0; s < a.kParts; ++s) a.part[s] += b.part[s];
  return a;
}

template <class E, int kOrder>
inline Jet<E, kOrder> operator-(Jet<E, kOrder> a, const Jet<E, kOrder>& b) {
  for (unsigned s = 0; s < a.kParts; ++s) a.part[s] -= b.part[s];
  return a;
}

/// x and a constant.
template <class E, int kOrder, class C>
inline Jet<E, kOrder> scaled(C factor, Jet<E, kOrder> a) {
  for (unsigned s = 0; s < a.kParts; ++s) a.part[s] = factor * a.part[s];
  return a;
}

}  // namespace tessera::kernels::cpu
