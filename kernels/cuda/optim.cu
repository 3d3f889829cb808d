#include <vector>

#include "device.hpp"
#include "functors/optim.hpp"
#include "functors/reduce.hpp"
#include "launch.cuh"

namespace tessera::kernels::cuda {

namespace {

template <class T, class Step>
void run_segment(const char* op, const OptimSegment& s, const Step& step) {
  const Memory p = memory(s.parameter), g = memory(s.gradient);
  const Memory m = memory(s.first), v = memory(s.second), x = memory(s.third);
  each(op, s.parameter.size(), [=] __device__(std::int64_t i) {
    T pi = load_at<T>(p, i);
    T mi = m.data != nullptr ? load_at<T>(m, i) : T(0);
    T vi = v.data != nullptr ? load_at<T>(v, i) : T(0);
    T xi = x.data != nullptr ? load_at<T>(x, i) : T(0);
    step(pi, load_at<T>(g, i), mi, vi, xi);
    store_at<T>(p, i, pi);
    if (m.data != nullptr) store_at<T>(m, i, mi);
    if (v.data != nullptr) store_at<T>(v, i, vi);
    if (x.data != nullptr) store_at<T>(x, i, xi);
  });
}

template <class MakeStep>
void run(const char* op, std::span<const OptimSegment> segments, const MakeStep& make_step) {
  for (const OptimSegment& s : segments) {
    visit_floating_type(s.parameter.dtype,
                        [&]<class T>() { run_segment<T>(op, s, make_step(T{}, s)); });
  }
}

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
  run("adamw", segments, [&]<class T>(T, const OptimSegment& s) { return adamw_step_of<T>(s, c); });
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
