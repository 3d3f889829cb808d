#include <cmath>
#include <numbers>
#include <tessera/models/solvers.hpp>

#include "stencil.hpp"

namespace tessera::solvers {
namespace {

struct HeatCoefficients {
  double c[3];  // diffusivity dt / dx^2 along z, y, x
};

template <int D, class T>
void heat_row(const Row<T>& row, const HeatCoefficients& k) {
  T c[3];
  for (int d = 3 - D; d < 3; ++d) c[d] = static_cast<T>(k.c[d]);
  for (std::int64_t i = 0; i < row.points; ++i) {
    const T* const x = row.in + i;
    T change = 0;
    for (int d = 3 - D; d < 3; ++d) {
      const std::int64_t s = row.step[static_cast<std::size_t>(d)];
      change += c[d] * ((x[-s] + x[s]) - 2 * x[0]);
    }
    row.out[i] = x[0] + change;
  }
}

const OpDef heat_op = {.name = "heat_step",
                       .infer = step_infer,
                       .signatures = step_signatures,
                       .windows = step_windows,
                       .local = [](const LocalCall& call) {
                         visit_step(call, [&]<int D, class T>() {
                           for_each_row<T>(call, [&](const Row<T>& row) {
                             heat_row<D>(row, call.dynamic_as<HeatCoefficients>());
                           });
                         });
                       }};

/// amplitude * cos(k . x + phase)
struct Wave {
  double amplitude;
  double phase;
  std::array<double, 3> k;
};

std::vector<Wave> waves_of(const HeatOptions& o, int dims, std::int64_t sample) {
  const std::vector<double> draws = uniform_numbers(o.seed, sample, 5 * o.waves);
  std::vector<Wave> waves;
  for (std::int64_t w = 0; w < o.waves; ++w) {
    const double* const r = draws.data() + 5 * w;
    Wave wave = {0.25 + 0.75 * r[0], 2.0 * std::numbers::pi * r[1], {}};
    for (int d = 3 - dims; d < 3; ++d) {
      const double range = static_cast<double>(2 * o.largest + 1);
      const double periods = std::floor(r[2 + d] * range) - static_cast<double>(o.largest);
      wave.k[static_cast<std::size_t>(d)] = 2.0 * std::numbers::pi * periods;
    }
    waves.push_back(wave);
  }
  return waves;
}

}  // namespace

Heat::Heat(const HeatOptions& options, const Layout& layout, DType dtype) : options_(options) {
  const Layout own = with_channels("heat", layout, 1);
  const HeatOptions& o = options_;
  if (!(o.diffusivity > 0.0) || !(o.courant > 0.0) || o.courant > 0.5 || o.waves < 1 ||
      o.largest < 1) {
    throw UsageError(str("heat: diffusivity ", o.diffusivity, ", courant ", o.courant, ", waves ",
                         o.waves, ", largest ", o.largest,
                         " (all must be positive, courant at most 0.5 for stability)."));
  }
  double inverse = 0.0;  // sum of 1 / dx^2
  for (int d = 1; d + 1 < own.dims(); ++d) {
    inverse += std::pow(static_cast<double>(own.shape()[d]), 2);
  }
  dt_ = fitting_step(o.interval, o.courant / (o.diffusivity * inverse));
  state_ = exact_at(0.0, own, dtype);
}

std::vector<double> Heat::lengths() const {
  return std::vector<double>(static_cast<std::size_t>(state_.dims() - 2), 1.0);
}

Tensor Heat::stepped(const Tensor& state) const {
  HeatCoefficients c = {};
  const int dims = state.dims() - 2;
  for (int d = 0; d < dims; ++d) {
    c.c[3 - dims + d] =
        options_.diffusivity * dt_ * std::pow(static_cast<double>(state.size(d + 1)), 2);
  }
  return call(heat_op, {state}, NoArgs{}, c);
}

Tensor Heat::exact() const { return exact_at(time(), state_.layout(), state_.dtype()); }

Tensor Heat::exact_at(double time, const Layout& layout, DType dtype) const {
  const int dims = layout.dims() - 2;
  std::array<double, 3> dx{};
  for (int d = 0; d < dims; ++d) {
    dx[static_cast<std::size_t>(3 - dims + d)] = 1.0 / static_cast<double>(layout.shape()[d + 1]);
  }
  std::vector<std::vector<Wave>> waves;
  for (std::int64_t n = 0; n < layout.shape()[0]; ++n) {
    waves.push_back(waves_of(options_, dims, n));
    for (Wave& w : waves.back()) {
      const double k2 = w.k[0] * w.k[0] + w.k[1] * w.k[1] + w.k[2] * w.k[2];
      w.amplitude *= std::exp(-options_.diffusivity * k2 * time);
    }
  }
  return fill_points(
      layout, dtype,
      [&](std::int64_t n, const std::array<std::int64_t, 3>& at, std::vector<double>& channels) {
        double sum = 0.0;
        for (const Wave& w : waves[static_cast<std::size_t>(n)]) {
          double angle = w.phase;
          for (std::size_t d = 0; d < 3; ++d) {
            angle += w.k[d] * (static_cast<double>(at[d]) + 0.5) * dx[d];
          }
          sum += w.amplitude * std::cos(angle);
        }
        channels[0] = sum;
      });
}

}  // namespace tessera::solvers
