#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <tessera/core/error.hpp>
#include <tuple>
#include <utility>

#include "loop_nest.hpp"

// How index-wise kernels run on the GPU: one grid-stride kernel per functor, which loads and stores
// any element type through the functors' own type, as the CPU's buffers do.

namespace tessera::kernels::cuda {

inline constexpr int kThreads = 256;
inline constexpr std::int64_t kMaxBlocks = 132 * 16;

inline void check(cudaError_t status, const char* op) {
  if (status != cudaSuccess) {
    throw DeviceError(str(op, ": CUDA says '", cudaGetErrorString(status),
                          "'. Look at the first error of this process."));
  }
}

/// All kernels are queued here, in program order.
cudaStream_t stream();

/// Memory of one call, given back in stream order.
template <class T>
class Scratch {
 public:
  explicit Scratch(std::int64_t count) {
    if (count > 0) {
      check(cudaMallocAsync(reinterpret_cast<void**>(&data_),
                            static_cast<std::size_t>(count) * sizeof(T), stream()),
            "cuda scratch");
    }
  }
  ~Scratch() {
    if (data_ != nullptr) cudaFreeAsync(data_, stream());
  }
  Scratch(const Scratch&) = delete;
  T* get() const { return data_; }

 private:
  T* data_ = nullptr;
};

inline int blocks_for(std::int64_t items, std::int64_t per_block = kThreads) {
  return static_cast<int>(
      std::clamp<std::int64_t>((items + per_block - 1) / per_block, 1, kMaxBlocks));
}

/// A view as a kernel gets it.
struct Memory {
  char* data;
  DType dtype;
};
inline Memory memory(const View& view) { return {view.as<char>(), view.dtype}; }

__device__ inline float bf16_to_float(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}
__device__ inline std::uint16_t float_to_bf16(float value) {
  const std::uint32_t u = __float_as_uint(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
  return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

template <class T>
__device__ T load_at(const Memory& m, std::int64_t i) {
  switch (m.dtype) {
    case DType::kFloat32:
      return static_cast<T>(reinterpret_cast<const float*>(m.data)[i]);
    case DType::kFloat64:
      return static_cast<T>(reinterpret_cast<const double*>(m.data)[i]);
    case DType::kBFloat16:
      return static_cast<T>(bf16_to_float(reinterpret_cast<const std::uint16_t*>(m.data)[i]));
    case DType::kInt32:
      return static_cast<T>(reinterpret_cast<const std::int32_t*>(m.data)[i]);
    case DType::kInt64:
      return static_cast<T>(reinterpret_cast<const std::int64_t*>(m.data)[i]);
    default:
      return static_cast<T>(reinterpret_cast<const std::uint8_t*>(m.data)[i]);
  }
}

template <class T>
__device__ void store_at(const Memory& m, std::int64_t i, T value) {
  switch (m.dtype) {
    case DType::kFloat32:
      reinterpret_cast<float*>(m.data)[i] = static_cast<float>(value);
      return;
    case DType::kFloat64:
      reinterpret_cast<double*>(m.data)[i] = static_cast<double>(value);
      return;
    case DType::kBFloat16:
      reinterpret_cast<std::uint16_t*>(m.data)[i] = float_to_bf16(static_cast<float>(value));
      return;
    case DType::kInt32:
      reinterpret_cast<std::int32_t*>(m.data)[i] = static_cast<std::int32_t>(value);
      return;
    case DType::kInt64:
      reinterpret_cast<std::int64_t*>(m.data)[i] = static_cast<std::int64_t>(value);
      return;
    case DType::kUInt8:
      reinterpret_cast<std::uint8_t*>(m.data)[i] = static_cast<std::uint8_t>(value);
      return;
    case DType::kBool:
      reinterpret_cast<bool*>(m.data)[i] = value != T(0);
      return;
  }
}

/// Offsets of element i in the first kCount operands.
template <int kCount>
__device__ void offsets_of(const LoopNest& nest, std::int64_t i, std::int64_t (&offset)[kCount]) {
  for (int k = 0; k < kCount; ++k) offset[k] = 0;
  if (nest.total <= 0x7fffffff) {
    auto rest = static_cast<std::uint32_t>(i);
    for (int d = nest.dims - 1; d >= 0; --d) {
      const auto size = static_cast<std::uint32_t>(nest.size[d]);
      const std::uint32_t at = d > 0 ? rest % size : rest;
      rest = d > 0 ? rest / size : 0;
      for (int k = 0; k < kCount; ++k) offset[k] += at * nest.stride[k][d];
    }
  } else {
    for (int d = nest.dims - 1; d >= 0; --d) {
      const std::int64_t at = d > 0 ? i % nest.size[d] : i;
      i = d > 0 ? i / nest.size[d] : 0;
      for (int k = 0; k < kCount; ++k) offset[k] += at * nest.stride[k][d];
    }
  }
}

template <int kArity>
struct Operands {
  Memory memory[kArity + 1];
};

template <class T, int kArity, class F, std::size_t... kIndex>
__device__ void apply(const F& f,
                      const Operands<kArity>& operands,
                      const std::int64_t (&offset)[kArity + 1],
                      std::index_sequence<kIndex...>) {
  store_at(operands.memory[0], offset[0],
           f(load_at<T>(operands.memory[kIndex + 1], offset[kIndex + 1])...));
}

template <class T, int kArity, class F>
__global__ void map_kernel(F f, LoopNest nest, Operands<kArity> operands) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < nest.total; i += step) {
    std::int64_t offset[kArity + 1];
    offsets_of(nest, i, offset);
    apply<T, kArity>(f, operands, offset, std::make_index_sequence<kArity>());
  }
}

/// y = f(x...) over all elements.
template <class T, class F, class... Views>
void map(const char* op, const F& f, const View& y, const Views&... x) {
  constexpr int kArity = sizeof...(Views);
  const View* const views[] = {&y, &x...};
  const LoopNest nest = make_loop_nest(op, views);
  if (nest.total == 0) return;
  const Operands<kArity> operands{{memory(y), memory(x)...}};
  map_kernel<T, kArity><<<blocks_for(nest.total), kThreads, 0, stream()>>>(f, nest, operands);
  check(cudaGetLastError(), op);
}

/// f(i) for i in [0, total).
template <class F>
__global__ void each_kernel(std::int64_t total, F f) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total;
       i += step)
    f(i);
}

template <class F>
void each(const char* op, std::int64_t total, const F& f) {
  if (total <= 0) return;
  each_kernel<<<blocks_for(total), kThreads, 0, stream()>>>(total, f);
  check(cudaGetLastError(), op);
}

/// Sum of `value` over the block in a fixed order; valid in thread 0. All threads must call.
template <class Op, class Acc>
__device__ Acc block_fold(Acc value) {
  __shared__ Acc shared[kThreads];
  __syncthreads();
  shared[threadIdx.x] = value;
  for (int width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < width)
      shared[threadIdx.x] = Op::merge(shared[threadIdx.x], shared[threadIdx.x + width]);
  }
  return shared[0];
}

/// Calls f.operator()<T>() with the type that computes on `dtype`: double, float or int64.
template <class F>
void visit_compute(DType dtype, F&& f) {
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

/// The same for floating types only.
template <class F>
void visit_floating_type(DType dtype, F&& f) {
  if (dtype == DType::kFloat64) {
    f.template operator()<double>();
  } else {
    f.template operator()<float>();
  }
}

}  // namespace tessera::kernels::cuda
