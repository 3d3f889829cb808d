#include "cpu/attention_blocks.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "math.hpp"

namespace tessera::kernels::cpu {

namespace {

/// 2^x within 1.6e-7 of itself (fp32), 1 at 0; 0 instead of denormal results; NaN stays.
inline Simd<float>::Type exp2(Simd<float>::Type x) {
  using Vector = Simd<float>::Type;
  constexpr float kLowest = -126.0f;
  // Least relative error on [0, 1) with p(0) = 1.
  const auto polynomial = [](Vector r) {
    Vector y = 1.867130072e-3f * r + 9.017030316e-3f;
    y = y * r + 5.579991311e-2f;
    y = y * r + 2.401644502e-1f;
    y = y * r + 6.931513118e-1f;
    return y * r + 1.0f;
  };
#if defined(__AVX512DQ__)
  constexpr int kMinusFloor = 9;
  const Vector y = polynomial(Vector(_mm512_reduce_ps(__m512(x), kMinusFloor)));
  const __mmask16 normal = _mm512_cmp_ps_mask(__m512(x), _mm512_set1_ps(kLowest), _CMP_NLT_UQ);
  return Vector(_mm512_maskz_scalef_ps(normal, __m512(y), __m512(x)));
#else
  typedef std::uint32_t Bits __attribute__((vector_size(kVectorBytes)));
  constexpr float kRound = 12582912.0f;  // 1.5 2^23: the sum is an integer
  const Vector least = Vector{} + kLowest, most = Vector{} + 128.0f;
  Vector inside = x < least ? least : x;
  inside = inside > most ? most : inside;
  const Vector shifted = (inside - 0.5f) + kRound;
  const Vector y = polynomial(inside - (shifted - kRound));
  const Vector power = Vector((Bits(shifted) + 127u) << 23);
  return x < least ? Vector{} : y * power;
#endif
}

inline Simd<double>::Type exp2(Simd<double>::Type x) {
  alignas(kVectorBytes) double values[kVectorLanes<double>];
  Simd<double>::store(values, x * 0.69314718055994530942);
#pragma omp simd
  for (int i = 0; i < kVectorLanes<double>; ++i) values[i] = m::exp(values[i]);
  return Simd<double>::load(values);
}

/// Calls f(std::integral_constant<int, vectors>).
template <class F>
void with_vectors(int vectors, const F& f) {
  static_assert(kBlockVectors == 3);
  switch (vectors) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    default:
      return f(std::integral_constant<int, 3>{});
  }
}

/// Few scalar instructions per multiply-add: they would take the ports of the vectors.
template <class T, Left kLeft, int kVectors>
void multiply_blocks(const BlockProduct<T>& g) {
  using S = Simd<T>;
  using Vector = typename S::Type;
  constexpr int kRows = static_cast<int>(kBlockRows);
  constexpr int kLanes = kVectorLanes<T>;
  // Rows share a pointer in threes: then their addresses need two registers of steps.
  constexpr int kGroup = kLeft == Left::kRows ? 3 : kRows;
  constexpr int kGroups = (kRows + kGroup - 1) / kGroup;
  const std::int64_t a_row = kLeft == Left::kRows ? g.a_pitch : 1;
  const std::int64_t a_step = kLeft == Left::kRows ? 1 : g.a_pitch;
  const std::int64_t b_pitch = g.b_pitch;
  const std::int64_t depth = g.depth;
  for (std::int64_t row = 0; row < g.rows; row += kRows) {
    T* const c = g.c + row * g.c_pitch;
    Vector sum[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = S::load((g.start != nullptr ? g.start : c + r * g.c_pitch) + v * kLanes);
    }
    const T* a[kGroups];
#pragma GCC unroll 3
    for (int i = 0; i < kGroups; ++i) a[i] = g.a + (row + i * kGroup) * a_row;
    const T* b = g.b;
#pragma GCC unroll 2
    for (std::int64_t k = 0; k < depth; ++k) {
      Vector column[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) column[v] = S::load(b + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const T x = a[r / kGroup][(r % kGroup) * a_row];
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) sum[r][v] += x * column[v];
      }
#pragma GCC unroll 3
      for (int i = 0; i < kGroups; ++i) a[i] += a_step;
      b += b_pitch;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) S::store(c + r * g.c_pitch + v * kLanes, sum[r][v]);
    }
  }
}

template <class T>
using Lane = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;

/// Which lanes of two registers, counted one after the other, the exchange of squares of 2^step
/// rows leaves in the upper and in the lower one.
template <class T>
struct Exchange {
  static constexpr int kLanes = kVectorLanes<T>;
  alignas(kVectorBytes) Lane<T> upper[4][kLanes] = {};
  alignas(kVectorBytes) Lane<T> lower[4][kLanes] = {};

  constexpr Exchange() {
    for (int step = 0; step < 4; ++step) {
      const int half = 1 << step;
      for (int l = 0; l < kLanes; ++l) {
        upper[step][l] = static_cast<Lane<T>>((l & half) == 0 ? l : l - half + kLanes);
        lower[step][l] = static_cast<Lane<T>>((l & half) == 0 ? l + half : l + kLanes);
      }
    }
  }
};
template <class T>
constexpr Exchange<T> kExchange;

