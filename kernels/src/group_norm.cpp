#include <cmath>
#include <tessera/core/dry_run.hpp>

#include "device.hpp"
#include "norm_rows.hpp"

namespace tessera::kernels {

using namespace norm_rows;

namespace {

/// What of a mean does not fit into the type of the values: it counts where a mean is large beside
/// the deviation.
template <class T>
double low_part(double mean) {
  return mean - static_cast<double>(static_cast<T>(mean));
}

/// What belongs to the channels of a sample, repeated over the rows of a strip: with d = x - mean
/// (the mean rounded to T, low = what that leaves out), xhat = (d - low) rstd and z = d scale +
/// shift (scale = rstd gamma, shift = beta - low scale).
template <class T>
class Channels {
 public:
  Channels(const View& moments,
           const View& gamma,
           const View& beta,
           const GroupNormOptions& options,
           const Rows& rows)
      : moments_(moments),
        options_(options),
        c_(rows.channels),
        strip_(rows_per_strip(rows)),
        stride_(padded(strip_ * c_)),
        data_(4 * stride_),
        gamma_(static_cast<std::size_t>(c_), T(1)),
        beta_(static_cast<std::size_t>(c_), T(0)),
        mean(data_.data()),
        rstd(mean + stride_),
        scale(rstd + stride_),
        shift(scale + stride_) {
    if (gamma.data != nullptr) load(gamma.data, gamma.dtype, gamma.strides[0], c_, gamma_.data());
    if (beta.data != nullptr) load(beta.data, beta.dtype, beta.strides[0], c_, beta_.data());
  }
  Channels(Channels&&) = default;  // not copied: the pointers stay with the memory

  /// Whether the sample is another one than before.
  bool select(std::int64_t sample) {
    if (sample == sample_) return false;
    sample_ = sample;
    const std::int64_t width = c_ / options_.groups;
    for (std::int64_t g = 0; g < options_.groups; ++g) {
      const Moments m = load_moments(moments_, sample, g);
      const double variance = m.count > 0 ? m.m2 / m.count : 0.0;
      std::fill_n(mean + g * width, width, static_cast<T>(m.mean));
      std::fill_n(rstd + g * width, width,
                  static_cast<T>(1.0 / std::sqrt(variance + options_.eps)));
      const T low = static_cast<T>(low_part<T>(m.mean));
      for (std::int64_t j = g * width; j < (g + 1) * width; ++j) {
        scale[j] = rstd[j] * gamma_[static_cast<std::size_t>(j)];
        shift[j] = beta_[static_cast<std::size_t>(j)] - low * scale[j];
      }
    }
    for (T* values : {mean, rstd, scale, shift}) repeat(values);
    return true;
  }
  /// Repeats the first C values over a strip.
  void repeat(T* values) const {
    for (std::int64_t r = 1; r < strip_; ++r) std::copy_n(values, c_, values + r * c_);
  }
  std::size_t stride() const { return stride_; }

 private:
  const View& moments_;
  const GroupNormOptions& options_;
  std::int64_t c_;
  std::int64_t strip_;
  std::size_t stride_;
  std::int64_t sample_ = -1;
  std::vector<T> data_;
  std::vector<T> gamma_;
  std::vector<T> beta_;

