#include <algorithm>
#include <cmath>
#include <numeric>
#include <tessera/core/dry_run.hpp>
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

char* at(const View& v, std::int64_t offset) {
  return v.as<char>() + offset * static_cast<std::int64_t>(size_of(v.dtype));
}

std::int64_t row_offset(const Rows& rows, int k, std::int64_t sample, std::int64_t row) {
  return sample * rows.sample_stride[k] + nest_offset(rows.nest, k, row);
}

/// Whether the rows of operand k lie one after the other.
bool contiguous(const Rows& rows, int k) {
  if (rows.channel_stride[k] != 1 && rows.channels > 1) return false;
  std::int64_t expected = rows.channels;
  for (int d = rows.nest.dims - 1; d >= 0 && rows.count > 1; --d) {
    if (rows.nest.stride[k][d] != expected) return false;
    expected *= rows.nest.size[d];
  }
  return true;
}

/// Rows are taken in strips: loops are long however few the channels, and made of whole groups of
/// kLanes. What belongs to a channel is repeated for every row of a strip.
std::int64_t rows_per_strip(const Rows& rows) {
  constexpr std::int64_t kStripElements = 256;
  const std::int64_t step = kLanes / std::gcd<std::int64_t, std::int64_t>(kLanes, rows.channels);
  const std::int64_t most =
      step * std::max<std::int64_t>(1, kStripElements / (step * rows.channels));
  return std::clamp<std::int64_t>(rows.count, 1, most);
}

std::int64_t rows_per_block(const Rows& rows) {
  const std::int64_t strip = rows_per_strip(rows);
  return strip * std::max<std::int64_t>(1, kBlockElements / (strip * rows.channels));
}

std::size_t padded(std::int64_t elements) {
  return static_cast<std::size_t>((elements + kLanes - 1) / kLanes * kLanes);
}

/// One operand, strip by strip.
template <class T>
class Strips {
 public:
  Strips(const View& view, const Rows& rows, int k)
      : view_(view),
        rows_(rows),
        k_(k),
        contiguous_(contiguous(rows, k)),
        buffer_(padded(rows_per_strip(rows) * rows.channels)) {}

  /// `count` rows from `row` on. `whole`: readable up to a whole group of lanes.
  const T* read(std::int64_t sample, std::int64_t row, std::int64_t count, bool whole) {
    const std::int64_t c = rows_.channels;
    if (contiguous_ && (!whole || count * c % kLanes == 0) && view_.dtype == dtype_of<T>)
      return reinterpret_cast<const T*>(at(view_, row_offset(rows_, k_, sample, row)));
    if (contiguous_) {
      load(at(view_, row_offset(rows_, k_, sample, row)), view_.dtype, 1, count * c,
           buffer_.data());
    } else {
      for (std::int64_t r = 0; r < count; ++r)
        load(at(view_, row_offset(rows_, k_, sample, row + r)), view_.dtype,
             rows_.channel_stride[k_], c, buffer_.data() + r * c);
    }
    return buffer_.data();
  }
  /// Where to write `count` rows, in whole groups of lanes; finished by write().
  T* target(std::int64_t sample, std::int64_t row, std::int64_t count) {
    in_place_ = contiguous_ && count * rows_.channels % kLanes == 0 && view_.dtype == dtype_of<T>;
    return in_place_ ? reinterpret_cast<T*>(at(view_, row_offset(rows_, k_, sample, row)))
                     : buffer_.data();
  }
  void write(std::int64_t sample, std::int64_t row, std::int64_t count) {
    if (in_place_) return;
    const std::int64_t c = rows_.channels;
    for (std::int64_t r = 0; r < count; ++r)
      store(buffer_.data() + r * c, c, at(view_, row_offset(rows_, k_, sample, row + r)),
            view_.dtype, rows_.channel_stride[k_]);
  }

 private:
  const View& view_;
  const Rows& rows_;
  int k_;
  bool contiguous_;
  bool in_place_ = false;
  std::vector<T> buffer_;
};

/// f(j) for j < n, in vectors as far as they fill: for sums.
template <class F>
void for_each_lane(std::int64_t n, const F& f) {
  std::int64_t begin = 0;
  for (; begin + kLanes <= n; begin += kLanes) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) f(begin + l);
  }
  for (; begin < n; ++begin) f(begin);
}

