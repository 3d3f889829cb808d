#include <algorithm>
#include <cmath>
#include <tessera/kernels/layer_norm.hpp>
#include <vector>

#include "device.hpp"
#include "launch.hpp"
#include "row_loops.hpp"

namespace tessera::kernels {

namespace {

constexpr std::int64_t kRowsPerBlock = 64;  // of the sums over rows

template <class T>
void read_parameter(const View& v, std::int64_t channels, T absent, std::vector<T>& values) {
  values.assign(static_cast<std::size_t>(channels), absent);
  if (v.data != nullptr) load(v.data, v.dtype, v.strides[0], channels, values.data());
}

template <class T>
double lane_sum(const T* v, std::int64_t n, double centre, bool squared) {
  double lanes[kLanes] = {};
  const auto term = [=](T value) {
    const double d = static_cast<double>(value) - centre;
    return squared ? d * d : d;
  };
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) lanes[l] += term(v[i + l]);
  }
  for (int l = 0; i < n; ++i, ++l) lanes[l] += term(v[i]);
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

struct RowStatistics {
  double mean;
  double rstd;
};

template <class T>
RowStatistics statistics(const T* v, std::int64_t n, const LayerNormOptions& options) {
  const double count = static_cast<double>(n);
  const double mean = options.centred ? lane_sum(v, n, 0.0, false) / count : 0.0;
  return {mean, 1.0 / std::sqrt(lane_sum(v, n, mean, true) / count + options.eps)};
}

template <class T>
void forward(const View& x,
             const View& gamma,
             const View& beta,
             const LayerNormOptions& options,
             const View& y) {
  const RowLoops loops("layer_norm", {&x, &y});
  const std::int64_t c = loops.channels;
  std::vector<T> scale, shift;
  read_parameter(gamma, c, T(1), scale);
  read_parameter(beta, c, T(0), shift);
  const T* const s = scale.data();
  const T* const b = shift.data();
  parallel_chunks(loops.rows, c, [&](std::int64_t begin, std::int64_t end) {
    std::vector<T> in(static_cast<std::size_t>(c)), out(static_cast<std::size_t>(c));
    for (std::int64_t r = begin; r < end; ++r) {
      const T* const v = read_row(loops, x, 0, r, in.data());
      const RowStatistics row = statistics(v, c, options);
      const T mean = static_cast<T>(row.mean), rstd = static_cast<T>(row.rstd);
      const bool direct = y.dtype == dtype_of<T> && loops.step[1] == 1;
      char* const dst = row_at(loops, y, 1, r);
      T* const o = direct ? reinterpret_cast<T*>(dst) : out.data();
#pragma omp simd
      for (std::int64_t j = 0; j < c; ++j) o[j] = (v[j] - mean) * rstd * s[j] + b[j];
      if (!direct) store(o, c, dst, y.dtype, loops.step[1]);
    }
  });
}

template <class T>
void backward(const View& x,
              const View& dy,
              const View& gamma,
              const LayerNormOptions& options,
              const View& dx,
              const View& dgamma,
              const View& dbeta) {
  const bool wants_x = dx.data != nullptr;
  const RowLoops loops("layer_norm_grad", {&x, &dy, wants_x ? &dx : &x});
  const std::int64_t c = loops.channels;
  const std::int64_t blocks = (loops.rows + kRowsPerBlock - 1) / kRowsPerBlock;
  const bool wants_parameters = dgamma.data != nullptr || dbeta.data != nullptr;
  std::vector<T> scale;
  read_parameter(gamma, c, T(1), scale);
  const T* const s = scale.data();
  std::vector<double> part(static_cast<std::size_t>(wants_parameters ? 2 * c * blocks : 0), 0.0);
  parallel_chunks(blocks, kRowsPerBlock * c, [&](std::int64_t begin, std::int64_t end) {
    std::vector<T> in(static_cast<std::size_t>(c)), slope(in), out(in);
    for (std::int64_t block = begin; block < end; ++block) {
      double* const sum_xhat = wants_parameters ? part.data() + 2 * c * block : nullptr;
      for (std::int64_t r = block * kRowsPerBlock;
           r < std::min(loops.rows, (block + 1) * kRowsPerBlock); ++r) {
        const T* const v = read_row(loops, x, 0, r, in.data());
        const T* const d = read_row(loops, dy, 1, r, slope.data());
        const RowStatistics row = statistics(v, c, options);
        const T mean = static_cast<T>(row.mean), rstd = static_cast<T>(row.rstd);
        if (wants_parameters) {
#pragma omp simd
          for (std::int64_t j = 0; j < c; ++j) {
            sum_xhat[j] += static_cast<double>(d[j] * ((v[j] - mean) * rstd));
            sum_xhat[c + j] += static_cast<double>(d[j]);
          }
        }
        if (!wants_x) continue;
        double lanes0[kLanes] = {}, lanes1[kLanes] = {};
        const auto add = [&](std::int64_t j, int l) {
          const double g = static_cast<double>(d[j] * s[j]);
          lanes0[l] += g;
          lanes1[l] += g * static_cast<double>((v[j] - mean) * rstd);
        };
        std::int64_t j0 = 0;
        for (; j0 + kLanes <= c; j0 += kLanes) {
#pragma omp simd
          for (int l = 0; l < kLanes; ++l) add(j0 + l, l);
        }
        for (int l = 0; j0 + l < c; ++l) add(j0 + l, l);
        double total0 = 0.0, total1 = 0.0;
        for (int l = 0; l < kLanes; ++l) {
          total0 += lanes0[l];
          total1 += lanes1[l];
        }
        const double count = static_cast<double>(c);
        const T mean0 = static_cast<T>(options.centred ? total0 / count : 0.0);
        const T mean1 = static_cast<T>(total1 / count);
        const bool direct = dx.dtype == dtype_of<T> && loops.step[2] == 1;
        char* const dst = row_at(loops, dx, 2, r);
        T* const o = direct ? reinterpret_cast<T*>(dst) : out.data();
#pragma omp simd
        for (std::int64_t j = 0; j < c; ++j)
          o[j] = rstd * (d[j] * s[j] - mean0 - (v[j] - mean) * rstd * mean1);
        if (!direct) store(o, c, dst, dx.dtype, loops.step[2]);
      }
    }
  });
  if (!wants_parameters || c == 0) return;
  std::vector<double> total(static_cast<std::size_t>(2 * c), 0.0);
  for (std::int64_t block = 0; block < blocks; ++block)
    for (std::size_t j = 0; j < total.size(); ++j)
      total[j] += part[static_cast<std::size_t>(2 * c * block) + j];
  if (dgamma.data != nullptr) store(total.data(), c, dgamma.data, dgamma.dtype, dgamma.strides[0]);
  if (dbeta.data != nullptr) store(total.data() + c, c, dbeta.data, dbeta.dtype, dbeta.strides[0]);
}

}  // namespace

void layer_norm(const View& x,
                const View& gamma,
                const View& beta,
                const LayerNormOptions& options,
                const View& y) {
  if (on_cuda(x)) return cuda::layer_norm(x, gamma, beta, options, y);
  if (x.dtype == DType::kFloat64) {
    forward<double>(x, gamma, beta, options, y);
  } else {
    forward<float>(x, gamma, beta, options, y);
  }
}

void layer_norm_grad(const View& x,
                     const View& dy,
                     const View& gamma,
                     const LayerNormOptions& options,
                     const View& dx,
                     const View& dgamma,
                     const View& dbeta) {
  if (on_cuda(x)) return cuda::layer_norm_grad(x, dy, gamma, options, dx, dgamma, dbeta);
  if (x.dtype == DType::kFloat64) {
    backward<double>(x, dy, gamma, options, dx, dgamma, dbeta);
  } else {
    backward<float>(x, dy, gamma, options, dx, dgamma, dbeta);
  }
}

}  // namespace tessera::kernels
