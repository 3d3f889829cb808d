#pragma once

#include <array>
#include <cstddef>
#include <tessera/core/layout.hpp>

namespace tessera::parallel {

/// Ranks of a mesh by arithmetic: how far apart two coordinates or two parts are.
class AxisWalk {
 public:
  explicit AxisWalk(const Mesh& mesh) : mesh_(mesh) {
    int stride = 1;
    for (int a = mesh.axis_count() - 1; a >= 0; --a) {
      strides_[static_cast<std::size_t>(a)] = stride;
      stride *= mesh.axis_size(a);
    }
  }

  int stride(int axis) const { return strides_[static_cast<std::size_t>(axis)]; }

  /// Position along `axis` of the ranks that own part `part` of a dimension split by `split`.
  int coordinate(const DimSplit& split, int part, int axis) const {
    for (std::size_t i = split.axes.size(); i > 0; --i) {
      const int a = split.axes[i - 1];
      if (a == axis) return part % mesh_.axis_size(a);
      part /= mesh_.axis_size(a);
    }
    return 0;
  }

  /// Sum of coordinate * stride over the axes that split dimension `dim`, for its part `part`.
  int offset(const Layout& layout, int dim, int part) const {
    const std::vector<int>& axes = layout.split(dim).axes;
    int sum = 0;
    for (std::size_t i = axes.size(); i > 0; --i) {
      const int a = axes[i - 1];
      sum += part % mesh_.axis_size(a) * stride(a);
      part /= mesh_.axis_size(a);
    }
    return sum;
  }

 private:
  Mesh mesh_;
  std::array<int, 32> strides_{};  // an AxisMask has 32 bits
};

}  // namespace tessera::parallel
