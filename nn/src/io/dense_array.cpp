#include "io/dense_array.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "io/convert.hpp"
#include "io/stored_type.hpp"

namespace tessera::io {
namespace {

/// Copies dense elements of N bytes to places `stride` elements apart.
template <std::size_t N>
void scatter(const std::byte* from, std::byte* to, std::int64_t stride, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) std::memcpy(to + i * stride * N, from + i * N, N);
}

void scatter(const std::byte* from,
             std::byte* to,
             std::int64_t stride,
             std::int64_t count,
             std::int64_t element) {
  switch (element) {
    case 1:
      return scatter<1>(from, to, stride, count);
    case 2:
      return scatter<2>(from, to, stride, count);
    case 4:
      return scatter<4>(from, to, stride, count);
    default:
      return scatter<8>(from, to, stride, count);
  }
}

}  // namespace

Dims column_major_order(int dims, bool complex) {
  Dims order;
  const int real = complex ? dims - 1 : dims;
  for (int d = real - 1; d >= 0; --d) order.push_back(d);
  if (complex) order.push_back(real);
  return order;
}

std::optional<std::int64_t> checked_bytes(const Shape& shape, std::int64_t element) {
  // Sizes of 0 count as 1: strides are products, too.
  std::int64_t bytes = element;
  bool empty = false;
  for (const std::int64_t n : shape) {
    if (n < 0) return std::nullopt;
    empty = empty || n == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(n, 1), &bytes)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

std::int64_t read_dense(const DenseArray& array, const Box& box, const ReadAt& read, void* values) {
  const std::int64_t element = size_of(array.type);
  const int dims = box.dims();
  Shape file_shape = array.shape;
  Box file_box = box;
  const bool permuted = !array.order.empty() && dims > 1;
  if (permuted) {
    for (int k = 0; k < dims; ++k) {
      const int d = static_cast<int>(array.order[k]);
      file_shape[k] = array.shape[d];
      file_box.set(k, box[d]);
    }
  }
  const std::int64_t count = box.volume();
  std::vector<std::byte> staged;
  auto* dense = static_cast<std::byte*>(values);
  if (permuted) {
    staged.resize(static_cast<std::size_t>(count * element));
    dense = staged.data();
  }
  // The element type of this view is of no account: its offsets count elements.
  const BoxRows rows("read", file_shape, file_box,
                     View::dense(dense, DType::kUInt8, file_box.shape()));
  rows.for_each([&](std::int64_t array_offset, std::int64_t view_offset) {
    read(dense + view_offset * element, rows.row_length() * element,
         array.offset + array_offset * element);
  });
  if (array.swapped) swap_bytes(dense, element, count);
  if (permuted) {
    const Strides strides = row_major(box.shape());
    const std::int64_t length = file_box[dims - 1].size();
    const std::int64_t stride = strides[static_cast<int>(array.order[dims - 1])];
    Box starts = Box::whole(file_box.shape());
    starts.hi[dims - 1] = 1;
    const std::byte* from = dense;
    for_each_index(starts, [&](const Index& i) {
      std::int64_t offset = 0;
      for (int k = 0; k < dims; ++k) offset += i[k] * strides[static_cast<int>(array.order[k])];
      scatter(from, static_cast<std::byte*>(values) + offset * element, stride, length, element);
      from += length * element;
    });
  }
  return count * element;
}

}  // namespace tessera::io
