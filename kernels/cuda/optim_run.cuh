#pragma once

#include <tessera/kernels/optim.hpp>

#include "launch.cuh"

/// How an optimiser's update goes over its segments on the GPU.
namespace tessera::kernels::cuda::optim_run {

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

}  // namespace tessera::kernels::cuda::optim_run
