#pragma once

#include <cstdint>

#include "cpu/simd.hpp"

// The dense work of attention on tiles in cache: products with blocks in registers, exponentials.
// A tile of scores lies as [key][query], so that all that concerns a query runs along lanes.

namespace tessera::kernels::cpu {

/// Rows of a product in registers at a time; left factors and results are padded to whole blocks.
inline constexpr std::int64_t kBlockRows = kVectorRegisters == 32 ? 8 : 4;
/// Registers of columns of a product.
inline constexpr int kBlockVectors = 3;

/// n in whole registers and whole blocks.
template <class T>
constexpr std::int64_t padded(std::int64_t n) {
  constexpr std::int64_t unit = kVectorLanes < T >> kBlockRows ? kVectorLanes<T> : kBlockRows;
  return (n + unit - 1) / unit * unit;
}

/// How a left factor lies: a(r, k) = a[r * a_pitch + k] or a[k * a_pitch + r].
enum class Left { kRows, kColumns };

/// c[r, x] = start[x] + sum over k < depth of a(r, k) b[k, x]; without `start`, added to c.
template <class T>
struct BlockProduct {
  const T* a = nullptr;
  std::int64_t a_pitch = 0;
  const T* b = nullptr;
  std::int64_t b_pitch = 0;
  T* c = nullptr;
  std::int64_t c_pitch = 0;
  std::int64_t rows = 0;  ///< rounded up to whole blocks
  std::int64_t depth = 0;
  const T* start = nullptr;
};

/// Columns: `vectors` registers, at most kBlockVectors.
template <class T>
void multiply(Left left, const BlockProduct<T>& g, int vectors);

/// s = 2^s on keys x vectors; sums[query] is the sum over the keys.
template <class T>
void exponentials(T* s, std::int64_t pitch, std::int64_t keys, int vectors, T* sums);

/// s = 2^s and d = s (d - delta[query]).
template <class T>
void score_gradients(
    T* s, T* d, std::int64_t pitch, std::int64_t keys, int vectors, const T* delta);

/// top[query] = the largest of s over the keys; NaN does not count.
template <class T>
void largest_scores(const T* s, std::int64_t pitch, std::int64_t keys, int vectors, T* top);

/// dst[c, r] = scale src[r, c].
template <class T>
void transpose(const T* src,
               std::int64_t src_pitch,
               std::int64_t rows,
               std::int64_t columns,
               T scale,
               T* dst,
               std::int64_t dst_pitch);

}  // namespace tessera::kernels::cpu
