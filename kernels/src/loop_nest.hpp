#pragma once

#include <cstdint>
#include <span>
#include <tessera/core/view.hpp>

#include "math.hpp"

namespace tessera::kernels {

inline constexpr int kMaxOperands = 5;

/// The common loop nest of several views: dimensions of size 1 dropped, dimensions that run on into
/// each other in every view merged, outermost first, ordered by the strides of operand 0.
struct LoopNest {
  int dims = 0;
  std::int64_t total = 1;
  std::int64_t size[kMaxDims] = {};
  std::int64_t stride[kMaxOperands][kMaxDims] = {};  // in elements
};

/// Throws ShapeError naming `op` when the shapes differ. `reorder` allows to visit the dimensions
/// in another order than that of the shape.
LoopNest make_loop_nest(const char* op, std::span<const View* const> views, bool reorder = true);

/// Where element `linear` of the nest lies in operand k.
TESSERA_HD std::int64_t nest_offset(const LoopNest& nest, int k, std::int64_t linear) {
  std::int64_t offset = 0;
  for (int d = nest.dims - 1; d >= 0; --d) {
    offset += linear % nest.size[d] * nest.stride[k][d];
    linear /= nest.size[d];
  }
  return offset;
}

inline bool on_cuda(const View& view) { return view.device.kind == Device::kCuda; }

}  // namespace tessera::kernels
