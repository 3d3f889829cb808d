#include "device.hpp"
#include "functors/norm.hpp"
#include "functors/reduce.hpp"
#include "launch.cuh"

namespace tessera::kernels::cuda {

namespace {

constexpr std::int64_t kSlice = 16384;  // elements of a block's two passes
constexpr std::int64_t kDepth = 256;    // rows that a thread sums for a channel

struct MomentsOp {
  TESSERA_HD static Moments merge(Moments a, Moments b) { return kernels::merge(a, b); }
};

/// x [N, domain..., C] with others of its shape: loops over the domain, and the outer strides.
struct Grid {
  LoopNest domain;
  std::int64_t samples, rows, channels, groups, width;
  std::int64_t sample_stride[3] = {}, channel_stride[3] = {};

  Grid(std::initializer_list<const View*> views, const GroupNormOptions& options) {
    View inner[3];
    const View* pointers[3];
    int k = 0;
    for (const View* v : views) {
      const int last = v->dims() - 1;
      sample_stride[k] = v->strides[0];
      channel_stride[k] = v->strides[last];
      inner[k] = *v;
      inner[k].shape.resize(last);
      inner[k].strides.resize(last);
      inner[k].shape.erase(0);
      inner[k].strides.erase(0);
      pointers[k] = &inner[k];
      ++k;
    }
    domain = make_loop_nest("group_norm", {pointers, static_cast<std::size_t>(k)}, false);
    const View& x = **views.begin();
    samples = x.shape[0];
    rows = domain.total;
    channels = x.shape[x.dims() - 1];
    groups = options.groups;
    width = channels / groups;
  }

  template <int kCount>
  __device__ void offsets(std::int64_t n,
                          std::int64_t r,
                          std::int64_t c,
                          std::int64_t (&at)[kCount]) const {
    offsets_of(domain, r, at);
    for (int k = 0; k < kCount; ++k) at[k] += n * sample_stride[k] + c * channel_stride[k];
  }
};

struct MomentsView {
  double* data;
  std::int64_t stride[3];

