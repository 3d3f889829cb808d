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
#include <vector>

#include "simd.hpp"

namespace tessera::kernels {

namespace {

constexpr int kChains = 10;  // independent sums: the latency of a multiply-add times two units
constexpr std::int64_t kRounds = 400000;
constexpr std::int64_t kElements = 8 << 20;  // doubles per array

// What the compiler neither knows nor may leave out.
volatile double unknown = 0.5;
volatile double wanted = 0.0;

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
  const T factor = static_cast<T>(unknown);  // the sums tend to 1
  std::vector<T> results(static_cast<std::size_t>(threads));
  T* const result = results.data();
  const double time = best_seconds([threads, factor, result] {
#pragma omp parallel num_threads(threads)
    {
      const Vector a = Vector{} + factor;
      const Vector b = Vector{} + factor;
      // Not an array: these have to stay in registers at any level of optimisation.
      Vector s0 = a, s1 = s0 + a, s2 = s1 + a, s3 = s2 + a, s4 = s3 + a, s5 = s4 + a, s6 = s5 + a,
             s7 = s6 + a, s8 = s7 + a, s9 = s8 + a;
      for (std::int64_t i = 0; i < kRounds; ++i) {
        s0 = s0 * a + b;
        s1 = s1 * a + b;
        s2 = s2 * a + b;
        s3 = s3 * a + b;
        s4 = s4 * a + b;
        s5 = s5 * a + b;
        s6 = s6 * a + b;
        s7 = s7 * a + b;
        s8 = s8 * a + b;
        s9 = s9 * a + b;
      }
      const Vector total = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9;
      // All lanes count: the compiler computes no others.
      T sum = 0;
      for (int lane = 0; lane < cpu::kVectorLanes<T>; ++lane) sum += total[lane];
      result[omp_get_thread_num()] = sum;
    }
  });
  for (const T sum : results) wanted = wanted + static_cast<double>(sum);
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
