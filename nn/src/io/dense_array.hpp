#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <tessera/nn/io/field_reader.hpp>

namespace tessera::io {

/// Numbers that lie densely one after the other in a file or in memory.
struct DenseArray {
  Shape shape;  ///< with the pairs of complex numbers as last dimension
  StoredType type = StoredType::kFloat32;
  std::int64_t offset = 0;  ///< of the first byte
  bool swapped = false;     ///< bytes in the other order than this machine's
  /// Dimensions from the slowest to the fastest; empty: as they are.
  Dims order = {};
};

/// The order of dimensions in which the first runs fastest; of complex numbers the pairs stay last.
Dims column_major_order(int dims, bool complex);

/// Bytes of an array of elements of so many bytes; nothing when a size is negative or the product
/// exceeds 63 bits.
std::optional<std::int64_t> checked_bytes(const Shape& shape, std::int64_t element);
inline std::optional<std::int64_t> checked_bytes(const Shape& shape, StoredType type) {
  return checked_bytes(shape, size_of(type));
}

/// Puts `bytes` bytes from `offset` on into memory.
using ReadAt = std::function<void(void* to, std::int64_t bytes, std::int64_t offset)>;

/// Reads a box that is not empty, row-major, in this machine's byte order; `read` is called with
/// ascending offsets and for no byte outside the box. Returns the bytes read.
std::int64_t read_dense(const DenseArray& array, const Box& box, const ReadAt& read, void* values);

}  // namespace tessera::io
