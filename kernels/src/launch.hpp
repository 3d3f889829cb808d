#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <span>
#include <tessera/core/threads.hpp>
#include <tessera/core/view.hpp>

#include "loop_nest.hpp"

// How index-wise kernels run on the CPU.
//
// A functor is compiled once per element type as a `block function`: it computes whole groups of
// kLanes elements from dense arrays to a dense array. The driver (`map`, not a template of the
// functor) walks the views and hands full groups of dense rows over in place; everything else (row
// ends, strides, broadcasts, other element types) passes through small buffers. So an element goes
// through the same instructions wherever it lies, and only block functions multiply compile time.

namespace tessera::kernels {

/// Elements per group of a block function: a full vector register of floats.
inline constexpr int kLanes = 16;
/// Elements per pass through the buffers.
inline constexpr std::int64_t kBlock = 512;
/// Below this many elements a thread team costs more than it saves.
inline constexpr std::int64_t kParallelElements = 32768;
/// Elements per unit of parallel work.
inline constexpr std::int64_t kChunk = 16384;

/// Runs f(i) for i in [0, count), on threads where allowed; the calling thread polls for messages
/// in between. The partition is the caller's, so that results cannot depend on the number of
/// threads. The first exception of f is thrown again.
template <class F>
void parallel_for(std::int64_t count, F&& f) {
  const int threads = static_cast<int>(std::min<std::int64_t>(thread_count(), count));
  if (threads <= 1 || omp_in_parallel()) {
    for (std::int64_t i = 0; i < count; ++i) {
      f(i);
      if (i + 1 < count) poll_progress();
    }
    return;
  }
  std::exception_ptr error;
#pragma omp parallel num_threads(threads)
  {
    const bool master = omp_get_thread_num() == 0;
#pragma omp for schedule(dynamic)
    for (std::int64_t i = 0; i < count; ++i) {
      try {
        f(i);
        if (master) poll_progress();
      } catch (...) {
#pragma omp critical(tessera_parallel_for)
        if (!error) error = std::current_exception();
      }
    }
  }
  if (error) std::rethrow_exception(error);
}

/// Same over [0, n) in fixed chunks f(begin, end) of about kChunk elements, when an item stands for
/// `elements` of them; on the calling thread alone below kParallelElements.
template <class F>
void parallel_chunks(std::int64_t n, std::int64_t elements, F&& f) {
  if (n <= 0) return;
  elements = std::max<std::int64_t>(1, elements);
  const std::int64_t chunk = std::max<std::int64_t>(1, kChunk / elements);
  const std::int64_t count = (n + chunk - 1) / chunk;
  const auto run = [&](std::int64_t i) { f(i * chunk, std::min(n, (i + 1) * chunk)); };
  if (n < kParallelElements / elements) {
    for (std::int64_t i = 0; i < count; ++i) run(i);
  } else {
    parallel_for(count, run);
  }
}

/// dst[i] = T(src[i * stride]) for n elements of type `dtype`.
template <class T>
void load(const void* src, DType dtype, std::int64_t stride, std::int64_t n, T* dst);
/// dst[i * stride] = src[i] in type `dtype`: bf16 rounds to nearest even, bool is x != 0.
template <class T>
void store(const T* src, std::int64_t n, void* dst, DType dtype, std::int64_t stride);

/// out[i] = f(in[0][i], ...) for groups * kLanes elements.
template <class T>
using BlockFunction =
    void (*)(const void* functor, const T* const* in, T* out, std::int64_t groups);

/// y = f(x...) over all elements; see the head of this file.
template <class T>
void map(const char* op,
         BlockFunction<T> block,
         const void* functor,
         const View& y,
         std::span<const View* const> x);

namespace detail {

template <int kArity, class F, class T>
void block_of(const void* functor, const T* const* in, T* out, std::int64_t groups) {
  const F f = *static_cast<const F*>(functor);
  for (std::int64_t g = 0; g < groups; ++g) {
    T* const o = out + g * kLanes;
    if constexpr (kArity == 0) {
#pragma omp simd
      for (int l = 0; l < kLanes; ++l) o[l] = f();
    } else if constexpr (kArity == 1) {
      const T* const a = in[0] + g * kLanes;
#pragma omp simd
      for (int l = 0; l < kLanes; ++l) o[l] = f(a[l]);
    } else if constexpr (kArity == 2) {
      const T* const a = in[0] + g * kLanes;
      const T* const b = in[1] + g * kLanes;
#pragma omp simd
      for (int l = 0; l < kLanes; ++l) o[l] = f(a[l], b[l]);
    } else {
      static_assert(kArity == 3);
      const T* const a = in[0] + g * kLanes;
      const T* const b = in[1] + g * kLanes;
      const T* const c = in[2] + g * kLanes;
#pragma omp simd
      for (int l = 0; l < kLanes; ++l) o[l] = f(a[l], b[l], c[l]);
    }
  }
}

}  // namespace detail

/// y = f(x...) with a functor of `T(T...)`.
template <class T, class F, class... Views>
void map_functor(const char* op, const F& f, const View& y, const Views&... x) {
  const View* const in[] = {&x..., nullptr};
  map<T>(op, &detail::block_of<static_cast<int>(sizeof...(x)), F, T>, &f, y,
         std::span<const View* const>(in, sizeof...(x)));
}

/// Calls f.operator()<T>() with the type that computes on `dtype`: double, float or int64.
template <class F>
decltype(auto) visit_compute_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat64:
      return f.template operator()<double>();
    case DType::kFloat32:
    case DType::kBFloat16:
      return f.template operator()<float>();
    default:
      return f.template operator()<std::int64_t>();
  }
}

}  // namespace tessera::kernels
