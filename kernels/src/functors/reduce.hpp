#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <tessera/core/dtype.hpp>
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

/// What a reduction of nothing gives: the identity, within the range of the result's type.
template <class Op>
typename Op::Acc result_of_nothing(DType dtype) {
  using Acc = typename Op::Acc;
  Acc value = Op::identity();
  if constexpr (std::is_integral_v<Acc>) {
    visit_dtype(dtype, [&]<class T>() {
      if constexpr (std::is_integral_v<T>) {
        value = std::clamp(value, static_cast<Acc>(std::numeric_limits<T>::lowest()),
                           static_cast<Acc>(std::numeric_limits<T>::max()));
      }
    });
  }
  return value;
}

}  // namespace tessera::kernels
