#include "device_optim.hpp"
#include "functors/optim_methods.hpp"
#include "optim_run.cuh"

namespace tessera::kernels::cuda {

using optim_run::run;

void rmsprop_step(std::span<const OptimSegment> segments, const RmspropCoefficients& c) {
  run("rmsprop", segments,
      [&]<class T>(T, const OptimSegment& s) { return rmsprop_step_of<T>(s, c); });
}

void adagrad_step(std::span<const OptimSegment> segments, double initial, double eps) {
  run("adagrad", segments, [&]<class T>(T, const OptimSegment& s) {
    return AdagradStep<T>{static_cast<T>(initial), static_cast<T>(eps), static_cast<T>(s.rate),
                          static_cast<T>(s.weight_decay)};
  });
}

void lion_step(std::span<const OptimSegment> segments, double beta1, double beta2) {
  run("lion", segments,
      [&]<class T>(T, const OptimSegment& s) { return lion_step_of<T>(s, beta1, beta2); });
}

void lamb_direction(std::span<const OptimSegment> segments, const AdamWCoefficients& c) {
  const Moments<double> moments = moments_of(c);
  run("lamb", segments, [&]<class T>(T, const OptimSegment& s) {
    return LambDirection<T>{static_cast<Moments<T>>(moments), static_cast<T>(s.weight_decay)};
  });
}

}  // namespace tessera::kernels::cuda
