#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <tessera/core/error.hpp>

namespace tessera {

/// Largest number of dimensions of a tensor.
inline constexpr int kMaxDims = 8;

/// A short list of 64-bit numbers without heap storage: shapes, strides, indices, dimension lists.
class Dims {
 public:
  constexpr Dims() = default;
  constexpr Dims(std::initializer_list<std::int64_t> values) {
    for (const std::int64_t v : values) push_back(v);
  }
  explicit Dims(std::span<const std::int64_t> values) {
    for (const std::int64_t v : values) push_back(v);
  }
  /// `count` copies of `value`.
  static constexpr Dims filled(int count, std::int64_t value) {
    Dims d;
    for (int i = 0; i < count; ++i) d.push_back(value);
    return d;
  }

  constexpr int size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr std::int64_t& operator[](int i) { return values_[static_cast<std::size_t>(i)]; }
  constexpr std::int64_t operator[](int i) const { return values_[static_cast<std::size_t>(i)]; }
  constexpr std::int64_t& back() { return (*this)[size_ - 1]; }
  constexpr std::int64_t back() const { return (*this)[size_ - 1]; }
  constexpr std::int64_t* begin() { return values_.data(); }
  constexpr std::int64_t* end() { return values_.data() + size_; }
  constexpr const std::int64_t* begin() const { return values_.data(); }
  constexpr const std::int64_t* end() const { return values_.data() + size_; }
  constexpr void push_back(std::int64_t value) {
    if (size_ == kMaxDims) throw ShapeError("tensor: more than 8 dimensions. Reshape to fewer.");
    values_[static_cast<std::size_t>(size_++)] = value;
  }
  constexpr void resize(int size, std::int64_t value = 0) {
    while (size_ > size) values_[static_cast<std::size_t>(--size_)] = 0;
    while (size_ < size) push_back(value);
  }
  constexpr void insert(int at, std::int64_t value) {
    push_back(0);
    for (int i = size_ - 1; i > at; --i) (*this)[i] = (*this)[i - 1];
    (*this)[at] = value;
  }
  constexpr void erase(int at) {
    for (int i = at; i + 1 < size_; ++i) (*this)[i] = (*this)[i + 1];
    resize(size_ - 1);
  }
  constexpr bool contains(std::int64_t value) const {
    for (const std::int64_t v : *this)
      if (v == value) return true;
    return false;
  }
  friend constexpr bool operator==(const Dims& a, const Dims& b) {
    if (a.size_ != b.size_) return false;
    for (int i = 0; i < a.size_; ++i)
      if (a[i] != b[i]) return false;
    return true;
  }

  /// Product of all values; 1 when empty.
  constexpr std::int64_t product() const {
    std::int64_t p = 1;
    for (const std::int64_t v : *this) p *= v;
    return p;
  }
  /// `[2, 3, 4]`
  std::string str() const;

 private:
  std::array<std::int64_t, kMaxDims>
      values_{};  // unused slots stay 0, so that equal lists have equal bytes
  std::int32_t size_ = 0;
  std::int32_t unused_ = 0;
};

using Shape = Dims;
using Strides = Dims;
using Index = Dims;

std::ostream& operator<<(std::ostream& out, const Dims& dims);

/// Element strides of a dense row-major tensor.
Strides row_major(const Shape& shape);

/// Maps a dimension given as -n..n-1 to 0..n-1; throws ShapeError naming `op` when it is outside.
int wrap_dim(const char* op, std::int64_t dim, int dims);

/// The shape that `a` and `b` broadcast to (trailing dimensions aligned, 1 stretches); throws
/// ShapeError naming `op`.
Shape broadcast_shape(const char* op, const Shape& a, const Shape& b);

}  // namespace tessera
