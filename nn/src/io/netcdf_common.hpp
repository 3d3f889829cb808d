#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <tessera/core/box.hpp>

namespace tessera::io {

/// Guards every call into the NetCDF library.
std::mutex& netcdf_mutex();

/// Throws IoError with the library's message when `status` is an error: DataError when the content
/// of the file is at fault.
void check_netcdf(int status, const std::string& path, const char* what);

/// Cuts `box` into boxes of at most `volume` points (at least one), in row-major order.
void for_each_block(const Box& box, std::int64_t volume, const std::function<void(const Box&)>& f);

}  // namespace tessera::io