  explicit MomentsView(const View& v)
      : data(v.as<double>()), stride{v.strides[0], v.strides[1], v.strides[2]} {}
  __device__ double at(std::int64_t n, std::int64_t g, int k) const {
    return data[n * stride[0] + g * stride[1] + k * stride[2]];
  }
  __device__ void set(std::int64_t n, std::int64_t g, Moments m) const {
    double* const p = data + n * stride[0] + g * stride[1];
    p[0] = m.count;
    p[stride[2]] = m.mean;
    p[2 * stride[2]] = m.m2;
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

/// part[(n * groups + g) * slices + slice]: a block each.
template <class T>
__global__ void slice_moments(
    Grid grid, Memory x, bool centred, std::int64_t slices, Moments* part) {
  const std::int64_t elements = grid.rows * grid.width;
  const std::int64_t count = grid.samples * grid.groups * slices;
  __shared__ double mean;
  for (std::int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const std::int64_t n = i / slices / grid.groups, g = i / slices % grid.groups;
    const std::int64_t begin = i % slices * kSlice;
    const std::int64_t end = begin + kSlice < elements ? begin + kSlice : elements;
    const auto value = [&](std::int64_t e) {
      std::int64_t at[1];
      grid.offsets(n, e / grid.width, g * grid.width + e % grid.width, at);
      return static_cast<double>(load_at<T>(x, at[0]));
    };
    double sum = 0.0;
    if (centred)
      for (std::int64_t e = begin + threadIdx.x; e < end; e += blockDim.x) sum += value(e);
    sum = block_fold<SumOf<double>>(sum);
    if (threadIdx.x == 0) mean = sum / static_cast<double>(end - begin);
    __syncthreads();
    double m2 = 0.0;
    for (std::int64_t e = begin + threadIdx.x; e < end; e += blockDim.x) {
      const double d = value(e) - mean;
      m2 += d * d;
    }
    m2 = block_fold<SumOf<double>>(m2);
    if (threadIdx.x == 0) part[i] = {static_cast<double>(end - begin), mean, m2};
    __syncthreads();
  }
}

template <class T>
__device__ NormChannel<T> channel_of(const MomentsView& moments,
                                     const Parameter& gamma,
                                     const Parameter& beta,
                                     double eps,
                                     std::int64_t n,
                                     std::int64_t g,
                                     std::int64_t c) {
  const double count = moments.at(n, g, 0);
  const double variance = count > 0 ? moments.at(n, g, 2) / count : 0.0;
  const double mean = moments.at(n, g, 1);
  const T rounded = static_cast<T>(mean);
  return {rounded, static_cast<T>(mean - static_cast<double>(rounded)),
          static_cast<T>(1.0 / ::sqrt(variance + eps)), gamma.at<T>(c, T(1)), beta.at<T>(c, T(0))};
}

template <class F>
void visit_norm(DType dtype, NormActivation activation, F&& f) {
  visit_floating_type(dtype, [&]<class T>() {
    switch (activation) {
      case NormActivation::kNone:
        return f.template operator()<T, NormActivation::kNone>();
      case NormActivation::kRelu:
        return f.template operator()<T, NormActivation::kRelu>();
      case NormActivation::kSilu:
        return f.template operator()<T, NormActivation::kSilu>();
      case NormActivation::kGelu:
        return f.template operator()<T, NormActivation::kGelu>();
    }
  });
}

template <class T, NormActivation kActivation>
void normalise(const Grid& grid,
               MomentsView m,
               Parameter gamma,
               Parameter beta,
               double eps,
               Memory in,
               Memory out) {
  each("group_norm", grid.samples * grid.rows * grid.channels, [=] __device__(std::int64_t i) {
    const std::int64_t c = i % grid.channels, r = i / grid.channels % grid.rows;
    const std::int64_t n = i / grid.channels / grid.rows;
    std::int64_t at[2];
    grid.offsets(n, r, c, at);
    const NormChannel<T> k = channel_of<T>(m, gamma, beta, eps, n, c / grid.width, c);
    store_at<T>(out, at[1],
                norm_activation<kActivation>(
                    ((load_at<T>(in, at[0]) - k.mean) - k.low) * k.rstd * k.gamma + k.beta));
  });
}

/// part[((n * slices + s) * channels + c) * 2 + (0, 1)] = sum g, sum g xhat over a slice of rows.
template <class T, NormActivation kActivation>
void channel_sums(const Grid& grid,
                  MomentsView m,
                  Parameter gamma,
                  Parameter beta,
                  double eps,
                  Memory in,
                  Memory slope,
                  std::int64_t slices,
                  double* part) {
  const std::int64_t channels = grid.channels;
  each("group_norm_sums", grid.samples * slices * channels, [=] __device__(std::int64_t i) {
    const std::int64_t c = i % channels, s = i / channels % slices, n = i / channels / slices;
    const NormChannel<T> k = channel_of<T>(m, gamma, beta, eps, n, c / grid.width, c);
    double s0 = 0.0, s1 = 0.0;
    for (std::int64_t r = s * kDepth; r < (s + 1) * kDepth && r < grid.rows; ++r) {
      std::int64_t at[2];
      grid.offsets(n, r, c, at);
      const T xhat = ((load_at<T>(in, at[0]) - k.mean) - k.low) * k.rstd;
      const T g =
          load_at<T>(slope, at[1]) * norm_activation_slope<kActivation>(xhat * k.gamma + k.beta);
      s0 += static_cast<double>(g);
      s1 += static_cast<double>(g * xhat);
    }
    part[2 * i] = s0;
    part[2 * i + 1] = s1;
  });
}

template <class T, NormActivation kActivation>
void input_grad(const Grid& grid,
                MomentsView m,
                MomentsView total,
                Parameter gamma,
                Parameter beta,
                const GroupNormOptions& options,
                Memory in,
                Memory slope,
                Memory out) {
  const double eps = options.eps;
  const bool centred = options.centred;
  each("group_norm_input_grad", grid.samples * grid.rows * grid.channels,
       [=] __device__(std::int64_t i) {
         const std::int64_t c = i % grid.channels, r = i / grid.channels % grid.rows;
         const std::int64_t n = i / grid.channels / grid.rows, group = c / grid.width;
         std::int64_t at[3];
         grid.offsets(n, r, c, at);
         const NormChannel<T> k = channel_of<T>(m, gamma, beta, eps, n, group, c);
         const double count = m.at(n, group, 0);
         const T mean0 = static_cast<T>(centred ? total.at(n, group, 0) / count : 0.0);
         const T mean1 = static_cast<T>(total.at(n, group, 1) / count);
         const T xhat = ((load_at<T>(in, at[0]) - k.mean) - k.low) * k.rstd;
         const T g =
             load_at<T>(slope, at[1]) * norm_activation_slope<kActivation>(xhat * k.gamma + k.beta);
         store_at<T>(out, at[2], k.rstd * (g * k.gamma - mean0 - xhat * mean1));
       });
}

}  // namespace

void group_moments(const View& x, const GroupNormOptions& options, const View& moments) {
  const Grid grid({&x}, options);
  const std::int64_t slices = (grid.rows * grid.width + kSlice - 1) / kSlice;
  const std::int64_t slots = grid.samples * grid.groups;
  const Scratch<Moments> scratch(slots * slices);
  Moments* const part = scratch.get();
  if (slots * slices > 0) {
    visit_floating_type(x.dtype, [&]<class T>() {
      slice_moments<T><<<blocks_for(slots * slices, 1), kThreads, 0, stream()>>>(
          grid, memory(x), options.centred, slices, part);
    });
    check(cudaGetLastError(), "group_moments");
  }
  const MomentsView out(moments);
  const std::int64_t groups = grid.groups;
  each("group_moments", slots, [=] __device__(std::int64_t i) {
    Moments total;
    for (std::int64_t s = 0; s < slices; ++s) total = MomentsOp::merge(total, part[i * slices + s]);
    out.set(i / groups, i % groups, total);
  });
}

void merge_moments(const View& parts, const View& moments) {
  View first = parts;
  first.shape.erase(0);
  first.strides.erase(0);
  const MomentsView in(first), out(moments);
  const std::int64_t count = parts.shape[0], stride = parts.strides[0], groups = moments.shape[1];
  each("merge_moments", moments.shape[0] * groups, [=] __device__(std::int64_t i) {
    Moments total;
    MomentsView part = in;
    for (std::int64_t p = 0; p < count; ++p) {
      part.data = in.data + p * stride;
      const std::int64_t n = i / groups, g = i % groups;
      total = MomentsOp::merge(total, {part.at(n, g, 0), part.at(n, g, 1), part.at(n, g, 2)});
    }
    out.set(i / groups, i % groups, total);
  });
}

void group_norm(const View& x,
                const View& moments,
                const View& gamma_view,
                const View& beta_view,
                const GroupNormOptions& options,
                const View& y) {
  const Grid grid({&x, &y}, options);
  const MomentsView m(moments);
  const Parameter gamma(gamma_view), beta(beta_view);
  const Memory in = memory(x), out = memory(y);
  const double eps = options.eps;
  visit_norm(x.dtype, options.activation, [&]<class T, NormActivation kActivation>() {
    normalise<T, kActivation>(grid, m, gamma, beta, eps, in, out);
  });
}

void group_norm_sums(const View& x,
                     const View& dy,
                     const View& moments,
                     const View& gamma_view,
                     const View& beta_view,
                     const GroupNormOptions& options,
                     const View& sums,
                     const View& dgamma,
                     const View& dbeta) {
  const Grid grid({&x, &dy}, options);
  const MomentsView m(moments), out(sums);
  const Parameter gamma(gamma_view), beta(beta_view);
  const Memory in = memory(x), slope = memory(dy);
  const double eps = options.eps;
  const std::int64_t slices = (grid.rows + kDepth - 1) / kDepth;
  const std::int64_t channels = grid.channels, samples = grid.samples;
  const Scratch<double> scratch(2 * samples * (slices + 1) * channels);
  double* const part = scratch.get();
  double* const sample = part + 2 * samples * slices * channels;
  visit_norm(x.dtype, options.activation, [&]<class T, NormActivation kActivation>() {
    channel_sums<T, kActivation>(grid, m, gamma, beta, eps, in, slope, slices, part);
  });
  each("group_norm_sums", 2 * samples * channels, [=] __device__(std::int64_t i) {
    const std::int64_t k = i % 2, c = i / 2 % channels, n = i / 2 / channels;
    double sum = 0.0;
    for (std::int64_t s = 0; s < slices; ++s)
      sum += part[2 * ((n * slices + s) * channels + c) + k];
    sample[i] = sum;
  });
  const std::int64_t groups = grid.groups, width = grid.width;
  each("group_norm_sums", 2 * samples * groups, [=] __device__(std::int64_t i) {
    const std::int64_t k = i % 2, g = i / 2 % groups, n = i / 2 / groups;
    double sum = 0.0;
    for (std::int64_t c = g * width; c < (g + 1) * width; ++c)
      sum += gamma.at<double>(c, 1.0) * sample[2 * (n * channels + c) + k];
    out.data[n * out.stride[0] + g * out.stride[1] + k * out.stride[2]] = sum;
  });
  const Parameter slope_gamma(dgamma), slope_beta(dbeta);
  each("group_norm_sums", channels, [=] __device__(std::int64_t c) {
    double s0 = 0.0, s1 = 0.0;
    for (std::int64_t n = 0; n < samples; ++n) {
      s0 += sample[2 * (n * channels + c)];
      s1 += sample[2 * (n * channels + c) + 1];
    }
    if (slope_beta.memory.data != nullptr)
      store_at<double>(slope_beta.memory, c * slope_beta.stride, s0);
    if (slope_gamma.memory.data != nullptr)
      store_at<double>(slope_gamma.memory, c * slope_gamma.stride, s1);
  });
}

void group_norm_input_grad(const View& x,
                           const View& dy,
                           const View& moments,
                           const View& gamma_view,
                           const View& beta_view,
                           const View& sums,
                           const GroupNormOptions& options,
                           const View& dx) {
  const Grid grid({&x, &dy, &dx}, options);
  const MomentsView m(moments), total(sums);
  const Parameter gamma(gamma_view), beta(beta_view);
  const Memory in = memory(x), slope = memory(dy), out = memory(dx);
  visit_norm(x.dtype, options.activation, [&]<class T, NormActivation kActivation>() {
    input_grad<T, kActivation>(grid, m, total, gamma, beta, options, in, slope, out);
  });
}

}  // namespace tessera::kernels::cuda
