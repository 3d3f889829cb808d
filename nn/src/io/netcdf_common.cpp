#include "io/netcdf_common.hpp"

#include <netcdf.h>

#include <algorithm>
#include <tessera/nn/io/data_error.hpp>

namespace tessera::io {

std::mutex& netcdf_mutex() {
  static std::mutex mutex;
  return mutex;
}

void check_netcdf(int status, const std::string& path, const char* what) {
  if (status == NC_NOERR) return;
  const std::string message = str(path, ": ", what, " (", nc_strerror(status), ").");
  // Positive ones are those of the system; of the library's own, these are about access too.
  if (status > 0 || status == NC_EPERM || status == NC_EEXIST || status == NC_EHDFERR)
    throw IoError(message);
  throw DataError(message);
}

}  // namespace tessera::io
