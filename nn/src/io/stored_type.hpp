#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/nn/io/field_reader.hpp>

namespace tessera::io {

/// Reads `count` stored numbers, `stride` of them apart, as doubles.
void load_doubles(
    StoredType type, const void* from, std::int64_t stride, std::int64_t count, double* to);
/// The same of integers and bool, exactly. Throws DataError when one exceeds 63 bits.
void load_integers(
    StoredType type, const void* from, std::int64_t stride, std::int64_t count, std::int64_t* to);
/// Reverses the bytes of each of `count` numbers of 1, 2, 4 or 8 bytes, in place.
void swap_bytes(void* values, std::int64_t size, std::int64_t count);

/// How values of an element type are stored when they are not converted.
StoredType stored_type(DType dtype);
/// What NumPy calls a type in little-endian files: "<f4". Throws DTypeError for bfloat16.
std::string numpy_type(StoredType type);

/// A type as NumPy writes it in files: byte order (`<`, `>`, `|`, `=`), kind, bytes: "<f4".
struct NumpyType {
  StoredType type;
  bool big_endian = false;
  bool complex = false;  ///< pairs of `type`
};
/// Nothing when it is no number known here.
std::optional<NumpyType> parse_numpy_type(std::string_view text);
/// From a name like float32 or complex64 (NumPy, Zarr 3); nothing when unknown.
std::optional<NumpyType> parse_type_name(std::string_view text);

}  // namespace tessera::io
