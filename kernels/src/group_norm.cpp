#include <algorithm>
#include <cmath>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/group_norm.hpp>
#include <vector>

#include "device.hpp"
#include "functors/norm.hpp"
#include "launch.hpp"

namespace tessera::kernels {

namespace {

/// Elements of a block: two passes over it stay in the second-level cache.
constexpr std::int64_t kBlockElements = 16384;

/// Rows of channels of one sample; rows of x and of an optional second and third view run together.
struct Rows {
  LoopNest nest;       // over the domain; operands x, others
  std::int64_t count;  // rows per sample
  std::int64_t channels;
  std::int64_t samples;
  std::int64_t sample_stride[3];
  std::int64_t channel_stride[3];
};

Rows make_rows(const char* op,
               std::span<const View* const> views,
               const GroupNormOptions& options) {
  const View& x = *views[0];
  const int d = x.dims();
  if (d < 2 || options.groups < 1 || x.shape[d - 1] % options.groups != 0) {
    throw ShapeError(str(op, ": ", options.groups, " groups do not divide the channels of ",
                         x.shape, " [N, ..., C]. Choose a divisor of C."));
  }
  View domain[3];
  const View* pointers[3];
  Rows rows{};
  for (std::size_t k = 0; k < views.size(); ++k) {
    const View& v = *views[k];
    domain[k] = v;
    domain[k].shape.resize(d - 1);
    domain[k].strides.resize(d - 1);
    domain[k].shape.erase(0);
    domain[k].strides.erase(0);
    pointers[k] = &domain[k];
    rows.sample_stride[k] = v.strides[0];
    rows.channel_stride[k] = v.strides[d - 1];
  }
  rows.nest = make_loop_nest(op, std::span<const View* const>(pointers, views.size()), false);
  rows.count = rows.nest.total;
  rows.channels = x.shape[d - 1];
  rows.samples = x.shape[0];
  return rows;
}

std::int64_t rows_per_block(std::int64_t channels) {
  return std::max<std::int64_t>(1, kBlockElements / std::max<std::int64_t>(1, channels));
}

char* at(const View& v, std::int64_t offset) {
  return v.as<char>() + offset * static_cast<std::int64_t>(size_of(v.dtype));
}

template <class T>
const T* read_row(
    const View& v, std::int64_t offset, std::int64_t stride, std::int64_t n, T* buffer) {
  if (v.dtype == dtype_of<T> && stride == 1) return reinterpret_cast<const T*>(at(v, offset));
  load(at(v, offset), v.dtype, stride, n, buffer);
  return buffer;
}

std::int64_t row_offset(const Rows& rows, int k, std::int64_t sample, std::int64_t row) {
  return sample * rows.sample_stride[k] + nest_offset(rows.nest, k, row);
}

Moments load_moments(const View& m, std::int64_t n, std::int64_t g) {
  const double* const p = m.as<double>() + n * m.strides[0] + g * m.strides[1];
  return {p[0], p[m.strides[2]], p[2 * m.strides[2]]};
}

void store_moments(const Moments& value, const View& m, std::int64_t n, std::int64_t g) {
  double* const p = m.as<double>() + n * m.strides[0] + g * m.strides[1];
  p[0] = value.count;
  p[m.strides[2]] = value.mean;
  p[2 * m.strides[2]] = value.m2;
}

void require_moments(const char* op, const View& m, std::int64_t samples, std::int64_t groups) {
  if (m.dtype != DType::kFloat64 || !(m.shape == Shape{samples, groups, 3}))
    throw ShapeError(
        str(op, ": moments are ", m.shape, " ", name(m.dtype), ", needed are f64 [N, groups, 3]."));
}

/// Moments of rows [begin, end) of one sample, per group.
template <class T>
void block_moments(const View& x,
                   const Rows& rows,
                   const GroupNormOptions& options,
                   std::int64_t sample,
                   std::int64_t begin,
                   std::int64_t end,
                   Moments* out) {
  const std::int64_t c = rows.channels;
  const std::int64_t width = c / options.groups;
  std::vector<double> sum(static_cast<std::size_t>(c), 0.0);
  std::vector<double> mean(static_cast<std::size_t>(c), 0.0);
  std::vector<T> buffer(static_cast<std::size_t>(c));
  double* const s = sum.data();
  const double* const m = mean.data();
  const double count = static_cast<double>((end - begin) * width);
  const auto group_total = [&](std::int64_t g) {
    double total = 0;
    for (std::int64_t j = 0; j < width; ++j) total += s[g * width + j];
    return total;
  };
  if (options.centred) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* const v =
          read_row(x, row_offset(rows, 0, sample, r), rows.channel_stride[0], c, buffer.data());
#pragma omp simd
      for (std::int64_t j = 0; j < c; ++j) s[j] += static_cast<double>(v[j]);
    }
    for (std::int64_t g = 0; g < options.groups; ++g)
      std::fill_n(mean.begin() + g * width, width, group_total(g) / count);
    std::fill(sum.begin(), sum.end(), 0.0);
  }
  for (std::int64_t r = begin; r < end; ++r) {
    const T* const v =
        read_row(x, row_offset(rows, 0, sample, r), rows.channel_stride[0], c, buffer.data());
#pragma omp simd
    for (std::int64_t j = 0; j < c; ++j) {
      const double d = static_cast<double>(v[j]) - m[j];
      s[j] += d * d;
    }
  }
  for (std::int64_t g = 0; g < options.groups; ++g)
    out[g] = {count, width > 0 ? mean[static_cast<std::size_t>(g * width)] : 0.0, group_total(g)};
}

