#include "device.hpp"

namespace tessera::kernels::cuda {

void adamw_step(std::span<const OptimSegment>, const AdamWCoefficients&) { throw_no_cuda(); }
void sgd_step(std::span<const OptimSegment>, double, bool) { throw_no_cuda(); }
void ema_step(std::span<const OptimSegment>, double) { throw_no_cuda(); }
double sum_of_squares(const View&) { throw_no_cuda(); }

}  // namespace tessera::kernels::cuda
