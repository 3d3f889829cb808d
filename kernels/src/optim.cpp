#include "functors/optim.hpp"

#include <algorithm>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/optim.hpp>
#include <vector>

#include "optim_run.hpp"

namespace tessera::kernels {

using optim_run::any_on_cuda;
using optim_run::check;
using optim_run::run;

void adamw_step(std::span<const OptimSegment> segments, const AdamWCoefficients& c) {
  if (dry_run()) return;
  check("adamw", segments, 2);
  if (any_on_cuda(segments)) return cuda::adamw_step(segments, c);
  const Moments<double> moments = moments_of(c);
  run(segments,
      [&]<class T>(T, const OptimSegment& s) { return adamw_step_of<T>(s, moments, c.coupled); });
}

void sgd_step(std::span<const OptimSegment> segments, double momentum, bool nesterov) {
  if (dry_run()) return;
  check("sgd", segments, 0);
  if (any_on_cuda(segments)) return cuda::sgd_step(segments, momentum, nesterov);
  run(segments, [&]<class T>(T, const OptimSegment& s) {
    return SgdStep<T>{static_cast<T>(momentum), static_cast<T>(s.rate),
                      static_cast<T>(s.weight_decay), s.first.data != nullptr, nesterov};
  });
}

void ema_step(std::span<const OptimSegment> segments, double decay) {
  if (dry_run()) return;
  check("ema", segments, 0);
  if (any_on_cuda(segments)) return cuda::ema_step(segments, decay);
  run(segments, [&]<class T>(T, const OptimSegment&) { return EmaStep<T>{static_cast<T>(decay)}; });
}

double sum_of_squares(std::span<const View> views) {
  double total = 0.0;
  for (const View& v : views) {
    if (!is_floating(v.dtype) || !v.is_dense())
      throw ShapeError(
          str("sum_of_squares: view ", v.shape, " ", name(v.dtype), " is not dense and floating."));
    if (on_cuda(v)) {
      total += cuda::sum_of_squares(v);
      continue;
    }
    const std::int64_t n = v.size();
    const std::int64_t chunks = (n + kChunk - 1) / kChunk;
    std::vector<double> part(static_cast<std::size_t>(chunks));
    parallel_chunks(chunks, kChunk, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        alignas(64) double value[kBlock];
        double lanes[kLanes] = {};
        for (std::int64_t b = c * kChunk; b < std::min(n, (c + 1) * kChunk); b += kBlock) {
          const std::int64_t count = std::min(kBlock, std::min(n, (c + 1) * kChunk) - b);
          load(v.as<char>() + b * static_cast<std::int64_t>(size_of(v.dtype)), v.dtype, 1, count,
               value);
          std::fill(value + count, value + (count + kLanes - 1) / kLanes * kLanes, 0.0);
          for (std::int64_t i = 0; i < count; i += kLanes)
            for (int l = 0; l < kLanes; ++l) lanes[l] += value[i + l] * value[i + l];
        }
        for (const double lane : lanes) part[static_cast<std::size_t>(c)] += lane;
      }
    });
    for (const double p : part) total += p;
  }
  return total;
}

}  // namespace tessera::kernels
