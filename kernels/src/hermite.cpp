#include <algorithm>
#include <cmath>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/hermite.hpp>

#include "launch.hpp"

namespace tessera::kernels {

namespace {

/// Four polynomials of t in [0, 1): coefficients of 1, t, t^2, t^3.
constexpr double kBasis[4][4] = {{1, 0, -3, 2}, {0, 1, -2, 1}, {0, 0, 3, -2}, {0, 0, -1, 1}};

double value(const View& x, std::int64_t e) {
  return x.dtype == DType::kFloat64 ? x.as<double>()[e * x.strides[0]]
                                    : static_cast<double>(x.as<float>()[e * x.strides[0]]);
}

std::int64_t interval_of(double x, double spacing, std::int64_t intervals) {
  // Written so that NaN lands in the first one.
  const double at = std::floor(x / spacing);
  if (!(at > 0.0)) return 0;
  return at >= static_cast<double>(intervals) ? intervals - 1 : static_cast<std::int64_t>(at);
}

void check(const View& x) {
  if (x.dtype != DType::kFloat64 && x.dtype != DType::kFloat32)
    throw DTypeError(str("hermite: ", name(x.dtype), " is neither f32 nor f64. Cast it first."));
}

}  // namespace

void hermite_weights(
    int order, double spacing, std::int64_t intervals, const View& x, const View& h) {
  check(x);
  if (dry_run()) return;
  const double end = spacing * static_cast<double>(intervals);
  double scale = 1.0;
  for (int i = 0; i < order; ++i) scale /= spacing;
  parallel_chunks(x.shape[0], 16, [&](std::int64_t begin, std::int64_t last) {
    for (std::int64_t e = begin; e < last; ++e) {
      const double r = value(x, e);
      const double t = r / spacing - static_cast<double>(interval_of(r, spacing, intervals));
      for (int b = 0; b < 4; ++b) {
        double y = 0.0;
        for (int p = 3; p >= order; --p) {
          double c = kBasis[b][p];
          for (int i = 0; i < order; ++i) c *= p - i;
          y = y * t + c;
        }
        if (r >= end) y = 0.0;
        const std::int64_t at = e * h.strides[0] + b * h.strides[1];
        if (h.dtype == DType::kFloat64) {
          h.as<double>()[at] = y * scale;
        } else {
          h.as<float>()[at] = static_cast<float>(y * scale);
        }
      }
    }
  });
}

void hermite_rows(double spacing, std::int64_t intervals, const View& x, const View& row) {
  check(x);
  if (dry_run()) return;
  parallel_chunks(x.shape[0], 4, [&](std::int64_t begin, std::int64_t last) {
    for (std::int64_t e = begin; e < last; ++e)
      row.as<std::int64_t>()[e * row.strides[0]] = 2 * interval_of(value(x, e), spacing, intervals);
  });
}

}  // namespace tessera::kernels
