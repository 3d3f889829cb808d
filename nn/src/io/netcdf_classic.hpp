#pragma once

#include <cstdint>

#include "io/posix_file.hpp"

namespace tessera::io {

/// Least size of a file in one of the classic formats (CDF-1, 2 and 5) by its own header; 0 for
/// other formats. The library reads zeros where such a file was cut off. Throws DataError when the
/// header itself is damaged.
std::int64_t classic_netcdf_bytes(const File& file);

}  // namespace tessera::io
