#pragma once

#include <tessera/core/box.hpp>
#include <tessera/core/view.hpp>

namespace tessera::io {

/// Copies `count` elements with conversion; strides count elements. Floating types convert among
/// each other and take integers; integers convert when the value fits (IoError otherwise); a
/// floating value never becomes an integer (DTypeError).
void convert(const void* from,
             DType from_type,
             std::int64_t from_stride,
             void* to,
             DType to_type,
             std::int64_t to_stride,
             std::int64_t count);

/// The type that stands for `type` in formats with numbers of common types alone: f32 for bf16, u8
/// for bool.
constexpr DType common_type(DType type) {
  if (type == DType::kBFloat16) return DType::kFloat32;
  return type == DType::kBool ? DType::kUInt8 : type;
}

/// Throws DTypeError when `convert` could never do this.
void check_convertible(const char* op, DType from, DType to);

/// Throws ShapeError when `view` has another shape, DeviceError when it is not in host memory; both
/// name `op`.
void check_view(const char* op, const View& view, const Shape& shape);

/// Converts `count` dense elements into `view` along its last dimension, starting at `start`.
void store_row(
    const View& view, const Index& start, const void* from, DType from_type, std::int64_t count);

/// A hyper-rectangular part of a dense row-major array beside a strided view of the same shape, as
/// rows that are contiguous in the array. Dimensions that are whole in both are merged, so that
/// rows are as long as they can be.
class BoxRows {
 public:
  /// Throws ShapeError naming `op` when `box` does not lie in `shape` or `view` has not its shape.
  BoxRows(const char* op, const Shape& shape, const Box& box, const View& view);

  std::int64_t row_length() const { return length_; }
  std::int64_t view_stride() const { return stride_; }
  /// Calls f(array offset, view offset) for each row, by ascending array offset. Offsets count
  /// elements.
  template <class F>
  void for_each(F&& f) const {
    if (length_ == 0) return;
    Index i = Dims::filled(outer_.size(), 0);
    for (;;) {
      std::int64_t array_offset = array_start_;
      std::int64_t view_offset = 0;
      for (int d = 0; d < outer_.size(); ++d) {
        array_offset += i[d] * array_strides_[d];
        view_offset += i[d] * view_strides_[d];
      }
      f(array_offset, view_offset);
      int d = outer_.size() - 1;
      while (d >= 0 && ++i[d] == outer_[d]) i[d--] = 0;
      if (d < 0) return;
    }
  }

 private:
  Shape outer_;
  Strides array_strides_;
  Strides view_strides_;
  std::int64_t array_start_ = 0;
  std::int64_t length_ = 1;
  std::int64_t stride_ = 1;
};

}  // namespace tessera::io
