#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <tessera/core/memory.hpp>
#include <tessera/core/threads.hpp>
#include <tessera/kernels/machine.hpp>

#include "simd.hpp"

namespace tessera::kernels {

namespace {

constexpr int kChains = 12;  // independent sums: the latency of a multiply-add times two units
constexpr std::int64_t kRounds = 400000;
constexpr std::int64_t kElements = 8 << 20;  // doubles per array

double seconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The best of a few, after one that wakes threads and touches memory.
double best_seconds(const std::function<void()>& f) {
  f();
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; ++i) best = std::min(best, seconds(f));
  return best;
}

template <class T>
double flops() {
  using Vector = typename cpu::Simd<T>::Type;
  const int threads = thread_count();
  const double time = best_seconds([threads] {
#pragma omp parallel num_threads(threads)
    {
      Vector sums[kChains];
      for (int c = 0; c < kChains; ++c) sums[c] = Vector{} + static_cast<T>(c);
      // Values that the compiler cannot know; they stay finite.
      volatile T factor = T(0.5);
      const Vector a = Vector{} + factor;
      const Vector b = Vector{} + factor;
      for (std::int64_t i = 0; i < kRounds; ++i)
        for (int c = 0; c < kChains; ++c) sums[c] = sums[c] * a + b;
      Vector total{};
      for (int c = 0; c < kChains; ++c) total += sums[c];
      // All lanes count: the compiler computes no others.
      T sum = 0;
      for (int lane = 0; lane < cpu::kVectorLanes<T>; ++lane) sum += total[lane];
      volatile T sink = sum;
      static_cast<void>(sink);
    }
  });
  return 2.0 * kChains * cpu::kVectorLanes<T> * static_cast<double>(kRounds) * threads / time;
}

double bandwidth() {
  const auto bytes = static_cast<std::size_t>(kElements) * sizeof(double);
  const auto array = [bytes] {
    return std::unique_ptr<double, void (*)(void*)>(
        static_cast<double*>(std::aligned_alloc(64, bytes)), std::free);
  };
  const auto a = array();
  const auto b = array();
  const auto c = array();
  if (!a || !b || !c) return 0.0;
  double* const pa = a.get();
  double* const pb = b.get();
  double* const pc = c.get();
  const int threads = thread_count();
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < kElements; ++i) pb[i] = pc[i] = 1.0;
  const double time = best_seconds([=] {
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (std::int64_t i = 0; i < kElements; ++i) pa[i] = pb[i] + 0.5 * pc[i];
  });
  return 3.0 * static_cast<double>(bytes) / time;
}

}  // namespace

MachinePeak measure_machine_peak() { return {flops<float>(), flops<double>(), bandwidth()}; }

}  // namespace tessera::kernels
