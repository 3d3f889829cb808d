#pragma once

// The innermost loops of the convolution, for one element type per source file: every pair (l1, l3)
// is compiled, so that accumulators stay in registers.

#include <array>
#include <utility>

#include "cpu/edge_paths.hpp"

namespace tessera::kernels::cpu {

namespace {

template <class T, int kL1, int kL3, int kVectors>
void forward(const PathBlock<T>& block) {
  using S = Simd<T>;
  using Vector = typename S::Type;
  constexpr int kRows = 2 * kL1 + 1;
  constexpr int kColumns = 2 * kL3 + 1;
  constexpr int kLanes = kVectorLanes<T>;
  constexpr std::int64_t kPanel = kVectors * kLanes;
  for (std::int64_t k = 0; k < block.stride; k += kPanel) {
    const T* radial = block.radial + k * block.edges;
    const T* matrix = block.matrix;
    for (std::int64_t e = 0; e < block.edges;) {
      T* const out = block.out_g[e];
      T* const m = out + block.g_offset + k;
      Vector sum[kColumns][kVectors];
#pragma GCC unroll 9
      for (int c = 0; c < kColumns; ++c)
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) sum[c][v] = S::load(m + c * block.stride + v * kLanes);
      do {
        const T* const u = block.u[e] + block.u_offset + k;
#pragma GCC unroll 9
        for (int a = 0; a < kRows; ++a) {
          Vector x[kVectors];
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v)
            x[v] = S::load(radial + v * kLanes) * S::load(u + a * block.stride + v * kLanes);
#pragma GCC unroll 9
          for (int c = 0; c < kColumns; ++c) {
            // l1 = 0 or l3 = 0: the matrix is a vector; l1 = l3 with l2 = 0 is not worth a case.
            const T factor = matrix[a * kColumns + c];
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) sum[c][v] += factor * x[v];
          }
        }
        radial += kPanel;
        matrix += kRows * kColumns;
        ++e;
      } while (e < block.edges && block.out_g[e] == out);
#pragma GCC unroll 9
      for (int c = 0; c < kColumns; ++c)
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) S::store(m + c * block.stride + v * kLanes, sum[c][v]);
    }
  }
}

template <class T, int kL1, int kL3, bool kMatrix, bool kFeatures>
void backward(const PathBlock<T>& block) {
  using S = Simd<T>;
  using Vector = typename S::Type;
  constexpr int kRows = 2 * kL1 + 1;
  constexpr int kColumns = 2 * kL3 + 1;
  constexpr int kLanes = kVectorLanes<T>;
  const std::int64_t panel = block.vectors * kLanes;
  for (std::int64_t e = 0; e < block.edges; ++e) {
    const T* const matrix = block.matrix + e * kRows * kColumns;
    const T* const u = block.u[e] + block.u_offset;
    const T* const g = block.g[e] + block.g_offset;
    T* const grad_u =
        block.grad_u == nullptr ? nullptr : block.grad_u + e * block.grad_u_row + block.u_offset;
    T* const grad_radial =
        block.grad_radial == nullptr ? nullptr : block.grad_radial + e * block.grad_radial_row;
    Vector outer[kRows][kColumns];
    if constexpr (kMatrix) {
#pragma GCC unroll 9
      for (int a = 0; a < kRows; ++a)
#pragma GCC unroll 9
        for (int c = 0; c < kColumns; ++c) outer[a][c] = Vector{};
    }
    const T* radial = block.radial + e * panel;
    std::int64_t in_panel = 0;
    for (std::int64_t k = 0; k < block.stride; k += kLanes) {
      const Vector r = S::load(radial + in_panel);
      in_panel += kLanes;
      if (in_panel == panel) {
        in_panel = 0;
        radial += panel * block.edges;
      }
      Vector x[kRows], scaled[kRows], sum[kRows];
#pragma GCC unroll 9
      for (int a = 0; a < kRows; ++a) {
        x[a] = S::load(u + a * block.stride + k);
        scaled[a] = r * x[a];
        sum[a] = Vector{};
      }
#pragma GCC unroll 9
      for (int c = 0; c < kColumns; ++c) {
        const Vector y = S::load(g + c * block.stride + k);
#pragma GCC unroll 9
        for (int a = 0; a < kRows; ++a) {
          if constexpr (kMatrix) outer[a][c] += scaled[a] * y;
          if constexpr (kFeatures) sum[a] += matrix[a * kColumns + c] * y;
        }
      }
      if constexpr (kFeatures) {
        if (grad_radial != nullptr) {
          Vector s = sum[0] * x[0];
#pragma GCC unroll 9
          for (int a = 1; a < kRows; ++a) s += sum[a] * x[a];
          S::store(grad_radial + k, s);
        }
        if (grad_u != nullptr) {
#pragma GCC unroll 9
          for (int a = 0; a < kRows; ++a) {
            T* const to = grad_u + a * block.stride + k;
            S::store(to, S::load(to) + r * sum[a]);
          }
        }
      }
    }
    if constexpr (kMatrix) {
      T* const to = block.grad_matrix + e * kRows * kColumns;
      for (int a = 0; a < kRows; ++a)
        for (int c = 0; c < kColumns; ++c) to[a * kColumns + c] = S::sum(outer[a][c]);
    }
  }
}

template <class T>
using PathFunction = void (*)(const PathBlock<T>&);
constexpr int kSide = kMaxPathL + 1;

template <class T, int... kIndex>
constexpr auto forward_table(std::integer_sequence<int, kIndex...>) {
  return std::array<PathFunction<T>, 2 * kSide * kSide>{
      &forward<T, kIndex % (kSide * kSide) / kSide, kIndex % kSide,
               1 + kIndex / (kSide * kSide)>...};
}

template <class T, bool kMatrix, bool kFeatures, int... kIndex>
constexpr auto backward_table(std::integer_sequence<int, kIndex...>) {
  return std::array<PathFunction<T>, kSide * kSide>{
      &backward<T, kIndex / kSide, kIndex % kSide, kMatrix, kFeatures>...};
}

}  // namespace

template <class T>
void path_forward(int l1, int l3, const PathBlock<T>& block) {
  static constexpr auto kTable =
      forward_table<T>(std::make_integer_sequence<int, 2 * kSide * kSide>{});
  kTable[static_cast<std::size_t>(((block.vectors - 1) * kSide + l1) * kSide + l3)](block);
}

template <class T>
void path_backward(int l1, int l3, const PathBlock<T>& block) {
  using Index = std::make_integer_sequence<int, kSide * kSide>;
  static constexpr auto kBoth = backward_table<T, true, true>(Index{});
  static constexpr auto kMatrixOnly = backward_table<T, true, false>(Index{});
  static constexpr auto kFeaturesOnly = backward_table<T, false, true>(Index{});
  const bool features = block.grad_u != nullptr || block.grad_radial != nullptr;
  const auto at = static_cast<std::size_t>(l1 * kSide + l3);
  (block.grad_matrix == nullptr ? kFeaturesOnly : features ? kBoth : kMatrixOnly)[at](block);
}

}  // namespace tessera::kernels::cpu