/// A square of one register per row, by exchanges of ever smaller squares beside its diagonal.
template <class T>
void transpose_square(
    const T* src, std::int64_t src_pitch, T scale, T* dst, std::int64_t dst_pitch) {
  using S = Simd<T>;
  typedef Lane<T> Lanes __attribute__((vector_size(kVectorBytes), may_alias));
  constexpr int kLanes = kVectorLanes<T>;
  constexpr int kSteps = std::countr_zero(static_cast<unsigned>(kLanes));
  typename S::Type row[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) row[i] = S::load(src + i * src_pitch) * scale;
#pragma GCC unroll 4
  for (int step = kSteps - 1; step >= 0; --step) {
    const Lanes upper = *reinterpret_cast<const Lanes*>(kExchange<T>.upper[step]);
    const Lanes lower = *reinterpret_cast<const Lanes*>(kExchange<T>.lower[step]);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      const int half = 1 << step;
      if ((i & half) != 0) continue;
      const typename S::Type a = row[i], b = row[i + half];
      row[i] = __builtin_shuffle(a, b, upper);
      row[i + half] = __builtin_shuffle(a, b, lower);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) S::store(dst + i * dst_pitch, row[i]);
}

}  // namespace

template <class T>
void multiply(Left left, const BlockProduct<T>& g, int vectors) {
  with_vectors(vectors, [&](auto v) {
    if (left == Left::kRows) {
      multiply_blocks<T, Left::kRows, v>(g);
    } else {
      multiply_blocks<T, Left::kColumns, v>(g);
    }
  });
}

template <class T>
void exponentials(T* s, std::int64_t pitch, std::int64_t keys, int vectors, T* sums) {
  using S = Simd<T>;
  with_vectors(vectors, [&](auto count) {
    typename S::Type sum[count] = {};
    for (std::int64_t j = 0; j < keys; ++j) {
      for (int v = 0; v < count; ++v) {
        T* const at = s + j * pitch + v * kVectorLanes<T>;
        const typename S::Type p = exp2(S::load(at));
        S::store(at, p);
        sum[v] += p;
      }
    }
    for (int v = 0; v < count; ++v) S::store(sums + v * kVectorLanes<T>, sum[v]);
  });
}

template <class T>
void score_gradients(
    T* s, T* d, std::int64_t pitch, std::int64_t keys, int vectors, const T* delta) {
  using S = Simd<T>;
  with_vectors(vectors, [&](auto count) {
    typename S::Type shift[count];
    for (int v = 0; v < count; ++v) shift[v] = S::load(delta + v * kVectorLanes<T>);
    for (std::int64_t j = 0; j < keys; ++j) {
      for (int v = 0; v < count; ++v) {
        const std::int64_t at = j * pitch + v * kVectorLanes<T>;
        const typename S::Type p = exp2(S::load(s + at));
        S::store(s + at, p);
        S::store(d + at, p * (S::load(d + at) - shift[v]));
      }
    }
  });
}

template <class T>
void largest_scores(const T* s, std::int64_t pitch, std::int64_t keys, int vectors, T* top) {
  using S = Simd<T>;
  with_vectors(vectors, [&](auto count) {
    typename S::Type most[count];
    for (int v = 0; v < count; ++v)
      most[v] = typename S::Type{} - std::numeric_limits<T>::infinity();
    for (std::int64_t j = 0; j < keys; ++j) {
      for (int v = 0; v < count; ++v) {
        const typename S::Type x = S::load(s + j * pitch + v * kVectorLanes<T>);
        most[v] = x > most[v] ? x : most[v];
      }
    }
    for (int v = 0; v < count; ++v) S::store(top + v * kVectorLanes<T>, most[v]);
  });
}

template <class T>
void transpose(const T* src,
               std::int64_t src_pitch,
               std::int64_t rows,
               std::int64_t columns,
               T scale,
               T* dst,
               std::int64_t dst_pitch) {
  constexpr std::int64_t kLanes = kVectorLanes<T>;
  for (std::int64_t r = 0; r < rows; r += kLanes) {
    for (std::int64_t c = 0; c < columns; c += kLanes) {
      const T* const from = src + r * src_pitch + c;
      T* const to = dst + c * dst_pitch + r;
      if (r + kLanes <= rows && c + kLanes <= columns) {
        transpose_square(from, src_pitch, scale, to, dst_pitch);
        continue;
      }
      for (std::int64_t i = 0; i < std::min(kLanes, rows - r); ++i)
        for (std::int64_t j = 0; j < std::min(kLanes, columns - c); ++j)
          to[j * dst_pitch + i] = from[i * src_pitch + j] * scale;
    }
  }
}

#define TESSERA_INSTANTIATE(T)                                                          \
  template void multiply<T>(Left, const BlockProduct<T>&, int);                         \
  template void exponentials<T>(T*, std::int64_t, std::int64_t, int, T*);               \
  template void score_gradients<T>(T*, T*, std::int64_t, std::int64_t, int, const T*);  \
  template void largest_scores<T>(const T*, std::int64_t, std::int64_t, int, T*);       \
  template void transpose<T>(const T*, std::int64_t, std::int64_t, std::int64_t, T, T*, \
                             std::int64_t);
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(double)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels::cpu
