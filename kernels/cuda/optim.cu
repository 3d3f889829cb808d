#include <vector>

#include "device.hpp"
#include "functors/optim.hpp"
#include "functors/reduce.hpp"
#include "launch.cuh"
#include "optim_run.cuh"

namespace tessera::kernels::cuda {

using optim_run::run;

namespace {

__global__ void square_sum(Memory x, std::int64_t total, double* partial) {
  double sum = 0.0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const double value = load_at<double>(x, i);
    sum += value * value;
  }
  sum = block_fold<SumOf<double>>(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

}  // namespace

void adamw_step(std::span<const OptimSegment> segments, const AdamWCoefficients& c) {
  const Moments<double> moments = moments_of(c);
  run("adamw", segments,
      [&]<class T>(T, const OptimSegment& s) { return adamw_step_of<T>(s, moments, c.coupled); });
}

void sgd_step(std::span<const OptimSegment> segments, double momentum, bool nesterov) {
  run("sgd", segments, [&]<class T>(T, const OptimSegment& s) {
    return SgdStep<T>{static_cast<T>(momentum), static_cast<T>(s.rate),
                      static_cast<T>(s.weight_decay), s.first.data != nullptr, nesterov};
  });
}

void ema_step(std::span<const OptimSegment> segments, double decay) {
  run("ema", segments,
      [&]<class T>(T, const OptimSegment&) { return EmaStep<T>{static_cast<T>(decay)}; });
}

double sum_of_squares(const View& view) {
  // The number of blocks, and with it the order of the sum, follows from the size alone.
  const int blocks = blocks_for(view.size());
  const Scratch<double> partial(blocks);
  square_sum<<<blocks, kThreads, 0, stream()>>>(memory(view), view.size(), partial.get());
  check(cudaGetLastError(), "sum_of_squares");
  std::vector<double> host(static_cast<std::size_t>(blocks));
  check(cudaMemcpyAsync(host.data(), partial.get(), host.size() * sizeof(double),
                        cudaMemcpyDeviceToHost, stream()),
        "sum_of_squares");
  check(cudaStreamSynchronize(stream()), "sum_of_squares");
  double total = 0.0;
  for (const double p : host) total += p;
  return total;
}

}  // namespace tessera::kernels::cuda
