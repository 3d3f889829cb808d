#include "device.hpp"
#include "device_optim.hpp"

namespace tessera::kernels::cuda {

void rmsprop_step(std::span<const OptimSegment>, const RmspropCoefficients&) { throw_no_cuda(); }
void adagrad_step(std::span<const OptimSegment>, double, double) { throw_no_cuda(); }
void lion_step(std::span<const OptimSegment>, double, double) { throw_no_cuda(); }
void lamb_direction(std::span<const OptimSegment>, const AdamWCoefficients&) { throw_no_cuda(); }

}  // namespace tessera::kernels::cuda
