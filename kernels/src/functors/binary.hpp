#pragma once

#include <tessera/kernels/elementwise.hpp>

#include "math.hpp"

namespace tessera::kernels {

template <BinaryKind kKind, class T>
struct Binary {
  TESSERA_HD T operator()(T a, T b) const {
    using K = BinaryKind;
    if constexpr (kKind == K::kAdd) {
      return a + b;
    } else if constexpr (kKind == K::kSub) {
      return a - b;
    } else if constexpr (kKind == K::kMul) {
      return a * b;
    } else if constexpr (kKind == K::kDiv) {
      return a / b;
    } else if constexpr (kKind == K::kPow) {
      return m::pow(a, b);
    } else if constexpr (kKind == K::kMaximum) {
      return a > b || a != a ? a : b;
    } else if constexpr (kKind == K::kMinimum) {
      return a < b || a != a ? a : b;
    } else {
      static_assert(kKind == K::kAtan2);
      return m::atan2(a, b);
    }
  }
};

template <CompareKind kKind, class T>
struct Compare {
  TESSERA_HD T operator()(T a, T b) const {
    using K = CompareKind;
    if constexpr (kKind == K::kEq) {
      return a == b ? T(1) : T(0);
    } else if constexpr (kKind == K::kNe) {
      return a != b ? T(1) : T(0);
    } else if constexpr (kKind == K::kLt) {
      return a < b ? T(1) : T(0);
    } else if constexpr (kKind == K::kLe) {
      return a <= b ? T(1) : T(0);
    } else if constexpr (kKind == K::kGt) {
      return a > b ? T(1) : T(0);
    } else {
      return a >= b ? T(1) : T(0);
    }
  }
};

/// On 0 and 1.
template <LogicalKind kKind>
struct Logical {
  TESSERA_HD std::int64_t operator()(std::int64_t a, std::int64_t b) const {
    return kKind == LogicalKind::kAnd ? a & b : kKind == LogicalKind::kOr ? a | b : a ^ b;
  }
};

struct LogicalNot {
  TESSERA_HD std::int64_t operator()(std::int64_t a) const { return a ^ 1; }
};

template <class T>
struct Where {
  TESSERA_HD T operator()(T condition, T a, T b) const { return condition != T(0) ? a : b; }
};

template <class T>
struct Clamp {
  T low;
  T high;
  TESSERA_HD T operator()(T x) const { return x < low ? low : x > high ? high : x; }
};

template <class T>
struct ClampGrad {
  T low;
  T high;
  TESSERA_HD T operator()(T g, T x) const { return x >= low && x <= high ? g : T(0); }
};

template <class T>
struct Affine {
  T alpha;
  T beta;
  TESSERA_HD T operator()(T x) const { return alpha * x + beta; }
};

template <class T>
struct Axpby {
  T alpha;
  T beta;
  TESSERA_HD T operator()(T a, T b) const { return alpha * a + beta * b; }
};

template <class T>
struct MulAdd {
  TESSERA_HD T operator()(T a, T b, T c) const { return a * b + c; }
};

template <class T>
struct Identity {
  TESSERA_HD T operator()(T x) const { return x; }
};

template <class T>
struct Constant {
  T value;
  TESSERA_HD T operator()() const { return value; }
};

#define TESSERA_FOR_EACH_COMPARE(X) X(kEq) X(kNe) X(kLt) X(kLe) X(kGt) X(kGe)

}  // namespace tessera::kernels
