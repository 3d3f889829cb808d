#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace tessera::kernels::cpu {

#if defined(__AVX512F__)
inline constexpr std::size_t kVectorBytes = 64;
inline constexpr int kVectorRegisters = 32;
#elif defined(__AVX__)
inline constexpr std::size_t kVectorBytes = 32;
inline constexpr int kVectorRegisters = 16;
#else
inline constexpr std::size_t kVectorBytes = 16;
inline constexpr int kVectorRegisters = 16;
#endif

/// Elements of type T in a vector register.
template <class T>
inline constexpr int kVectorLanes = static_cast<int>(kVectorBytes / sizeof(T));

/// A register of T, read and written through pointers of any alignment.
template <class T>
struct Simd {
  typedef T Type __attribute__((vector_size(kVectorBytes), aligned(alignof(T)), may_alias));

  static Type load(const T* p) { return *reinterpret_cast<const Type*>(p); }
  static void store(T* p, Type v) { *reinterpret_cast<Type*>(p) = v; }

  /// The first `count` elements, zeros behind; touches no memory beyond them.
  static Type load_first(const T* p, int count) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
      return Type(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1u), p));
    } else {
      return Type(_mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << count) - 1u), p));
    }
#else
    Type v{};
    std::memcpy(&v, p, static_cast<std::size_t>(count) * sizeof(T));
    return v;
#endif
  }
  static void store_first(T* p, Type v, int count) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
      _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1u), __m512(v));
    } else {
      _mm512_mask_storeu_pd(p, static_cast<__mmask8>((1u << count) - 1u), __m512d(v));
    }
#else
    std::memcpy(p, &v, static_cast<std::size_t>(count) * sizeof(T));
#endif
  }
  /// The sum of all lanes, by halves.
  static T sum(Type v) {
    using Lane = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
    typedef Lane Lanes __attribute__((vector_size(kVectorBytes)));
    Lanes own;
    for (int i = 0; i < kVectorLanes<T>; ++i) own[i] = static_cast<Lane>(i);
    for (int half = kVectorLanes<T> / 2; half > 0; half /= 2)
      v += __builtin_shuffle(v, own ^ static_cast<Lane>(half));
    return v[0];
  }
};

}  // namespace tessera::kernels::cpu
