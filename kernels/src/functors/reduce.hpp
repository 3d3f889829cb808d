#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "math.hpp"

namespace tessera::kernels {

/// Reductions: `Value` is what is read, `Acc` what is kept.
template <class T>
struct SumOf {
  using Value = T;
  using Acc = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
  static constexpr Acc identity() { return Acc(0); }
  TESSERA_HD static Acc merge(Acc a, Acc b) { return a + b; }
};

template <class T>
struct MaxOf {
  using Value = T;
  using Acc = T;
  static constexpr Acc identity() {
    return std::is_integral_v<T> ? std::numeric_limits<T>::lowest()
                                 : -std::numeric_limits<T>::infinity();
  }
  TESSERA_HD static Acc merge(Acc a, Acc b) { return a > b || a != a ? a : b; }
};

template <class T>
struct MinOf {
  using Value = T;
  using Acc = T;
  static constexpr Acc identity() {
    return std::is_integral_v<T> ? std::numeric_limits<T>::max()
                                 : std::numeric_limits<T>::infinity();
  }
  TESSERA_HD static Acc merge(Acc a, Acc b) { return a < b || a != a ? a : b; }
};

}  // namespace tessera::kernels
