#include <algorithm>
#include <cmath>
#include <tessera/models/solvers.hpp>

#include "stencil.hpp"

namespace tessera::solvers {
namespace {

struct GrayScottCoefficients {
  double du;
  double dv;
  double feed;
  double loss;  // feed + kill
  double dt;
};

template <int D, class T>
void gray_scott_row(const Row<T>& row, const GrayScottCoefficients& k) {
  const T du = static_cast<T>(k.du);
  const T dv = static_cast<T>(k.dv);
  const T feed = static_cast<T>(k.feed);
  const T loss = static_cast<T>(k.loss);
  const T dt = static_cast<T>(k.dt);
  for (std::int64_t i = 0; i < row.points; ++i) {
    const T* const x = row.in + 2 * i;
    const T u = x[0];
    const T v = x[1];
    T lap_u = static_cast<T>(-2 * D) * u;
    T lap_v = static_cast<T>(-2 * D) * v;
    for (int d = 3 - D; d < 3; ++d) {
      const std::int64_t s = row.step[static_cast<std::size_t>(d)];
      lap_u += x[-s] + x[s];
      lap_v += x[1 - s] + x[1 + s];
    }
    const T reaction = u * v * v;
    row.out[2 * i] = u + dt * (du * lap_u - reaction + feed * (1 - u));
    row.out[2 * i + 1] = v + dt * (dv * lap_v + reaction - loss * v);
  }
}

const OpDef gray_scott_op = {.name = "gray_scott_step",
                             .infer = step_infer,
                             .signatures = step_signatures,
                             .windows = step_windows,
                             .local = [](const LocalCall& call) {
                               visit_step(call, [&]<int D, class T>() {
                                 for_each_row<T>(call, [&](const Row<T>& row) {
                                   gray_scott_row<D>(row, call.dynamic_as<GrayScottCoefficients>());
                                 });
                               });
                             }};

/// Half-axes in points of an ellipsoid of the second substance.
constexpr double kSmallest = 2.5;
constexpr double kLargest = 6.0;

}  // namespace

GrayScott::GrayScott(const GrayScottOptions& options, const Layout& layout, DType dtype)
    : options_(options) {
  const Layout own = with_channels("gray_scott", layout, 2);
  const int dims = own.dims() - 2;
  const GrayScottOptions& o = options_;
  const double fastest = std::max(o.diffusion_u, o.diffusion_v);
  const double limit = 0.5 / (fastest * dims);
  if (o.diffusion_u < 0.0 || o.diffusion_v < 0.0 || !(o.largest_step > 0.0) ||
      (fastest > 0.0 && o.largest_step > limit) || o.feed < 0.0 || o.kill < 0.0 || o.seeds < 0) {
    throw UsageError(str("gray_scott: diffusion ", o.diffusion_u, " and ", o.diffusion_v, ", step ",
                         o.largest_step, ", feed ", o.feed, ", kill ", o.kill,
                         " (none may be negative, and a step above ", limit,
                         " is unstable). Lower the step or the diffusion."));
  }
  dt_ = fitting_step(o.interval, o.largest_step);

  std::array<double, 3> n = {1.0, 1.0, 1.0};
  for (int d = 0; d < dims; ++d) {
    n[static_cast<std::size_t>(3 - dims + d)] = static_cast<double>(own.shape()[d + 1]);
  }
  // One for each cube of 24 points.
  const std::int64_t count =
      o.seeds > 0
          ? o.seeds
          : std::max<std::int64_t>(1, std::llround(n[0] * n[1] * n[2] / std::pow(24.0, dims)));
  std::vector<std::vector<double>> draws;
  for (std::int64_t s = 0; s < own.shape()[0]; ++s) {
    draws.push_back(uniform_numbers(o.seed, s, 6 * count));
  }
  state_ = fill_points(
      own, dtype,
      [&](std::int64_t sample, const std::array<std::int64_t, 3>& at,
          std::vector<double>& channels) {
        channels = {1.0, 0.0};
        for (std::int64_t s = 0; s < count; ++s) {
          const double* const r = draws[static_cast<std::size_t>(sample)].data() + 6 * s;
          double distance = 0.0;
          for (int d = 3 - dims; d < 3; ++d) {
            const auto i = static_cast<std::size_t>(d);
            double x = static_cast<double>(at[i]) - r[d] * n[i];
            x -= n[i] * std::round(x / n[i]);
            distance += std::pow(x / (kSmallest + (kLargest - kSmallest) * r[3 + d]), 2);
          }
          if (distance < 1.0) channels = {0.5, 0.25};
        }
      });
}

std::vector<double> GrayScott::lengths() const {
  std::vector<double> lengths;
  for (int d = 1; d + 1 < state_.dims(); ++d) {
    lengths.push_back(static_cast<double>(state_.size(d)));
  }
  return lengths;
}

Tensor GrayScott::stepped(const Tensor& state) const {
  const GrayScottOptions& o = options_;
  return call(gray_scott_op, {state}, NoArgs{},
              GrayScottCoefficients{o.diffusion_u, o.diffusion_v, o.feed, o.feed + o.kill, dt_});
}

}  // namespace tessera::solvers
