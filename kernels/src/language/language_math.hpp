#pragma once

// What C++ has for math.hpp; ../../cuda/language has the same for CUDA.

#include <cmath>

#define TESSERA_HD inline __attribute__((always_inline))

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) && \
    (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 35)
// glibc declares the vector variants under -ffast-math only, which would also give up NaN and
// infinity; the variants themselves handle both.
#define TESSERA_VECTOR_MATH(name)                                                          \
  extern "C" __attribute__((simd("notinbranch"), const, nothrow)) double tessera_##name(   \
      double) __asm__(#name);                                                              \
  extern "C" __attribute__((simd("notinbranch"), const, nothrow)) float tessera_##name##f( \
      float) __asm__(#name "f");
#define TESSERA_VECTOR_MATH2(name)                                                         \
  extern "C" __attribute__((simd("notinbranch"), const, nothrow)) double tessera_##name(   \
      double, double) __asm__(#name);                                                      \
  extern "C" __attribute__((simd("notinbranch"), const, nothrow)) float tessera_##name##f( \
      float, float) __asm__(#name "f");
#define TESSERA_MATH_NAME(name) tessera_##name
#define TESSERA_MATH_NAMEF(name) tessera_##name##f
#else
#define TESSERA_VECTOR_MATH(name)
#define TESSERA_VECTOR_MATH2(name)
#define TESSERA_MATH_NAME(name) ::name
#define TESSERA_MATH_NAMEF(name) ::name##f
#endif
