#include "device.hpp"
#include "functors/reduce.hpp"
#include "launch.cuh"

namespace tessera::kernels::cuda {

namespace {

constexpr std::int64_t kDepth = 256;  // rows that a thread sums for a channel

/// Rows of views of one shape [..., C].
struct RowLoops {
  LoopNest nest;
  std::int64_t channels;
  std::int64_t step[3] = {};

  RowLoops(std::initializer_list<const View*> views) {
    View lead[3];
    const View* pointers[3];
    std::size_t k = 0;
    for (const View* v : views) {
      const int last = v->dims() - 1;
      lead[k] = *v;
      lead[k].shape.resize(last);
      lead[k].strides.resize(last);
      step[k] = v->strides[last];
      pointers[k] = &lead[k];
      ++k;
    }
    channels = (*views.begin())->shape.back();
    nest = make_loop_nest("layer_norm", {pointers, k}, false);
  }
};

struct Parameter {
  Memory memory;
  std::int64_t stride;
  explicit Parameter(const View& v)
      : memory(cuda::memory(v)), stride(v.data != nullptr ? v.strides[0] : 0) {}
  template <class T>
  __device__ T at(std::int64_t c, T absent) const {
    return memory.data != nullptr ? load_at<T>(memory, c * stride) : absent;
  }
};

/// Mean and reciprocal deviation of a row, for all threads of the block.
template <class T>
__device__ void row_statistics(const RowLoops& loops,
                               const Memory& x,
                               std::int64_t offset,
                               double eps,
                               bool centred,
                               double& mean,
                               double& rstd) {
  __shared__ double shared[2];
  const double count = static_cast<double>(loops.channels);
  double sum = 0.0;
  if (centred)
    for (std::int64_t j = threadIdx.x; j < loops.channels; j += blockDim.x)
      sum += static_cast<double>(load_at<T>(x, offset + j * loops.step[0]));
  sum = block_fold<SumOf<double>>(sum);
  if (threadIdx.x == 0) shared[0] = sum / count;
  __syncthreads();
  mean = shared[0];
  double m2 = 0.0;
  for (std::int64_t j = threadIdx.x; j < loops.channels; j += blockDim.x) {
    const double d = static_cast<double>(load_at<T>(x, offset + j * loops.step[0])) - mean;
    m2 += d * d;
  }
  m2 = block_fold<SumOf<double>>(m2);
  if (threadIdx.x == 0) shared[1] = 1.0 / ::sqrt(m2 / count + eps);
  __syncthreads();
  rstd = shared[1];
}

template <class T>
__global__ void forward_kernel(
    RowLoops loops, Memory x, Parameter gamma, Parameter beta, double eps, bool centred, Memory y) {
  for (std::int64_t r = blockIdx.x; r < loops.nest.total; r += gridDim.x) {
    std::int64_t at[2];
    offsets_of(loops.nest, r, at);
    double mean, rstd;
    row_statistics<T>(loops, x, at[0], eps, centred, mean, rstd);
    for (std::int64_t j = threadIdx.x; j < loops.channels; j += blockDim.x) {
      const T value = load_at<T>(x, at[0] + j * loops.step[0]);
      store_at<T>(y, at[1] + j * loops.step[1],
                  (value - static_cast<T>(mean)) * static_cast<T>(rstd) * gamma.at<T>(j, T(1)) +
                      beta.at<T>(j, T(0)));
    }
  }
}

/// dx where wanted, and (mean, rstd) of every row for the sums over rows.
template <class T>
__global__ void backward_kernel(RowLoops loops,
                                Memory x,
                                Memory dy,
                                Parameter gamma,
                                double eps,
                                bool centred,
                                Memory dx,
                                double* statistics) {
  __shared__ double shared[2];
  const double count = static_cast<double>(loops.channels);
  for (std::int64_t r = blockIdx.x; r < loops.nest.total; r += gridDim.x) {
    std::int64_t at[3];
    offsets_of(loops.nest, r, at);
    double mean, rstd;
    row_statistics<T>(loops, x, at[0], eps, centred, mean, rstd);
    if (threadIdx.x == 0) {
      statistics[2 * r] = mean;
      statistics[2 * r + 1] = rstd;
    }
    if (dx.data == nullptr) continue;
    const T m = static_cast<T>(mean), s = static_cast<T>(rstd);
    double s0 = 0.0, s1 = 0.0;
    for (std::int64_t j = threadIdx.x; j < loops.channels; j += blockDim.x) {
      const T g = load_at<T>(dy, at[1] + j * loops.step[1]) * gamma.at<T>(j, T(1));
      const T xhat = (load_at<T>(x, at[0] + j * loops.step[0]) - m) * s;
      s0 += static_cast<double>(g);
      s1 += static_cast<double>(g) * static_cast<double>(xhat);
    }
    s0 = block_fold<SumOf<double>>(s0);
    if (threadIdx.x == 0) shared[0] = centred ? s0 / count : 0.0;
    s1 = block_fold<SumOf<double>>(s1);
    if (threadIdx.x == 0) shared[1] = s1 / count;
    __syncthreads();
    const T mean0 = static_cast<T>(shared[0]), mean1 = static_cast<T>(shared[1]);
    for (std::int64_t j = threadIdx.x; j < loops.channels; j += blockDim.x) {
      const T g = load_at<T>(dy, at[1] + j * loops.step[1]) * gamma.at<T>(j, T(1));
      const T xhat = (load_at<T>(x, at[0] + j * loops.step[0]) - m) * s;
      store_at<T>(dx, at[2] + j * loops.step[2], s * (g - mean0 - xhat * mean1));
    }
    __syncthreads();
  }
}

template <class T>
void parameter_sums(const RowLoops& loops,
                    Memory x,
                    Memory dy,
                    const double* statistics,
                    const View& dgamma_view,
                    const View& dbeta_view) {
  const std::int64_t channels = loops.channels, rows = loops.nest.total;
  const std::int64_t slices = (rows + kDepth - 1) / kDepth;
  const Scratch<double> scratch(2 * slices * channels);
  double* const part = scratch.get();
  each("layer_norm_grad", slices * channels, [=] __device__(std::int64_t i) {
    const std::int64_t c = i % channels, slice = i / channels;
    double s0 = 0.0, s1 = 0.0;
    for (std::int64_t r = slice * kDepth; r < (slice + 1) * kDepth && r < rows; ++r) {
      std::int64_t at[3];
      offsets_of(loops.nest, r, at);
      const T mean = static_cast<T>(statistics[2 * r]),
              rstd = static_cast<T>(statistics[2 * r + 1]);
      const T d = load_at<T>(dy, at[1] + c * loops.step[1]);
      s0 += static_cast<double>(d * ((load_at<T>(x, at[0] + c * loops.step[0]) - mean) * rstd));
      s1 += static_cast<double>(d);
    }
    part[2 * i] = s0;
    part[2 * i + 1] = s1;
  });
  const Parameter dgamma(dgamma_view), dbeta(dbeta_view);
  each("layer_norm_grad", channels, [=] __device__(std::int64_t c) {
    double s0 = 0.0, s1 = 0.0;
    for (std::int64_t s = 0; s < slices; ++s) {
      s0 += part[2 * (s * channels + c)];
      s1 += part[2 * (s * channels + c) + 1];
    }
    if (dgamma.memory.data != nullptr) store_at<double>(dgamma.memory, c * dgamma.stride, s0);
    if (dbeta.memory.data != nullptr) store_at<double>(dbeta.memory, c * dbeta.stride, s1);
  });
}

}  // namespace

void layer_norm(const View& x,
                const View& gamma,
                const View& beta,
                const LayerNormOptions& options,
                const View& y) {
  const RowLoops loops({&x, &y});
  if (x.empty()) return;
  visit_floating_type(x.dtype, [&]<class T>() {
    forward_kernel<T><<<blocks_for(loops.nest.total, 1), kThreads, 0, stream()>>>(
        loops, memory(x), Parameter(gamma), Parameter(beta), options.eps, options.centred,
        memory(y));
  });
  check(cudaGetLastError(), "layer_norm");
}

void layer_norm_grad(const View& x,
                     const View& dy,
                     const View& gamma,
                     const LayerNormOptions& options,
                     const View& dx,
                     const View& dgamma,
                     const View& dbeta) {
  const RowLoops loops({&x, &dy, dx.data != nullptr ? &dx : &x});
  const std::int64_t rows = x.empty() ? 0 : loops.nest.total;
  const Scratch<double> statistics(2 * rows);
  visit_floating_type(x.dtype, [&]<class T>() {
    if (rows > 0) {
      backward_kernel<T><<<blocks_for(rows, 1), kThreads, 0, stream()>>>(
          loops, memory(x), memory(dy), Parameter(gamma), options.eps, options.centred, memory(dx),
          statistics.get());
      check(cudaGetLastError(), "layer_norm_grad");
    }
    if (dgamma.data != nullptr || dbeta.data != nullptr)
      parameter_sums<T>(loops, memory(x), memory(dy), statistics.get(), dgamma, dbeta);
  });
}

}  // namespace tessera::kernels::cuda
