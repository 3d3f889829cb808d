#pragma once

#include <tessera/core/box.hpp>
#include <tessera/core/dtype.hpp>
#include <tessera/core/memory.hpp>

namespace tessera {

/// A strided window on memory owned by somebody else; what kernels work on. Strides count elements
/// and may be 0 (broadcast) or negative.
struct View {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  Shape shape;
  Strides strides;
  Device device = {};

  /// A dense row-major view.
  static View dense(void* data, DType dtype, const Shape& shape, Device device = {}) {
    return {data, dtype, shape, row_major(shape), device};
  }

  int dims() const { return shape.size(); }
  std::int64_t size() const { return shape.product(); }
  bool empty() const { return size() == 0; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  /// Whether the elements lie densely in row-major order (dimensions of size 1 may have any
  /// stride).
  bool is_dense() const;
  /// The part `box`, given in coordinates of this view.
  View slice(const Box& box) const;
};

/// A view that knows where it lies: `box` is its place in the global coordinates of a tensor of
/// shape `global`.
///
/// Windowed kernels follow one contract: what lies outside an input piece's box is absent (adds
/// nothing to a convolution, never wins a maximum). Whoever calls them sees to it that every
/// element that exists and is needed is in the piece. Coordinates may be virtual (below 0 or beyond
/// the shape) where an edge rule filled the piece.
struct Piece {
  View view;
  Box box;
  Shape global;

  /// The part `region` (global coordinates, clipped to the box).
  Piece slice(const Box& region) const;
};

}  // namespace tessera
