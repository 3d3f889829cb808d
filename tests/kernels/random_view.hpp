#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <tessera/core/tensor.hpp>
#include <vector>

// Views of random strides on memory of their own, and access by index, for tests of kernels.

namespace tessera::testing {

/// A view with its memory.
struct OwnedView {
  std::vector<std::byte> memory;
  View view;

  double at(const Index& index) const {
    std::int64_t offset = 0;
    for (int d = 0; d < view.dims(); ++d) offset += index[d] * view.strides[d];
    return load_as_double(view.data, view.dtype, offset);
  }
  void set(const Index& index, double value) {
    std::int64_t offset = 0;
    for (int d = 0; d < view.dims(); ++d) offset += index[d] * view.strides[d];
    store_double(view.data, view.dtype, offset, value);
  }
};

enum class Lie { kDense, kPadded, kPermuted, kReversed };
inline constexpr Lie kAllLies[] = {Lie::kDense, Lie::kPadded, Lie::kPermuted, Lie::kReversed};

/// Uninitialised: rows apart from each other, dimensions in another order, or backwards.
inline OwnedView make_view(const Shape& shape, DType dtype, Lie lie = Lie::kDense) {
  OwnedView owned;
  Strides strides = Strides::filled(shape.size(), 0);
  std::int64_t next = lie == Lie::kPadded ? 2 : 1;
  const std::int64_t gap = lie == Lie::kPadded ? 3 : 0;
  for (int i = 0; i < shape.size(); ++i) {
    const int d = lie == Lie::kPermuted ? i : shape.size() - 1 - i;
    strides[d] = next;
    next = next * shape[d] + gap;
  }
  std::int64_t origin = 0;
  if (lie == Lie::kReversed) {
    for (int d = 0; d < shape.size(); ++d) {
      if (shape[d] == 0) continue;
      origin += (shape[d] - 1) * strides[d];
      strides[d] = -strides[d];
    }
  }
  const std::size_t bytes = size_of(dtype);
  owned.memory.resize((static_cast<std::size_t>(next) + 8) * bytes);
  owned.view = {owned.memory.data() + static_cast<std::size_t>(origin) * bytes, dtype, shape,
                strides};
  return owned;
}

/// Every element f().
inline OwnedView filled_view(const Shape& shape,
                             DType dtype,
                             const std::function<double()>& f,
                             Lie lie = Lie::kDense) {
  OwnedView owned = make_view(shape, dtype, lie);
  for_each_index(Box::whole(shape), [&](const Index& index) { owned.set(index, f()); });
  return owned;
}

inline std::mt19937_64& generator() {
  static std::mt19937_64 engine(20240607);
  return engine;
}
inline double uniform(double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(generator());
}
inline std::int64_t uniform_int(std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(generator());
}

/// Relative rounding of one operation.
inline double epsilon(DType dtype) {
  return dtype == DType::kFloat64 ? 2.3e-16 : dtype == DType::kFloat32 ? 1.2e-7 : 8e-3;
}

}  // namespace tessera::testing
