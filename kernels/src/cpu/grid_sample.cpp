#include <algorithm>
#include <array>
#include <cmath>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/grid_sample.hpp>
#include <vector>

#include "launch.hpp"

namespace tessera::kernels {

namespace {

constexpr int kMaxTaps = 4;

/// Places whose numbers are exact in double.
constexpr double kFarthest = 4503599627370496.0;

/// Coefficients of t^0 ... t^3, for each tap; t is the distance of the point behind the element at
/// or below it.
using Polynomials = std::array<std::array<double, 4>, kMaxTaps>;

Polynomials weights_of(InterpolateMode mode) {
  if (mode == InterpolateMode::kLinear) return {{{1, -1, 0, 0}, {0, 1, 0, 0}}};
  constexpr double a = -0.75;
  return {
      {{0, a, -2 * a, a}, {1, 0, -(a + 3), a + 2}, {0, -a, 2 * a + 3, -(a + 2)}, {0, 0, a, -a}}};
}

/// By a coordinate of which one unit is `scale` elements.
Polynomials derivative(const Polynomials& from, double scale) {
  Polynomials to{};
  for (std::size_t t = 0; t < from.size(); ++t)
    for (std::size_t p = 1; p < 4; ++p) to[t][p - 1] = scale * static_cast<double>(p) * from[t][p];
  return to;
}

/// Products over dimensions: out[k] for all combinations of `taps` factors, the last one fastest.
void multiply(const std::vector<std::array<double, kMaxTaps>>& factors, int taps, double* out) {
  out[0] = 1;
  int count = 1;
  for (const auto& factor : factors) {
    for (int i = count - 1; i >= 0; --i) {
      const double before = out[i];
      for (int t = taps - 1; t >= 0; --t)
        out[i * taps + t] = before * factor[static_cast<std::size_t>(t)];
    }
    count *= taps;
  }
}

/// Elements per unit of a coordinate.
double scale_of(const GridGeometry& g, std::int64_t n) {
  return static_cast<double>(g.align_corners ? n - 1 : n) / 2.0;
}

/// Places of the points in units of elements, in a row.
std::vector<double> places(const GridGeometry& g, const Dims& size, const View& points) {
  std::vector<double> values(static_cast<std::size_t>(points.size()));
  copy(points, View::dense(values.data(), DType::kFloat64, points.shape));
  const auto dims = static_cast<std::size_t>(size.size());
  for (std::size_t d = 0; d < dims; ++d) {
    const std::int64_t n = size[static_cast<int>(d)];
    const double scale = scale_of(g, n);
    const double centre = static_cast<double>(n - 1) / 2.0;
    for (std::size_t i = d; i < values.size(); i += dims) values[i] = values[i] * scale + centre;
  }
  return values;
}

std::int64_t check(
    const char* op, const GridGeometry& g, const Dims& size, const View& points, const View& out) {
  const int dims = size.size();
  std::int64_t taps = 1;
  for (int d = 0; d < dims; ++d) taps *= grid_tap_count(g.mode);
  Shape shape = points.shape;
  shape.back() = taps;
  if (dims < 1 || dims > 3 || points.shape.back() != dims || !(out.shape == shape) ||
      !out.is_dense())
    throw ShapeError(str(op, ": points ", points.shape, " do not fill ", out.shape, "."));
  return taps;
}

}  // namespace

int grid_tap_count(InterpolateMode mode) {
  return mode == InterpolateMode::kNearest ? 1 : mode == InterpolateMode::kLinear ? 2 : 4;
}

void grid_taps(const GridGeometry& g,
               const Dims& size,
               const Dims& edge,
               const View& points,
               const View& position) {
  const std::int64_t taps = check("grid_taps", g, size, points, position);
  if (dry_run() || points.empty()) return;
  const std::vector<double> values = places(g, size, points);
  const int dims = size.size();
  const std::int64_t count = grid_tap_count(g.mode);
  const std::int64_t before = count == 4 ? 1 : 0;
  parallel_chunks(points.size() / dims, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      std::int64_t* const out = position.as<std::int64_t>() + p * taps;
      out[0] = 0;
      std::int64_t done = 1;
      for (int d = 0; d < dims; ++d) {
        const double place = values[static_cast<std::size_t>(p * dims + d)];
        const double whole = count == 1 ? std::nearbyint(place) : std::floor(place);
        const double at = std::isfinite(whole) ? std::clamp(whole, -kFarthest, kFarthest) : 0;
        const auto rule = static_cast<EdgeRule>(edge[d]);
        const std::int64_t n = size[d];
        std::array<std::int64_t, kMaxTaps> element;
        for (std::int64_t t = 0; t < count; ++t) {
          const std::int64_t x = static_cast<std::int64_t>(at) - before + t;
          element[static_cast<std::size_t>(t)] = x >= 0 && x < n ? x : map_edge(rule, x, n);
        }
        for (std::int64_t i = done - 1; i >= 0; --i) {
          const std::int64_t outer = out[i];
          for (std::int64_t t = count - 1; t >= 0; --t) {
            const std::int64_t x = element[static_cast<std::size_t>(t)];
            out[i * count + t] = outer < 0 || x < 0 ? -1 : outer * n + x;
          }
        }
        done *= count;
      }
    }
  });
}

void grid_weights(
    const GridGeometry& g, const Dims& size, const Dims& order, const View& points, const View& w) {
  const std::int64_t taps = check("grid_weights", g, size, points, w);
  if (dry_run() || points.empty()) return;
  const std::vector<double> values = places(g, size, points);
  const int dims = order.size();
  const int count = grid_tap_count(g.mode);
  std::vector<Polynomials> polynomials;
  for (int d = 0; d < dims; ++d) {
    Polynomials p = weights_of(g.mode);
    for (std::int64_t i = 0; i < std::min<std::int64_t>(order[d], 4); ++i)
      p = derivative(p, scale_of(g, size[d]));
    polynomials.push_back(p);
  }
  const auto bytes = static_cast<std::int64_t>(size_of(w.dtype));
  parallel_chunks(points.size() / dims, 4 * taps, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::array<double, kMaxTaps>> factors(static_cast<std::size_t>(dims));
    std::array<double, 64> product;
    for (std::int64_t p = begin; p < end; ++p) {
      for (int d = 0; d < dims; ++d) {
        const double place = values[static_cast<std::size_t>(p * dims + d)];
        const double t = place - std::floor(place);
        const Polynomials& all = polynomials[static_cast<std::size_t>(d)];
        for (std::size_t k = 0; k < static_cast<std::size_t>(count); ++k)
          factors[static_cast<std::size_t>(d)][k] =
              ((all[k][3] * t + all[k][2]) * t + all[k][1]) * t + all[k][0];
      }
      multiply(factors, count, product.data());
      store(product.data(), taps, w.as<char>() + p * taps * bytes, w.dtype, 1);
    }
  });
}

}  // namespace tessera::kernels
