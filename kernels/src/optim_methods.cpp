#include "functors/optim_methods.hpp"

#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/optim_methods.hpp>

#include "device_optim.hpp"
#include "optim_run.hpp"

namespace tessera::kernels {

using optim_run::any_on_cuda;
using optim_run::check;
using optim_run::run;

void rmsprop_step(std::span<const OptimSegment> segments, const RmspropCoefficients& c) {
  if (dry_run()) return;
  check("rmsprop", segments, 1);
  if (any_on_cuda(segments)) return cuda::rmsprop_step(segments, c);
  run(segments, [&]<class T>(T, const OptimSegment& s) { return rmsprop_step_of<T>(s, c); });
}

void adagrad_step(std::span<const OptimSegment> segments, double initial, double eps) {
  if (dry_run()) return;
  check("adagrad", segments, 1);
  if (any_on_cuda(segments)) return cuda::adagrad_step(segments, initial, eps);
  run(segments, [&]<class T>(T, const OptimSegment& s) {
    return AdagradStep<T>{static_cast<T>(initial), static_cast<T>(eps), static_cast<T>(s.rate),
                          static_cast<T>(s.weight_decay)};
  });
}

void lion_step(std::span<const OptimSegment> segments, double beta1, double beta2) {
  if (dry_run()) return;
  check("lion", segments, 1);
  if (any_on_cuda(segments)) return cuda::lion_step(segments, beta1, beta2);
  run(segments,
      [&]<class T>(T, const OptimSegment& s) { return lion_step_of<T>(s, beta1, beta2); });
}

void lamb_direction(std::span<const OptimSegment> segments, const AdamWCoefficients& c) {
  if (dry_run()) return;
  check("lamb", segments, 3);
  if (any_on_cuda(segments)) return cuda::lamb_direction(segments, c);
  const Moments<double> moments = moments_of(c);
  run(segments, [&]<class T>(T, const OptimSegment& s) {
    return LambDirection<T>{static_cast<Moments<T>>(moments), static_cast<T>(s.weight_decay)};
  });
}

}  // namespace tessera::kernels
