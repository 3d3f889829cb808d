#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <tessera/core/tensor.hpp>
#include <tessera/core/view.hpp>
#include <vector>

namespace tessera::test {

/// A dense tensor of doubles with global coordinates: what references are written in.
struct Field {
  Box box;
  std::vector<double> values;

  explicit Field(const Box& b, double value = 0)
      : box(b), values(static_cast<std::size_t>(b.volume()), value) {}
  explicit Field(const Shape& shape) : Field(Box::whole(shape)) {}

  bool has(const Index& i) const {
    for (int d = 0; d < box.dims(); ++d)
      if (i[d] < box.lo[d] || i[d] >= box.hi[d]) return false;
    return true;
  }
  double& at(const Index& i) { return values[static_cast<std::size_t>(offset(i))]; }
  /// The value at `i`; 0 where there is none.
  double get(const Index& i) const {
    return has(i) ? values[static_cast<std::size_t>(offset(i))] : 0.0;
  }

 private:
  std::int64_t offset(const Index& i) const {
    std::int64_t at = 0;
    for (int d = 0; d < box.dims(); ++d) at = at * box[d].size() + i[d] - box.lo[d];
    return at;
  }
};

/// Strided memory of any element type behind a piece. With `scrambled`, strides are neither dense
/// nor ordered, and the gaps hold a value that shows when it is read.
class Memory {
 public:
  Memory(const Box& box, const Shape& global, DType dtype, std::mt19937* scrambled = nullptr) {
    piece.box = box;
    piece.global = global;
    piece.view.dtype = dtype;
    piece.view.shape = box.shape();
    piece.view.strides = row_major(box.shape());
    std::int64_t first = 0, size = std::max<std::int64_t>(piece.view.size(), 1);
    if (scrambled != nullptr && !box.empty()) {
      std::vector<int> order;
      for (int d = 0; d < box.dims(); ++d) order.push_back(d);
      std::shuffle(order.begin(), order.end(), *scrambled);
      std::int64_t step = 1 + static_cast<std::int64_t>((*scrambled)() % 2);
      for (const int d : order) {
        const bool backwards = (*scrambled)() % 3 == 0;
        piece.view.strides[d] = backwards ? -step : step;
        if (backwards) first += step * (piece.view.shape[d] - 1);
        step *= piece.view.shape[d] + static_cast<std::int64_t>((*scrambled)() % 3);
      }
      size = step;
    }
    bytes_.resize(static_cast<std::size_t>(size) * size_of(dtype));
    for (std::int64_t i = 0; i < size; ++i) store_double(bytes_.data(), dtype, i, 77);
    piece.view.data = bytes_.data() + static_cast<std::size_t>(first) * size_of(dtype);
  }

  double get(const Index& i) const {
    return load_as_double(piece.view.data, piece.view.dtype, offset(i));
  }
  void set(const Index& i, double value) {
    store_double(piece.view.data, piece.view.dtype, offset(i), value);
  }

  Piece piece;

 private:
  std::int64_t offset(const Index& i) const {
    std::int64_t at = 0;
    for (int d = 0; d < i.size(); ++d) at += (i[d] - piece.box.lo[d]) * piece.view.strides[d];
    return at;
  }
  std::vector<std::byte> bytes_;
};

/// Random numbers in (-2, 2) that the element type holds exactly, with as many digits as it has.
inline Field random_field(const Box& box, std::mt19937& random, DType dtype) {
  Field f(box);
  for (double& v : f.values) {
    store_double(&v, dtype, 0, std::uniform_real_distribution<>(-2, 2)(random));
    v = load_as_double(&v, dtype, 0);
  }
  return f;
}

/// The part `box` of a field in memory.
inline Memory part(const Field& f,
                   const Box& box,
                   const Shape& global,
                   DType dtype,
                   std::mt19937* scrambled = nullptr) {
  Memory m(box, global, dtype, scrambled);
  for_each_index(box, [&](const Index& i) { m.set(i, f.get(i)); });
  return m;
}

inline std::int64_t random_in(std::mt19937& random, std::int64_t lo, std::int64_t hi) {
  return lo + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(hi - lo + 1));
}

/// A random cut of a box into parts (some empty), along every dimension of `dims`.
inline std::vector<Box> random_cut(const Box& box,
                                   std::mt19937& random,
                                   const std::vector<int>& dims) {
  std::vector<Box> parts{box};
  for (const int d : dims) {
    const Interval range = box[d];
    std::vector<std::int64_t> at{range.lo, range.hi};
    for (int k = 0; k < 2; ++k) at.push_back(random_in(random, range.lo, range.hi));
    std::sort(at.begin(), at.end());
    std::vector<Box> next;
    for (Box part : parts)
      for (std::size_t k = 0; k + 1 < at.size(); ++k) {
        part.set(d, {at[k], at[k + 1]});
        next.push_back(part);
      }
    parts = next;
  }
  return parts;
}

}  // namespace tessera::test
