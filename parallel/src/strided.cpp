#include "strided.hpp"

#include <array>
#include <cstring>
#include <limits>

namespace tessera::parallel {

namespace {

/// Extents and strides of two views with dimensions of size 1 dropped and mergeable ones merged.
struct Loops {
  int dims = 0;
  std::array<std::int64_t, kMaxDims> size{};
  std::array<std::int64_t, kMaxDims> from{};
  std::array<std::int64_t, kMaxDims> to{};
  std::int64_t inner_size() const { return dims > 0 ? size[last()] : 1; }
  std::int64_t inner_from() const { return dims > 0 ? from[last()] : 0; }
  std::int64_t inner_to() const { return dims > 0 ? to[last()] : 0; }

 private:
  std::size_t last() const { return static_cast<std::size_t>(dims - 1); }
};

Loops make_loops(const Shape& shape, const Strides& from, const Strides& to) {
  Loops loops;
  for (int d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    const auto i = static_cast<std::size_t>(loops.dims);
    if (i > 0 && loops.from[i - 1] == from[d] * shape[d] && loops.to[i - 1] == to[d] * shape[d]) {
      loops.size[i - 1] *= shape[d];
      loops.from[i - 1] = from[d];
      loops.to[i - 1] = to[d];
      continue;
    }
    loops.size[i] = shape[d];
    loops.from[i] = from[d];
    loops.to[i] = to[d];
    ++loops.dims;
  }
  return loops;
}

/// Calls row(offset in from, offset in to) for each innermost row, in row-major order.
template <class F>
void for_each_row(const Loops& loops, F&& row) {
  std::array<std::int64_t, kMaxDims> at{};
  std::int64_t from = 0;
  std::int64_t to = 0;
  while (true) {
    row(from, to);
    int d = loops.dims - 2;
    for (; d >= 0; --d) {
      const auto i = static_cast<std::size_t>(d);
      from += loops.from[i];
      to += loops.to[i];
      if (++at[i] < loops.size[i]) break;
      from -= at[i] * loops.from[i];
      to -= at[i] * loops.to[i];
      at[i] = 0;
    }
    if (d < 0) return;
  }
}

void check(const View& from, const View& to) {
  if (from.device.kind != Device::kCpu || to.device.kind != Device::kCpu) {
    throw NotSupported(
        "exchange: packing on a device is not available. Move the tensor to the CPU.");
  }
  if (!(from.shape == to.shape))
    throw ShapeError(str("exchange: a part of ", from.shape, " meets one of ", to.shape, "."));
}

[[noreturn]] void throw_types(DType from, DType to) {
  throw DTypeError(
      str("exchange: element types ", name(from), " and ", name(to), " do not match."));
}

template <class T>
void copy_elements(const View& from, const View& to) {
  const Loops loops = make_loops(from.shape, from.strides, to.strides);
  const T* const source = from.as<const T>();
  T* const target = to.as<T>();
  const std::int64_t n = loops.inner_size();
  const std::int64_t sf = loops.inner_from();
  const std::int64_t st = loops.inner_to();
  for_each_row(loops, [&](std::int64_t f, std::int64_t t) {
    if (sf == 1 && st == 1) {
      std::memcpy(target + t, source + f, static_cast<std::size_t>(n) * sizeof(T));
    } else {
      for (std::int64_t i = 0; i < n; ++i) target[t + i * st] = source[f + i * sf];
    }
  });
}

template <class A, class B, class F>
void for_each_pair(const View& from, const View& to, F&& f) {
  const Loops loops = make_loops(from.shape, from.strides, to.strides);
  const A* const source = from.as<const A>();
  B* const target = to.as<B>();
  const std::int64_t n = loops.inner_size();
  const std::int64_t sf = loops.inner_from();
  const std::int64_t st = loops.inner_to();
  for_each_row(loops, [&](std::int64_t a, std::int64_t b) {
    for (std::int64_t i = 0; i < n; ++i) f(source[a + i * sf], target[b + i * st]);
  });
}

template <class T>
T combine(T a, T b, ReduceOp op) {
  if constexpr (std::is_same_v<T, bool>) {
    return op == ReduceOp::kMin ? a && b : a || b;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return BFloat16(combine(static_cast<float>(a), static_cast<float>(b), op));
  } else {
    switch (op) {
      case ReduceOp::kSum:
        return static_cast<T>(a + b);
      case ReduceOp::kMax:
        return a > b || a != a ? a : b;
      case ReduceOp::kMin:
        return a < b || a != a ? a : b;
    }
    return a;
  }
}

template <class T>
void fill_elements(const View& to, T value) {
  for_each_pair<T, T>(to, to, [value](const T&, T& y) { y = value; });
}

template <class T>
T neutral(ReduceOp op) {
  if (op == ReduceOp::kSum) return T{};
  if constexpr (std::is_same_v<T, BFloat16>) {
    return BFloat16(neutral<float>(op));
  } else {
    using Limits = std::numeric_limits<T>;
    if constexpr (Limits::has_infinity)
      return op == ReduceOp::kMax ? -Limits::infinity() : Limits::infinity();
    return op == ReduceOp::kMax ? Limits::lowest() : Limits::max();
  }
}

}  // namespace

void copy(const View& from, const View& to) {
  check(from, to);
  if (from.empty()) return;
  if (from.dtype != to.dtype) {
    if (from.dtype == DType::kBFloat16 && to.dtype == DType::kFloat32) {
      for_each_pair<BFloat16, float>(
          from, to, [](const BFloat16& x, float& y) { y = static_cast<float>(x); });
    } else if (from.dtype == DType::kFloat32 && to.dtype == DType::kBFloat16) {
      for_each_pair<float, BFloat16>(from, to,
                                     [](const float& x, BFloat16& y) { y = BFloat16(x); });
    } else {
      throw_types(from.dtype, to.dtype);
    }
    return;
  }
  switch (size_of(from.dtype)) {
    case 1:
      return copy_elements<std::uint8_t>(from, to);
    case 2:
      return copy_elements<std::uint16_t>(from, to);
    case 4:
      return copy_elements<std::uint32_t>(from, to);
    default:
      return copy_elements<std::uint64_t>(from, to);
  }
}

void accumulate(const View& from, const View& to, ReduceOp op) {
  check(from, to);
  if (from.empty()) return;
  if (from.dtype == DType::kBFloat16 && to.dtype == DType::kFloat32) {
    for_each_pair<BFloat16, float>(
        from, to, [op](const BFloat16& x, float& y) { y = combine(y, static_cast<float>(x), op); });
    return;
  }
  if (from.dtype != to.dtype) throw_types(from.dtype, to.dtype);
  visit_dtype(from.dtype, [&]<class T>() {
    if (op == ReduceOp::kSum) {  // the common case gets a loop of its own
      for_each_pair<T, T>(from, to, [](const T& x, T& y) { y = combine(y, x, ReduceOp::kSum); });
    } else {
      for_each_pair<T, T>(from, to, [op](const T& x, T& y) { y = combine(y, x, op); });
    }
  });
}

void fill(const View& to, double value) {
  check(to, to);
  if (to.empty()) return;
  visit_dtype(to.dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, BFloat16>) {
      fill_elements(to, BFloat16(static_cast<float>(value)));
    } else if constexpr (std::is_same_v<T, bool>) {
      fill_elements(to, value != 0.0);
    } else {
      fill_elements(to, static_cast<T>(value));
    }
  });
}

void fill_neutral(const View& to, ReduceOp op) {
  check(to, to);
  if (to.empty()) return;
  visit_dtype(to.dtype, [&]<class T>() { fill_elements(to, neutral<T>(op)); });
}

void poison(const View& to) {
  check(to, to);
  if (to.empty()) return;
  visit_dtype(to.dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, BFloat16>) {
      BFloat16 nan;
      nan.bits = 0x7fa0;  // through float the signalling bit would be lost
      fill_elements(to, nan);
    } else if constexpr (std::is_floating_point_v<T>) {
      fill_elements(to, std::numeric_limits<T>::signaling_NaN());
    } else {
      fill_elements(to, static_cast<T>(std::numeric_limits<T>::max() - 41));
    }
  });
}

}  // namespace tessera::parallel