template <class T>
void moments_of(const View& x, const Rows& rows, const GroupNormOptions& options, const View& out) {
  const std::int64_t depth = rows_per_block(rows.channels);
  const std::int64_t blocks = std::max<std::int64_t>(1, (rows.count + depth - 1) / depth);
  const std::int64_t groups = options.groups;
  std::vector<Moments> part(static_cast<std::size_t>(rows.samples * blocks * groups));
  if (rows.count > 0 && rows.channels > 0) {
    parallel_chunks(rows.samples * blocks, std::min(depth, rows.count) * rows.channels,
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t i = begin; i < end; ++i) {
                        const std::int64_t b = i % blocks;
                        block_moments<T>(x, rows, options, i / blocks, b * depth,
                                         std::min(rows.count, (b + 1) * depth),
                                         part.data() + i * groups);
                      }
                    });
  }
  for (std::int64_t n = 0; n < rows.samples; ++n) {
    for (std::int64_t g = 0; g < groups; ++g) {
      Moments total;
      for (std::int64_t b = 0; b < blocks; ++b)
        total = merge(total, part[static_cast<std::size_t>((n * blocks + b) * groups + g)]);
      store_moments(total, out, n, g);
    }
  }
}

/// mean, rstd, gamma and beta of every channel of a sample, each a dense array of C.
template <class T>
class Channels {
 public:
  Channels(const View& moments,
           const View& gamma,
           const View& beta,
           const GroupNormOptions& options,
           std::int64_t channels)
      : moments_(moments),
        options_(options),
        width_(channels / options.groups),
        data_(static_cast<std::size_t>(4 * channels)),
        mean(data_.data()),
        rstd(mean + channels),
        gamma_(rstd + channels),
        beta_(gamma_ + channels) {
    std::fill_n(gamma_, channels, T(1));
    std::fill_n(beta_, channels, T(0));
    if (gamma.data != nullptr) load(gamma.data, gamma.dtype, gamma.strides[0], channels, gamma_);
    if (beta.data != nullptr) load(beta.data, beta.dtype, beta.strides[0], channels, beta_);
  }
  void select(std::int64_t sample) {
    if (sample == sample_) return;
    sample_ = sample;
    for (std::int64_t g = 0; g < options_.groups; ++g) {
      const Moments m = load_moments(moments_, sample, g);
      const double variance = m.count > 0 ? m.m2 / m.count : 0.0;
      std::fill_n(mean + g * width_, width_, static_cast<T>(m.mean));
      std::fill_n(rstd + g * width_, width_,
                  static_cast<T>(1.0 / std::sqrt(variance + options_.eps)));
    }
  }
  NormChannel<T> operator[](std::int64_t j) const {
    return {mean[j], rstd[j], gamma_[j], beta_[j]};
  }

 private:
  const View& moments_;
  const GroupNormOptions& options_;
  std::int64_t width_;
  std::int64_t sample_ = -1;
  std::vector<T> data_;

 public:
  T* mean;
  T* rstd;

 private:
  T* gamma_;
  T* beta_;
};

std::size_t padded(std::int64_t channels) {
  return static_cast<std::size_t>((channels + kLanes - 1) / kLanes * kLanes);
}

/// Calls f.operator()<T, activation>().
template <class F>
void visit_norm(DType dtype, NormActivation activation, F&& f) {
  const auto with_type = [&]<class T>() {
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
  };
  if (!is_floating(dtype))
    throw DTypeError(
        str("group_norm: element type ", name(dtype), " is not a floating type. Cast it first."));
  if (dtype == DType::kFloat64) {
    with_type.template operator()<double>();
  } else {
    with_type.template operator()<float>();
  }
}

}  // namespace

