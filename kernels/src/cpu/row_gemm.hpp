#pragma once

#include <cstdint>

#include "cpu/batch_gemm.hpp"

namespace tessera::kernels::cpu {

/// The taps of a convolution that lie side by side along the last dimension, at rising coordinates.
struct TapRow {
  static constexpr int kMost = 3;
  int taps = 0;
  std::int64_t in[kMost];      ///< offset of the first pixel that each tap reads
  std::int64_t weight[kMost];  ///< index of the tap
};

/// c[r, v] = start[v] + sum over rows of taps, then k < depth, then the taps of the row, of
/// a[in + r * a_row + k] * b[(weight * depth + k) * width + v], v < width = vectors * kVectorLanes:
/// one chain of multiply-adds per element, in this order whatever the shape. Where the next tap
/// reads what the next pixel's tap does, an input element is loaded once for all its taps.
template <class T>
struct RowGemm {
  const T* a = nullptr;
  const T* b = nullptr;
  T* c = nullptr;
  const T* start = nullptr;  ///< null: zero
  const TapRow* rows = nullptr;
  std::int64_t row_count = 0;
  std::int64_t depth = 0;
  std::int64_t a_row = 0;
  std::int64_t c_row = 0;
  int last = kVectorLanes<T>;  ///< elements of the last vector that are written
};

inline constexpr int kMaxRowGemmVectors = 2;

/// Most pixels of one call.
constexpr int max_row_gemm_pixels(int vectors) {
  if (kVectorRegisters == 16) return vectors == 1 ? 10 : 4;
  return vectors == 1 ? 19 : 12;
}

/// Runs one product; 1 <= vectors <= kMaxRowGemmVectors, 1 <= pixels <= max_row_gemm_pixels.
template <class T>
void row_gemm(const RowGemm<T>& g, int vectors, int pixels);

}  // namespace tessera::kernels::cpu
