#include "cpu/batch_gemm.hpp"

#include <array>
#include <utility>

namespace tessera::kernels::cpu {

namespace {

/// Which of the steps are known; fewer free ones mean fewer integer registers and instructions.
enum class Walk {
  kPacked,      ///< a_col is 1, b is packed
  kStrided,     ///< a_row is 1
  kStridedTail  ///< the same, and b holds only `last` columns
};

/// Accumulators stay in registers over the whole batch. Rows share a base pointer in threes, so
/// that their addresses need few integer registers.
template <class T, int kRows, int kVectors, Walk kWalk>
void run(const BatchGemm<T>& g) {
  using S = Simd<T>;
  using Vector = typename S::Type;
  constexpr bool kPacked = kWalk == Walk::kPacked;
  constexpr int kGroup = kPacked ? 3 : kRows;
  constexpr int kGroups = (kRows + kGroup - 1) / kGroup;
  const std::int64_t a_row = kPacked ? g.a_row : 1;
  const std::int64_t a_col = kPacked ? 1 : g.a_col;
  const std::int64_t b_col = kPacked ? kVectors * kVectorLanes<T> : g.b_col;

  Vector sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v)
      sum[r][v] = g.start != nullptr ? S::load(g.start + v * kVectorLanes<T>) : Vector{};

  for (std::int64_t t = 0; t < g.batch; ++t) {
    const T* a[kGroups];
    for (int i = 0; i < kGroups; ++i) a[i] = g.a + g.a_offset[t] + i * kGroup * a_row;
    const T* b = g.b + g.b_offset[t];
#pragma GCC unroll 2
    for (std::int64_t k = 0; k < g.depth; ++k) {
      Vector column[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        column[v] = kWalk == Walk::kStridedTail ? S::load_first(b, g.last)
                                                : S::load(b + v * kVectorLanes<T>);
#pragma GCC unroll 32
      for (int r = 0; r < kRows; ++r) {
        const T x = a[r / kGroup][(r % kGroup) * a_row];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[r][v] += x * column[v];
      }
#pragma GCC unroll 8
      for (int i = 0; i < kGroups; ++i) a[i] += a_col;
      b += b_col;
    }
  }

  const bool whole = g.last == kVectorLanes<T>;
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      T* c = g.c + r * g.c_row + v * kVectorLanes<T>;
      if (v == kVectors - 1 && !whole) {
        if (g.accumulate) sum[r][v] += S::load_first(c, g.last);
        S::store_first(c, sum[r][v], g.last);
      } else {
        if (g.accumulate) sum[r][v] += S::load(c);
        S::store(c, sum[r][v]);
      }
    }
  }
}

template <class T>
using Run = void (*)(const BatchGemm<T>&);

template <class T, int kVectors, Walk kWalk, int... kIndex>
constexpr auto table(std::integer_sequence<int, kIndex...>) {
  return std::array<Run<T>, sizeof...(kIndex)>{&run<T, kIndex + 1, kVectors, kWalk>...};
}

template <class T, int kVectors, Walk kWalk>
constexpr auto kTable =
    table<T, kVectors, kWalk>(std::make_integer_sequence<int, max_gemm_rows(kVectors)>{});

}  // namespace

template <class T>
void batch_gemm(const BatchGemm<T>& g, int vectors, int rows) {
  const auto row = static_cast<std::size_t>(rows - 1);
  const bool packed = g.a_col == 1 && g.b_col == vectors * kVectorLanes<T>;
  switch (vectors) {
    case 1:
      return (packed ? kTable<T, 1, Walk::kPacked> : kTable<T, 1, Walk::kStrided>)[row](g);
    case 2:
      return (packed ? kTable<T, 2, Walk::kPacked> : kTable<T, 2, Walk::kStrided>)[row](g);
    default:
      return (packed ? kTable<T, 3, Walk::kPacked> : kTable<T, 3, Walk::kStrided>)[row](g);
  }
}

template <class T>
void batch_gemm_tail(const BatchGemm<T>& g, int rows) {
  kTable<T, 1, Walk::kStridedTail>[static_cast<std::size_t>(rows - 1)](g);
}

template void batch_gemm<float>(const BatchGemm<float>&, int, int);
template void batch_gemm<double>(const BatchGemm<double>&, int, int);
template void batch_gemm_tail<float>(const BatchGemm<float>&, int);
template void batch_gemm_tail<double>(const BatchGemm<double>&, int);

}  // namespace tessera::kernels::cpu
