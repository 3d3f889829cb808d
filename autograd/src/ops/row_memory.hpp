#pragma once

#include <tessera/core/memory.hpp>
#include <tessera/core/view.hpp>
#include <vector>

// Rows of dimension 0 on their way between ranks.

namespace tessera {

inline View memory(const Ref<Buffer>& buffer, DType dtype, const Shape& shape) {
  return View::dense(buffer->data(), dtype, shape);
}

inline Ref<Buffer> allocate(DType dtype, const Shape& shape) {
  return MemoryPool::of(Device{}).allocate(static_cast<std::size_t>(shape.product()) *
                                           size_of(dtype));
}

/// `rows` times the row of a local part of this shape.
inline Shape with_rows(Shape shape, std::int64_t rows) {
  shape[0] = rows;
  return shape;
}

inline std::int64_t row_bytes(const View& view) {
  std::int64_t elements = 1;
  for (int d = 1; d < view.dims(); ++d) elements *= view.shape[d];
  return elements * static_cast<std::int64_t>(size_of(view.dtype));
}

inline std::vector<std::int64_t> times(const std::vector<std::int64_t>& counts,
                                       std::int64_t bytes) {
  std::vector<std::int64_t> result = counts;
  for (std::int64_t& c : result) c *= bytes;
  return result;
}

inline View index_view(const std::vector<std::int64_t>& index) {
  return View::dense(const_cast<std::int64_t*>(index.data()), DType::kInt64,
                     {static_cast<std::int64_t>(index.size())});
}

}  // namespace tessera
