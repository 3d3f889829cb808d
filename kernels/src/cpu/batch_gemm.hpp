#pragma once

#include <cstdint>
#include <utility>

#include "cpu/simd.hpp"

namespace tessera::kernels::cpu {

/// c[r, v] (+)= start[v] + sum over t < batch, k < depth of a[a_offset[t] + r * a_row + k * a_col]
/// * b[b_offset[t] + k * b_col + v], for r < rows and v < vectors * kLanes: a sum of small matrix
/// products whose left factors are read in place from strided memory. Each element is one chain of
/// multiply-adds in the order (t, k).
template <class T>
struct BatchGemm {
  const T* a = nullptr;
  const T* b = nullptr;
  T* c = nullptr;
  const T* start = nullptr;  ///< null: zero
  const std::int64_t* a_offset = nullptr;
  const std::int64_t* b_offset = nullptr;
  std::int64_t batch = 0;
  std::int64_t depth = 0;
  std::int64_t a_row = 0;
  std::int64_t a_col = 1;
  std::int64_t b_col = 0;
  std::int64_t c_row = 0;
  int last = kVectorLanes<T>;  ///< elements of the last vector that are written
  bool accumulate = false;     ///< add to c
};

/// Registers of columns that one call may cover.
inline constexpr int kMaxGemmVectors = 3;

/// Most rows of one call with `vectors` registers of columns.
constexpr int max_gemm_rows(int vectors) {
  constexpr int limit[2][kMaxGemmVectors] = {{12, 6, 4}, {21, 14, 9}};
  return limit[kVectorRegisters == 32 ? 1 : 0][vectors - 1];
}

/// Runs one product; 1 <= vectors <= kMaxGemmVectors, 1 <= rows <= max_gemm_rows(vectors). Either
/// a_col is 1 and b_col is vectors * kVectorLanes, or a_row is 1.
template <class T>
void batch_gemm(const BatchGemm<T>& g, int vectors, int rows);

/// The same with a_row = 1 and one register of columns of which b holds only the first `last`.
template <class T>
void batch_gemm_tail(const BatchGemm<T>& g, int rows);

/// Cuts `count` rows into pieces of nearly equal height, none above `most`, and calls f(first,
/// rows).
template <class F>
void for_row_blocks(std::int64_t count, std::int64_t most, const F& f) {
  const std::int64_t blocks = (count + most - 1) / most;
  for (std::int64_t i = 0, first = 0; i < blocks; ++i) {
    const std::int64_t rows = count / blocks + (i < count % blocks ? 1 : 0);
    f(first, static_cast<int>(rows));
    first += rows;
  }
}

/// f(std::integral_constant<int, rows>) for 1 <= rows <= kMost.
template <int kMost, class F>
void with_rows(int rows, const F& f) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    ((rows == kIndex + 1 ? f(std::integral_constant<int, kIndex + 1>{}) : void()), ...);
  }
  (std::make_integer_sequence<int, kMost>{});
}

}  // namespace tessera::kernels::cpu
