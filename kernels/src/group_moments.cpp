#include <tessera/core/dry_run.hpp>

#include "device.hpp"
#include "norm_rows.hpp"

namespace tessera::kernels {

using namespace norm_rows;

namespace {

/// Moments of rows [begin, end) of one sample, per group. Without kWeighted every weight is 1.
template <class T, bool kWeighted>
void block_moments(Strips<T>& x,
                   Strips<double>& weight,
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
  std::vector<double> total_weight(kWeighted ? sum.size() : 0, 0.0);
  double* const s = sum.data();
  double* const m = mean.data();
  double* const t = total_weight.data();
  const auto group_total = [&](const double* values, std::int64_t g) {
    double total = 0;
    for (std::int64_t j = g * width; j < (g + 1) * width; ++j)
      for (std::int64_t r = 0; r < strip; ++r) total += values[r * c + j];
    return total;
  };
  const auto pass = [&](const auto& add) {
    for (std::int64_t r = begin; r < end; r += strip) {
      const std::int64_t n = std::min(strip, end - r);
      const T* const v = x.read(sample, r, n, false);
      const double* const w = kWeighted ? weight.read(sample, r, n, false) : nullptr;
      for_each_lane(n * c, [&](std::int64_t j) { add(j, v[j], kWeighted ? w[j] : 1.0); });
    }
  };
  const auto count_of = [&](std::int64_t g) {
    return kWeighted ? group_total(t, g) : static_cast<double>((end - begin) * width);
  };
  if (options.centred || kWeighted) {
    pass([s, t](std::int64_t j, T v, double w) {
      s[j] += w * static_cast<double>(v);
      if constexpr (kWeighted) t[j] += w;
    });
    for (std::int64_t g = 0; g < options.groups && options.centred; ++g) {
      const double count = count_of(g);
      const double value = count > 0 ? group_total(s, g) / count : 0.0;
      for (std::int64_t r = 0; r < strip; ++r) std::fill_n(m + r * c + g * width, width, value);
    }
    std::fill(sum.begin(), sum.end(), 0.0);
  }
  pass([s, m](std::int64_t j, T v, double w) {
    const double d = static_cast<double>(v) - m[j];
    s[j] += w * (d * d);
  });
  for (std::int64_t g = 0; g < options.groups; ++g)
    out[g] = {count_of(g), width > 0 ? mean[static_cast<std::size_t>(g * width)] : 0.0,
              group_total(s, g)};
}

template <class T, bool kWeighted>
void moments_of(const View& x,
                const View& weight,
                const Rows& rows,
                const GroupNormOptions& options,
                const View& out) {
  const std::int64_t depth = rows_per_block(rows);
  const std::int64_t blocks = std::max<std::int64_t>(1, (rows.count + depth - 1) / depth);
  const std::int64_t groups = options.groups;
  std::vector<Moments> part(static_cast<std::size_t>(rows.samples * blocks * groups));
  if (rows.count > 0 && rows.channels > 0) {
    parallel_chunks(rows.samples * blocks, std::min(depth, rows.count) * rows.channels,
                    [&](std::int64_t begin, std::int64_t end) {
                      Strips<T> strips(x, rows, 0);
                      Strips<double> weights(kWeighted ? weight : x, rows, kWeighted ? 1 : 0);
                      for (std::int64_t i = begin; i < end; ++i) {
                        const std::int64_t b = i % blocks;
                        block_moments<T, kWeighted>(
                            strips, weights, rows, options, i / blocks, b * depth,
                            std::min(rows.count, (b + 1) * depth), part.data() + i * groups);
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

}  // namespace

void group_moments(const View& x,
                   const GroupNormOptions& options,
                   const View& moments,
                   const View& weight) {
  if (dry_run()) return;
  const View* const views[] = {&x, &weight};
  const bool weighted = weight.data != nullptr;
  const Rows rows = make_rows("group_moments", std::span(views, weighted ? 2 : 1), options);
  if (rows.channels == 0) return;  // no groups either
  require_moments("group_moments", moments, rows.samples, options.groups);
  if (on_cuda(x)) {
    if (weighted) throw_weights_on_cuda();
    return cuda::group_moments(x, options, moments);
  }
  visit_norm(x.dtype, NormActivation::kNone, [&]<class T, NormActivation>() {
    if (weighted) {
      moments_of<T, true>(x, weight, rows, options, moments);
    } else {
      moments_of<T, false>(x, weight, rows, options, moments);
    }
  });
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

}  // namespace tessera::kernels