void group_moments(const View& x, const GroupNormOptions& options, const View& moments) {
  const View* const views[] = {&x};
  const Rows rows = make_rows("group_moments", views, options);
  if (rows.channels == 0) return;  // no groups either
  require_moments("group_moments", moments, rows.samples, options.groups);
  if (on_cuda(x)) return cuda::group_moments(x, options, moments);
  visit_norm(x.dtype, NormActivation::kNone,
             [&]<class T, NormActivation>() { moments_of<T>(x, rows, options, moments); });
}

void merge_moments(const View& parts, const View& moments) {
  require_moments("merge_moments", moments, moments.shape[0], moments.shape[1]);
  if (on_cuda(parts)) return cuda::merge_moments(parts, moments);
  View part = parts;
  part.shape.erase(0);
  part.strides.erase(0);
  for (std::int64_t n = 0; n < moments.shape[0]; ++n) {
    for (std::int64_t g = 0; g < moments.shape[1]; ++g) {
      Moments total;
      for (std::int64_t p = 0; p < parts.shape[0]; ++p) {
        part.data = parts.as<double>() + p * parts.strides[0];
        total = merge(total, load_moments(part, n, g));
      }
      store_moments(total, moments, n, g);
    }
  }
}

void group_norm(const View& x,
                const View& moments,
                const View& gamma,
                const View& beta,
                const GroupNormOptions& options,
                const View& y) {
  const View* const views[] = {&x, &y};
  const Rows rows = make_rows("group_norm", views, options);
  if (rows.channels == 0) return;  // no groups either
  require_moments("group_norm", moments, rows.samples, options.groups);
  if (on_cuda(x)) return cuda::group_norm(x, moments, gamma, beta, options, y);
  visit_norm(x.dtype, options.activation, [&]<class T, NormActivation kActivation>() {
    const std::int64_t c = rows.channels;
    parallel_chunks(rows.samples * rows.count, c, [&](std::int64_t begin, std::int64_t end) {
      Channels<T> channels(moments, gamma, beta, options, c);
      std::vector<T> in(padded(c)), out(padded(c));
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t n = i / rows.count, r = i % rows.count;
        channels.select(n);
        const T* const v =
            read_row(x, row_offset(rows, 0, n, r), rows.channel_stride[0], c, in.data());
        char* const dst = at(y, row_offset(rows, 1, n, r));
        const bool direct = y.dtype == dtype_of<T> && rows.channel_stride[1] == 1;
        T* const o = direct ? reinterpret_cast<T*>(dst) : out.data();
#pragma omp simd
        for (std::int64_t j = 0; j < c; ++j) {
          const NormChannel<T> k = channels[j];
          o[j] = norm_activation<kActivation>((v[j] - k.mean) * k.rstd * k.gamma + k.beta);
        }
        if (!direct) store(o, c, dst, y.dtype, rows.channel_stride[1]);
      }
    });
  });
}

void group_norm_sums(const View& x,
                     const View& dy,
                     const View& moments,
                     const View& gamma,
                     const View& beta,
                     const GroupNormOptions& options,
                     const View& sums,
                     const View& dgamma,
                     const View& dbeta) {
  const View* const views[] = {&x, &dy};
  const Rows rows = make_rows("group_norm_sums", views, options);
  if (rows.channels == 0) return;  // no groups either
  require_moments("group_norm_sums", moments, rows.samples, options.groups);
  if (on_cuda(x)) {
    return cuda::group_norm_sums(x, dy, moments, gamma, beta, options, sums, dgamma, dbeta);
  }
  const std::int64_t c = rows.channels;
  const std::int64_t depth = rows_per_block(c);
  const std::int64_t blocks = (rows.count + depth - 1) / depth;
  // Per block and channel: sum g and sum g xhat.
  std::vector<double> part(static_cast<std::size_t>(rows.samples * blocks * 2 * c), 0.0);
  visit_norm(x.dtype, options.activation, [&]<class T, NormActivation kActivation>() {
    parallel_chunks(
        rows.samples * blocks, std::min(depth, rows.count) * c,
        [&](std::int64_t begin, std::int64_t end) {
          Channels<T> channels(moments, gamma, beta, options, c);
          std::vector<T> in(padded(c)), grad(padded(c));
          for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t n = i / blocks, b = i % blocks;
            channels.select(n);
            double* const s0 = part.data() + i * 2 * c;
            double* const s1 = s0 + c;
            for (std::int64_t r = b * depth; r < std::min(rows.count, (b + 1) * depth); ++r) {
              const T* const v =
                  read_row(x, row_offset(rows, 0, n, r), rows.channel_stride[0], c, in.data());
              const T* const d =
                  read_row(dy, row_offset(rows, 1, n, r), rows.channel_stride[1], c, grad.data());
#pragma omp simd
              for (std::int64_t j = 0; j < c; ++j) {
                const NormChannel<T> k = channels[j];
                const T xhat = (v[j] - k.mean) * k.rstd;
                const T g = d[j] * norm_activation_slope<kActivation>(xhat * k.gamma + k.beta);
                s0[j] += static_cast<double>(g);
                s1[j] += static_cast<double>(g * xhat);
              }
            }
          }
        });
  });
  std::vector<double> scale(static_cast<std::size_t>(c), 1.0);
  if (gamma.data != nullptr) load(gamma.data, gamma.dtype, gamma.strides[0], c, scale.data());
  std::vector<double> total(static_cast<std::size_t>(2 * c), 0.0);
  const std::int64_t width = c / options.groups;
  for (std::int64_t n = 0; n < rows.samples; ++n) {
    std::vector<double> sample(static_cast<std::size_t>(2 * c), 0.0);
    for (std::int64_t b = 0; b < blocks; ++b)
      for (std::size_t j = 0; j < sample.size(); ++j)
        sample[j] += part[static_cast<std::size_t>((n * blocks + b) * 2 * c) + j];
    for (std::size_t j = 0; j < sample.size(); ++j) total[j] += sample[j];
    for (std::int64_t g = 0; g < options.groups; ++g) {
      for (std::int64_t k = 0; k < 2; ++k) {
        double sum = 0;
        for (std::int64_t j = g * width; j < (g + 1) * width; ++j)
          sum += scale[static_cast<std::size_t>(j)] * sample[static_cast<std::size_t>(k * c + j)];
        sums.as<double>()[n * sums.strides[0] + g * sums.strides[1] + k * sums.strides[2]] = sum;
      }
    }
  }
  if (dbeta.data != nullptr) store(total.data(), c, dbeta.data, dbeta.dtype, dbeta.strides[0]);
  if (dgamma.data != nullptr)
    store(total.data() + c, c, dgamma.data, dgamma.dtype, dgamma.strides[0]);
}