/// The same in whole groups alone, beyond n if need be: an element's bits depend on no neighbour.
template <class F>
void for_each_group(std::int64_t n, const F& f) {
  for (std::int64_t begin = 0; begin < n; begin += kLanes) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) f(begin + l);
  }
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
void block_moments(Strips<T>& x,
                   const Rows& rows,
                   const GroupNormOptions& options,
                   std::int64_t sample,
                   std::int64_t begin,
                   std::int64_t end,
                   Moments* out) {
  const std::int64_t c = rows.channels;
  const std::int64_t width = c / options.groups;
  const std::int64_t strip = rows_per_strip(rows);
  std::vector<double> sum(static_cast<std::size_t>(strip * c), 0.0);
  std::vector<double> mean(static_cast<std::size_t>(strip * c), 0.0);
  double* const s = sum.data();
  double* const m = mean.data();
  const double count = static_cast<double>((end - begin) * width);
  const auto group_total = [&](std::int64_t g) {
    double total = 0;
    for (std::int64_t j = g * width; j < (g + 1) * width; ++j)
      for (std::int64_t r = 0; r < strip; ++r) total += s[r * c + j];
    return total;
  };
  const auto pass = [&](const auto& add) {
    for (std::int64_t r = begin; r < end; r += strip) {
      const std::int64_t n = std::min(strip, end - r);
      const T* const v = x.read(sample, r, n, false);
      for_each_lane(n * c, [&](std::int64_t j) { add(j, v[j]); });
    }
  };
  if (options.centred) {
    pass([s](std::int64_t j, T v) { s[j] += static_cast<double>(v); });
    for (std::int64_t g = 0; g < options.groups; ++g) {
      const double value = group_total(g) / count;
      for (std::int64_t r = 0; r < strip; ++r) std::fill_n(m + r * c + g * width, width, value);
    }
    std::fill(sum.begin(), sum.end(), 0.0);
  }
  pass([s, m](std::int64_t j, T v) {
    const double d = static_cast<double>(v) - m[j];
    s[j] += d * d;
  });
  for (std::int64_t g = 0; g < options.groups; ++g)
    out[g] = {count, width > 0 ? mean[static_cast<std::size_t>(g * width)] : 0.0, group_total(g)};
}

template <class T>
void moments_of(const View& x, const Rows& rows, const GroupNormOptions& options, const View& out) {
  const std::int64_t depth = rows_per_block(rows);
  const std::int64_t blocks = std::max<std::int64_t>(1, (rows.count + depth - 1) / depth);
  const std::int64_t groups = options.groups;
  std::vector<Moments> part(static_cast<std::size_t>(rows.samples * blocks * groups));
  if (rows.count > 0 && rows.channels > 0) {
    parallel_chunks(rows.samples * blocks, std::min(depth, rows.count) * rows.channels,
                    [&](std::int64_t begin, std::int64_t end) {
                      Strips<T> strips(x, rows, 0);
                      for (std::int64_t i = begin; i < end; ++i) {
                        const std::int64_t b = i % blocks;
                        block_moments<T>(strips, rows, options, i / blocks, b * depth,
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

/// What belongs to the channels of a sample, repeated over the rows of a strip: with d = x - mean,
/// xhat = d rstd and z = d scale + shift (scale = rstd gamma, shift = beta).
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
        mean(data_.data()),
        rstd(mean + stride_),
        scale(rstd + stride_),
        shift(scale + stride_) {
    if (gamma.data != nullptr) load(gamma.data, gamma.dtype, gamma.strides[0], c_, gamma_.data());
    if (beta.data != nullptr) load(beta.data, beta.dtype, beta.strides[0], c_, shift);
    repeat(shift);
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
    }
    for (std::int64_t j = 0; j < c_; ++j) scale[j] = rstd[j] * gamma_[static_cast<std::size_t>(j)];
    for (T* values : {mean, rstd, scale}) repeat(values);
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
  if (dry_run()) return;
  const View* const views[] = {&x};
  const Rows rows = make_rows("group_moments", views, options);
  if (rows.channels == 0) return;  // no groups either
  require_moments("group_moments", moments, rows.samples, options.groups);
  if (on_cuda(x)) return cuda::group_moments(x, options, moments);
  visit_norm(x.dtype, NormActivation::kNone,
             [&]<class T, NormActivation>() { moments_of<T>(x, rows, options, moments); });
}

void merge_moments(const View& parts, const View& moments) {
  if (dry_run()) return;
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
    const std::int64_t width = rows.channels / options.groups;
    for_each_strip(rows, [&] {
      Channels<T> channels(moments, gamma, beta, options, rows);
      // dx = g scale - offset - d slope
      std::vector<T> factors(2 * channels.stride());
      return [&, channels = std::move(channels), factors = std::move(factors),
              in = Strips<T>(x, rows, 0), grad = Strips<T>(dy, rows, 1),
              to = Strips<T>(dx, rows, 2)](std::int64_t n, std::int64_t r,
                                           std::int64_t count) mutable {
        T* const offset = factors.data();
        T* const slope = offset + channels.stride();
        if (channels.select(n)) {
          for (std::int64_t g = 0; g < options.groups; ++g) {
            const double size = load_moments(moments, n, g).count;
            const double* const s = sums.as<double>() + n * sums.strides[0] + g * sums.strides[1];
            const auto rstd = static_cast<double>(channels.rstd[g * width]);
            std::fill_n(offset + g * width, width,
                        static_cast<T>(options.centred ? rstd * (s[0] / size) : 0.0));
            std::fill_n(slope + g * width, width,
                        static_cast<T>(rstd * rstd * (s[sums.strides[2]] / size)));
          }
          channels.repeat(offset);
          channels.repeat(slope);
        }
        const T* const v = in.read(n, r, count, true);
        const T* const d = grad.read(n, r, count, true);
        T* const o = to.target(n, r, count);
        const T *const mean = channels.mean, *const scale = channels.scale,
                       *const shift = channels.shift;
        for_each_group(count * rows.channels, [=](std::int64_t j) {
          const T centred = v[j] - mean[j];
          const T z = centred * scale[j] + shift[j];
          const T g = d[j] * norm_activation_slope<kActivation>(z);
          o[j] = g * scale[j] - offset[j] - centred * slope[j];
        });
        to.write(n, r, count);
      };
    });
  });
}

}  // namespace tessera::kernels
