#pragma once

#include <cstdint>

#include "cpu/simd.hpp"

namespace tessera::kernels::cpu {

inline constexpr int kMaxPathL = 4;

/// One path of a convolution on a block of edges. Rows of `u` and `g` are [lm, stride] with the
/// channels padded to whole registers; `matrix` is the 3j symbol contracted with the harmonics.
template <class T>
struct PathBlock {
  std::int64_t edges = 0;
  std::int64_t stride = 0;      ///< channels, padded: registers * lanes
  int vectors = 1;              ///< registers per panel of `radial`
  const T* radial = nullptr;    ///< [panel][edge][vectors * lanes]
  const T* matrix = nullptr;    ///< [edge][2 l1 + 1][2 l3 + 1]
  const T* const* u = nullptr;  ///< row of the sender, per edge
  const T* const* g = nullptr;  ///< row of the receiver, per edge
  T* const* out_g = nullptr;    ///< forward: row of the receiver's result, added to
  std::int64_t u_offset = 0;    ///< to l1 in a row of u
  std::int64_t g_offset = 0;    ///< to the path in a row of g
  T* grad_u = nullptr;          ///< [edge][grad_u_row], added to; null: not wanted
  std::int64_t grad_u_row = 0;
  T* grad_radial = nullptr;  ///< [edge][grad_radial_row], set
  std::int64_t grad_radial_row = 0;
  T* grad_matrix = nullptr;  ///< [edge][2 l1 + 1][2 l3 + 1], set
};

/// M[receiver] += sum over its edges: edges of one receiver are neighbours.
template <class T>
void path_forward(int l1, int l3, const PathBlock<T>& block);
/// All gradients of the block that are not null.
template <class T>
void path_backward(int l1, int l3, const PathBlock<T>& block);

}  // namespace tessera::kernels::cpu
