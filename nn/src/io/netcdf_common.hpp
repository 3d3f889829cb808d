#pragma once

#include <mutex>
#include <string>

namespace tessera::io {

/// Guards every call into the NetCDF library and the HDF5 library beneath it.
std::mutex& netcdf_mutex();

/// Throws IoError with the library's message when `status` is an error: DataError when the content
/// of the file is at fault.
void check_netcdf(int status, const std::string& path, const char* what);

}  // namespace tessera::io
