#include "device.hpp"

namespace tessera::kernels::cuda {

void group_moments(const View&, const GroupNormOptions&, const View&) { throw_no_cuda(); }
void merge_moments(const View&, const View&) { throw_no_cuda(); }
void group_norm(
    const View&, const View&, const View&, const View&, const GroupNormOptions&, const View&) {
  throw_no_cuda();
}
void group_norm_sums(const View&,
                     const View&,
                     const View&,
                     const View&,
                     const View&,
                     const GroupNormOptions&,
                     const View&,
                     const View&,
                     const View&) {
  throw_no_cuda();
}
void group_norm_input_grad(const View&,
                           const View&,
                           const View&,
                           const View&,
                           const View&,
                           const View&,
                           const GroupNormOptions&,
                           const View&) {
  throw_no_cuda();
}

}  // namespace tessera::kernels::cuda
