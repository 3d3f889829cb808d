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

void for_each_block(const Box& box, std::int64_t volume, const std::function<void(const Box&)>& f) {
  if (box.empty()) return;
  // The outermost dimensions go one by one until what is inside fits.
  int d = 0;
  std::int64_t inside = box.volume();
  while (d < box.dims() && inside > volume) inside /= box[d++].size();
  if (d == 0) {
    f(box);
    return;
  }
  const int cut = d - 1;
  const std::int64_t rows = std::max<std::int64_t>(1, volume / inside);
  Box block = box;
  for (int k = 0; k < cut; ++k) block.hi[k] = block.lo[k] + 1;
  for (;;) {
    for (std::int64_t lo = box.lo[cut]; lo < box.hi[cut]; lo += rows) {
      block.set(cut, {lo, std::min(lo + rows, box.hi[cut])});
      f(block);
    }
    int k = cut - 1;
    while (k >= 0 && block.hi[k] == box.hi[k]) {
      block.set(k, {box.lo[k], box.lo[k] + 1});
      --k;
    }
    if (k < 0) return;
    block.set(k, {block.lo[k] + 1, block.hi[k] + 1});
  }
}

}  // namespace tessera::io
