#pragma once

#include <string>

#include "io/dense_array.hpp"

namespace tessera::io {

/// A NumPy array as its header describes it.
struct NpyHeader {
  DenseArray array;  ///< its offset counts from the start of the array
  bool column_major = false;
  bool complex = false;
  bool numeric = false;  ///< false: `descr` is no type of numbers, or there are too many dimensions
  std::string descr;
};

/// Reads the header of an array that takes `size` bytes. Throws DataError beginning with `where`
/// when it is damaged, or promises more numbers than there are bytes.
NpyHeader read_npy_header(const std::string& where, std::int64_t size, const ReadAt& read);

/// The variable of an array; dimensions are "dim_0"..., of complex numbers the last is "complex".
FieldVariable npy_variable(const std::string& name, const NpyHeader& header);

}  // namespace tessera::io
