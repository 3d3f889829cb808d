#pragma once

#include <tessera/kernels/optim_methods.hpp>

/// The GPU's side of optim_methods.hpp; see device.hpp.
namespace tessera::kernels::cuda {

void rmsprop_step(std::span<const OptimSegment> segments, const RmspropCoefficients& coefficients);
void adagrad_step(std::span<const OptimSegment> segments, double initial, double eps);
void lion_step(std::span<const OptimSegment> segments, double beta1, double beta2);
void lamb_direction(std::span<const OptimSegment> segments, const AdamWCoefficients& coefficients);

}  // namespace tessera::kernels::cuda
