#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/data/upsample.hpp>
#include <type_traits>
#include <vector>

namespace tessera::data {
namespace {

constexpr double kA = -0.75;

double near_weight(double t) { return ((kA + 2) * t - (kA + 3)) * t * t + 1; }  // |t| <= 1
double far_weight(double t) {
  return ((kA * t - 5 * kA) * t + 8 * kA) * t - 4 * kA;
}  // 1 < |t| < 2

struct Taps {
  std::int64_t first = 0;
  std::array<double, 4> weight{};
  int count = 0;
};

Taps taps_of(Upsampling method, std::int64_t i, std::int64_t factor) {
  const double u = (static_cast<double>(i) + 0.5) / static_cast<double>(factor) - 0.5;
  const double base = std::floor(u);
  const double t = u - base;
  Taps taps;
  taps.first = static_cast<std::int64_t>(base);
  if (method == Upsampling::kLinear) {
    taps.weight = {1 - t, t};
    taps.count = 2;
  } else {
    taps.first -= 1;
    taps.weight = {far_weight(1 + t), near_weight(t), near_weight(1 - t), far_weight(2 - t)};
    taps.count = 4;
  }
  return taps;
}

/// Calls f(index of the row's start, offset of it) for each row along the last dimension.
template <class F>
void for_each_row(const View& view, F&& f) {
  Box starts = Box::whole(view.shape);
  const int last = view.dims() - 1;
  if (last >= 0 && starts.hi[last] > 0) starts.hi[last] = 1;
  for_each_index(starts, [&](const Index& i) {
    std::int64_t offset = 0;
    for (int d = 0; d < view.dims(); ++d) offset += i[d] * view.strides[d];
    f(i, offset);
  });
}

std::int64_t last_size(const View& view) { return view.dims() > 0 ? view.shape.back() : 1; }
std::int64_t last_stride(const View& view) { return view.dims() > 0 ? view.strides.back() : 1; }

void check_fit(const char* op, const View& coarse, const View& fine, std::int64_t factor) {
  bool fits = factor >= 1 && coarse.dims() == fine.dims();
  for (int d = 0; fits && d < coarse.dims(); ++d) fits = coarse.shape[d] * factor == fine.shape[d];
  if (!fits)
    throw ShapeError(str(op, ": fine shape ", fine.shape, " is not ", factor,
                         " times the coarse shape ", coarse.shape, "."));
}

}  // namespace

const char* name(Upsampling method) { return method == Upsampling::kLinear ? "linear" : "cubic"; }

std::int64_t upsample_reach(Upsampling method) { return method == Upsampling::kLinear ? 1 : 2; }

void upsample(Upsampling method,
              const View& coarse,
              const View& fine,
              std::int64_t factor,
              std::span<const EdgeRule> edges) {
  check_fit("upsample", coarse, fine, factor);
  if (static_cast<int>(edges.size()) != coarse.dims())
    throw ShapeError(
        str("upsample: ", edges.size(), " edge rules for ", coarse.dims(), " dimensions."));
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(coarse.size()));
  for_each_row(coarse, [&](const Index&, std::int64_t offset) {
    for (std::int64_t j = 0; j < last_size(coarse); ++j)
      values.push_back(load_as_double(coarse.data, coarse.dtype, offset + j * last_stride(coarse)));
  });
  std::int64_t outer = 1;
  std::int64_t inner = coarse.size();
  for (int d = 0; d < coarse.dims() && inner > 0; ++d) {
    const std::int64_t n = coarse.shape[d];
    inner /= n;
    std::vector<double> finer(values.size() * static_cast<std::size_t>(factor), 0.0);
    for (std::int64_t i = 0; i < n * factor; ++i) {
      const Taps taps = taps_of(method, i, factor);
      for (int k = 0; k < taps.count; ++k) {
        const std::int64_t from = map_edge(edges[static_cast<std::size_t>(d)], taps.first + k, n);
        if (from < 0) continue;
        const double weight = taps.weight[static_cast<std::size_t>(k)];
        for (std::int64_t o = 0; o < outer; ++o) {
          const double* x = values.data() + (o * n + from) * inner;
          double* y = finer.data() + (o * n * factor + i) * inner;
          for (std::int64_t j = 0; j < inner; ++j) y[j] += weight * x[j];
        }
      }
    }
    values.swap(finer);
    outer *= n * factor;
  }
  const double* next = values.data();
  for_each_row(fine, [&](const Index&, std::int64_t offset) {
    for (std::int64_t j = 0; j < last_size(fine); ++j)
      store_double(fine.data, fine.dtype, offset + j * last_stride(fine), *next++);
  });
}

void block_mean(const View& fine, const View& coarse, std::int64_t factor) {
  check_fit("block_mean", coarse, fine, factor);
  struct Sum {
    double value = 0.0;
    std::int64_t count = 0;
  };
  std::vector<Sum> sums(static_cast<std::size_t>(coarse.size()));
  const Strides dense = row_major(coarse.shape);
  visit_floating("block_mean", fine.dtype, [&]<class T>() {
    for_each_row(fine, [&](const Index& i, std::int64_t offset) {
      std::int64_t row = 0;
      for (int d = 0; d + 1 < fine.dims(); ++d) row += i[d] / factor * dense[d];
      const T* x = fine.as<T>() + offset;
      const std::int64_t stride = last_stride(fine);
      for (std::int64_t j = 0; j < last_size(fine); ++j) {
        const auto value = static_cast<double>(
            static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(
                x[j * stride]));
        if (std::isnan(value)) continue;
        Sum& sum = sums[static_cast<std::size_t>(row + j / factor)];
        sum.value += value;
        ++sum.count;
      }
    });
  });
  const Sum* next = sums.data();
  for_each_row(coarse, [&](const Index&, std::int64_t offset) {
    for (std::int64_t j = 0; j < last_size(coarse); ++j, ++next)
      store_double(coarse.data, coarse.dtype, offset + j * last_stride(coarse),
                   next->count > 0 ? next->value / static_cast<double>(next->count)
                                   : std::numeric_limits<double>::quiet_NaN());
  });
}

}  // namespace tessera::data
