#include "device.hpp"

namespace tessera::kernels::cuda {

void take_rows(const View&, const View&, std::int64_t, const View&) { throw_no_cuda(); }
void scatter_add_rows(const View&, const View&, std::int64_t, bool, const View&) {
  throw_no_cuda();
}

}  // namespace tessera::kernels::cuda
