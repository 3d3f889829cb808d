#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "language_math.hpp"

// Maths that functors use. One source runs on the CPU and on the GPU; on x86-64 with glibc >= 2.35
// loops over these functions become calls of the vector library (libmvec), which knows them all.

TESSERA_VECTOR_MATH(exp)
TESSERA_VECTOR_MATH(expm1)
TESSERA_VECTOR_MATH(log)
TESSERA_VECTOR_MATH(log1p)
TESSERA_VECTOR_MATH(sin)
TESSERA_VECTOR_MATH(cos)
TESSERA_VECTOR_MATH(tanh)
TESSERA_VECTOR_MATH(erf)
TESSERA_VECTOR_MATH2(pow)
TESSERA_VECTOR_MATH2(atan2)

namespace tessera::kernels::m {

#define TESSERA_MATH1(f)                                            \
  TESSERA_HD double f(double x) { return TESSERA_MATH_NAME(f)(x); } \
  TESSERA_HD float f(float x) { return TESSERA_MATH_NAMEF(f)(x); }
#define TESSERA_MATH2(f)                                                         \
  TESSERA_HD double f(double x, double y) { return TESSERA_MATH_NAME(f)(x, y); } \
  TESSERA_HD float f(float x, float y) { return TESSERA_MATH_NAMEF(f)(x, y); }

TESSERA_MATH1(exp)
TESSERA_MATH1(expm1)
TESSERA_MATH1(log)
TESSERA_MATH1(log1p)
TESSERA_MATH1(sin)
TESSERA_MATH1(cos)
TESSERA_MATH1(tanh)
TESSERA_MATH1(erf)
TESSERA_MATH2(pow)
TESSERA_MATH2(atan2)

#undef TESSERA_MATH1
#undef TESSERA_MATH2
#undef TESSERA_VECTOR_MATH
#undef TESSERA_VECTOR_MATH2
#undef TESSERA_MATH_NAME
#undef TESSERA_MATH_NAMEF

// These are single instructions everywhere.
TESSERA_HD double sqrt(double x) { return ::sqrt(x); }
TESSERA_HD float sqrt(float x) { return ::sqrtf(x); }
TESSERA_HD double floor(double x) { return ::floor(x); }
TESSERA_HD float floor(float x) { return ::floorf(x); }
TESSERA_HD double ceil(double x) { return ::ceil(x); }
TESSERA_HD float ceil(float x) { return ::ceilf(x); }
TESSERA_HD double rint(double x) { return ::rint(x); }
TESSERA_HD float rint(float x) { return ::rintf(x); }
TESSERA_HD double abs(double x) { return ::fabs(x); }
TESSERA_HD float abs(float x) { return ::fabsf(x); }

/// `condition ? a : b` without a branch. A plain conditional would let the compiler move a call of
/// the vector library into one arm, and the loop would no longer be vectorised.
template <class T>
TESSERA_HD T select(bool condition, T a, T b) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  const Bits mask = condition ? ~Bits{0} : Bits{0};
  return std::bit_cast<T>((std::bit_cast<Bits>(a) & mask) | (std::bit_cast<Bits>(b) & ~mask));
}

}  // namespace tessera::kernels::m