void group_norm_input_grad(const View& x,
                           const View& dy,
                           const View& moments,
                           const View& gamma,
                           const View& beta,
                           const View& sums,
                           const GroupNormOptions& options,
                           const View& dx) {
  const View* const views[] = {&x, &dy, &dx};
  const Rows rows = make_rows("group_norm_input_grad", views, options);
  if (rows.channels == 0) return;  // no groups either
  require_moments("group_norm_input_grad", moments, rows.samples, options.groups);
  if (on_cuda(x)) {
    return cuda::group_norm_input_grad(x, dy, moments, gamma, beta, sums, options, dx);
  }
  visit_norm(x.dtype, options.activation, [&]<class T, NormActivation kActivation>() {
    const std::int64_t c = rows.channels;
    const std::int64_t width = c / options.groups;
    parallel_chunks(rows.samples * rows.count, c, [&](std::int64_t begin, std::int64_t end) {
      Channels<T> channels(moments, gamma, beta, options, c);
      std::vector<T> in(padded(c)), grad(padded(c)), out(padded(c)), mean0(padded(c)),
          mean1(padded(c));
      std::int64_t selected = -1;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t n = i / rows.count, r = i % rows.count;
        channels.select(n);
        if (n != selected) {
          selected = n;
          for (std::int64_t g = 0; g < options.groups; ++g) {
            const double count = load_moments(moments, n, g).count;
            const double* const s = sums.as<double>() + n * sums.strides[0] + g * sums.strides[1];
            std::fill_n(mean0.begin() + g * width, width,
                        static_cast<T>(options.centred ? s[0] / count : 0.0));
            std::fill_n(mean1.begin() + g * width, width,
                        static_cast<T>(s[sums.strides[2]] / count));
          }
        }
        const T* const v =
            read_row(x, row_offset(rows, 0, n, r), rows.channel_stride[0], c, in.data());
        const T* const d =
            read_row(dy, row_offset(rows, 1, n, r), rows.channel_stride[1], c, grad.data());
        char* const dst = at(dx, row_offset(rows, 2, n, r));
        const bool direct = dx.dtype == dtype_of<T> && rows.channel_stride[2] == 1;
        T* const o = direct ? reinterpret_cast<T*>(dst) : out.data();
        const T* const m0 = mean0.data();
        const T* const m1 = mean1.data();
#pragma omp simd
        for (std::int64_t j = 0; j < c; ++j) {
          const NormChannel<T> k = channels[j];
          const T xhat = (v[j] - k.mean) * k.rstd;
          const T g = d[j] * norm_activation_slope<kActivation>(xhat * k.gamma + k.beta);
          o[j] = k.rstd * (g * k.gamma - m0[j] - xhat * m1[j]);
        }
        if (!direct) store(o, c, dst, dx.dtype, rows.channel_stride[2]);
      }
    });
  });
}

}  // namespace tessera::kernels