 public:
  T* mean;
  T* rstd;
  T* scale;
  T* shift;
};

/// make()(sample, first row, rows) over the strips of all samples, on threads: one call of make()
/// per share of the work.
template <class F>
void for_each_strip(const Rows& rows, const F& make) {
  const std::int64_t strip = rows_per_strip(rows);
  const std::int64_t strips = (rows.count + strip - 1) / strip;
  parallel_chunks(rows.samples * strips, strip * rows.channels,
                  [&](std::int64_t begin, std::int64_t end) {
                    auto f = make();
                    for (std::int64_t i = begin; i < end; ++i) {
                      const std::int64_t r = i % strips * strip;
                      f(i / strips, r, std::min(strip, rows.count - r));
                    }
                  });
}

}  // namespace

void group_norm(const View& x,
                const View& moments,
                const View& gamma,
                const View& beta,
                const GroupNormOptions& options,
                const View& y) {
  if (dry_run()) return;
  const View* const views[] = {&x, &y};
  const Rows rows = make_rows("group_norm", views, options);
  if (rows.channels == 0) return;  // no groups either
  require_moments("group_norm", moments, rows.samples, options.groups);
  if (on_cuda(x)) return cuda::group_norm(x, moments, gamma, beta, options, y);
  visit_norm(x.dtype, options.activation, [&]<class T, NormActivation kActivation>() {
    for_each_strip(rows, [&] {
      return [&, channels = Channels<T>(moments, gamma, beta, options, rows),
              from = Strips<T>(x, rows, 0), to = Strips<T>(y, rows, 1)](
                 std::int64_t n, std::int64_t r, std::int64_t count) mutable {
        channels.select(n);
        const T* const v = from.read(n, r, count, true);
        T* const o = to.target(n, r, count);
        const T *const mean = channels.mean, *const scale = channels.scale,
                       *const shift = channels.shift;
        for_each_group(count * rows.channels, [=](std::int64_t j) {
          o[j] = norm_activation<kActivation>((v[j] - mean[j]) * scale[j] + shift[j]);
        });
        to.write(n, r, count);
      };
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
  const std::int64_t depth = rows_per_block(rows);
  const std::int64_t blocks = (rows.count + depth - 1) / depth;
  const std::int64_t strip = rows_per_strip(rows);
  // Per block and channel: sum g and sum g xhat.
  std::vector<double> part(static_cast<std::size_t>(rows.samples * blocks * 2 * c), 0.0);
  visit_norm(x.dtype, options.activation, [&]<class T, NormActivation kActivation>() {
    parallel_chunks(rows.samples * blocks, std::min(depth, rows.count) * c,
                    [&](std::int64_t begin, std::int64_t end) {
                      Channels<T> channels(moments, gamma, beta, options, rows);
                      Strips<T> in(x, rows, 0), grad(dy, rows, 1);
                      std::vector<double> sum(static_cast<std::size_t>(2 * strip * c));
                      for (std::int64_t i = begin; i < end; ++i) {
                        const std::int64_t n = i / blocks, b = i % blocks;
                        channels.select(n);
                        std::fill(sum.begin(), sum.end(), 0.0);
                        double* const s0 = sum.data();
                        double* const s1 = s0 + strip * c;
                        const T *const mean = channels.mean, *const rstd = channels.rstd,
                                       *const scale = channels.scale, *const shift = channels.shift;
                        const std::int64_t last = std::min(rows.count, (b + 1) * depth);
                        for (std::int64_t r = b * depth; r < last; r += strip) {
                          const std::int64_t count = std::min(strip, last - r);
                          const T* const v = in.read(n, r, count, false);
                          const T* const d = grad.read(n, r, count, false);
                          for_each_lane(count * c, [=](std::int64_t j) {
                            const T centred = v[j] - mean[j];
                            const T g = d[j] * norm_activation_slope<kActivation>(
                                                   centred * scale[j] + shift[j]);
                            s0[j] += static_cast<double>(g);
                            s1[j] += static_cast<double>(g * (centred * rstd[j]));
                          });
                        }
                        double* const total = part.data() + i * 2 * c;
                        for (std::int64_t r = 0; r < strip; ++r)
                          for (std::int64_t j = 0; j < c; ++j) {
                            total[j] += s0[r * c + j];
                            total[c + j] += s1[r * c + j];
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
    for (std::int64_t j = 0; j < c; ++j) {
      const Moments m = load_moments(moments, n, j / width);
      const double variance = m.count > 0 ? m.m2 / m.count : 0.0;
      const double low = x.dtype == DType::kFloat64 ? 0.0 : low_part<float>(m.mean);
      sample[static_cast<std::size_t>(c + j)] -=
          low / std::sqrt(variance + options.eps) * sample[static_cast<std::size_t>(j)];
    }
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
                           const View& dx,
                           const View& weight) {
  const View* const views[] = {&x, &dy, &dx, &weight};
  const bool weighted = weight.data != nullptr;
  const Rows rows = make_rows("group_norm_input_grad", std::span(views, weighted ? 4 : 3), options);
  if (rows.channels == 0) return;  // no groups either
  require_moments("group_norm_input_grad", moments, rows.samples, options.groups);
  if (on_cuda(x)) {
    if (weighted) throw_weights_on_cuda();
    return cuda::group_norm_input_grad(x, dy, moments, gamma, beta, sums, options, dx);
  }
  visit_norm(x.dtype, options.activation, [&]<class T, NormActivation kActivation>() {
    const std::int64_t width = rows.channels / options.groups;
    for_each_strip(rows, [&] {
      Channels<T> channels(moments, gamma, beta, options, rows);
      // dx = g scale - weight (offset + d slope)
      std::vector<T> factors(2 * channels.stride());
      return [&, channels = std::move(channels), factors = std::move(factors),
              in = Strips<T>(x, rows, 0), grad = Strips<T>(dy, rows, 1),
              to = Strips<T>(dx, rows, 2),
              weights = Strips<T>(weighted ? weight : x, rows, weighted ? 3 : 0)](
                 std::int64_t n, std::int64_t r, std::int64_t count) mutable {
        T* const offset = factors.data();
        T* const slope = offset + channels.stride();
        if (channels.select(n)) {
          for (std::int64_t g = 0; g < options.groups; ++g) {
            const Moments m = load_moments(moments, n, g);
            const double size = m.count;
            const double* const s = sums.as<double>() + n * sums.strides[0] + g * sums.strides[1];
            const auto rstd = static_cast<double>(channels.rstd[g * width]);
            const double along = rstd * rstd * (s[sums.strides[2]] / size);
            std::fill_n(offset + g * width, width,
                        static_cast<T>((options.centred ? rstd * (s[0] / size) : 0.0) -
                                       low_part<T>(m.mean) * along));
            std::fill_n(slope + g * width, width, static_cast<T>(along));
          }
          channels.repeat(offset);
          channels.repeat(slope);
        }
        const T* const v = in.read(n, r, count, true);
        const T* const d = grad.read(n, r, count, true);
        T* const o = to.target(n, r, count);
        const T *const mean = channels.mean, *const scale = channels.scale,
                       *const shift = channels.shift;
        const auto pass = [&](const auto& weight_of) {
          for_each_group(count * rows.channels, [=](std::int64_t j) {
            const T centred = v[j] - mean[j];
            const T z = centred * scale[j] + shift[j];
            const T g = d[j] * norm_activation_slope<kActivation>(z);
            o[j] = g * scale[j] - weight_of(j) * (offset[j] + centred * slope[j]);
          });
        };
        if (weighted) {
          pass([w = weights.read(n, r, count, true)](std::int64_t j) { return w[j]; });
        } else {
          pass([](std::int64_t) { return T(1); });
        }
        to.write(n, r, count);
      };
    });
  });
}

}  // namespace tessera::kernels
