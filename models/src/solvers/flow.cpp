#include <cmath>
#include <numbers>
#include <tessera/models/solvers.hpp>

#include "lattice.hpp"
#include "stencil.hpp"

namespace tessera::solvers {
namespace {

struct FlowCoefficients {
  double even_rate;  // 1 / relaxation time of the even part: the viscosity
  double odd_rate;
  double forcing;  // along x, lattice units
  double wave;     // its wave number, radians per point along y
  double drag;
  std::int64_t unused = 0;

  double force_at(std::int64_t y) const {
    return forcing == 0.0 ? 0.0 : forcing * std::sin(wave * (static_cast<double>(y) + 0.5));
  }
};

/// Populations are stored as their difference from the weights, so that f32 keeps its digits.
template <int D, class T>
void flow_row(const Row<T>& row, const FlowCoefficients& k) {
  using L = Lattice<D>;
  const T even_rate = static_cast<T>(k.even_rate);
  const T odd_rate = static_cast<T>(k.odd_rate);
  const T even_force = 1 - even_rate / 2;
  const T odd_force = 1 - odd_rate / 2;
  const T drag = static_cast<T>(k.drag);
  const T damping = 1 / (1 + drag / 2);
  const T driving = static_cast<T>(k.force_at(row.first[1]));
  std::int64_t from[L::kQ];  // where the population that arrives at a point comes from
  for (int q = 0; q < L::kQ; ++q) {
    from[q] = q;
    for (int d = 0; d < D; ++d) {
      from[q] -= L::kE[q][d] * row.step[static_cast<std::size_t>(3 - D + d)];
    }
  }
  for (std::int64_t i = 0; i < row.points; ++i) {
    const T* const x = row.in + i * L::kQ;
    T* const y = row.out + i * L::kQ;
    T g[L::kQ];
    for (int q = 0; q < L::kQ; ++q) g[q] = x[from[q]];
    T pressure = 0;
    T u[D] = {};
    for (int q = 0; q < L::kQ; ++q) {
      pressure += g[q];
      for (int d = 0; d < D; ++d) {
        if (L::kE[q][d] == 1) u[d] += g[q];
        if (L::kE[q][d] == -1) u[d] -= g[q];
      }
    }
    T force[D];
    T uu = 0;
    T uf = 0;
    for (int d = 0; d < D; ++d) {
      const T drive = d == D - 1 ? driving : T(0);
      u[d] = (u[d] + drive / 2) * damping;
      force[d] = drive - drag * u[d];
      uu += u[d] * u[d];
      uf += u[d] * force[d];
    }
    y[0] = g[0] - even_rate * (g[0] - static_cast<T>(L::kW[0]) * (pressure - T(1.5) * uu)) -
           even_force * static_cast<T>(L::kW[0]) * 3 * uf;
    for (int q = 1; q < L::kQ; q += 2) {  // q + 1 is opposite to q
      const T w = static_cast<T>(L::kW[q]);
      T eu = 0;
      T ef = 0;
      for (int d = 0; d < D; ++d) {
        if (L::kE[q][d] == 1) eu += u[d], ef += force[d];
        if (L::kE[q][d] == -1) eu -= u[d], ef -= force[d];
      }
      const T even = (g[q] + g[q + 1]) / 2;
      const T odd = (g[q] - g[q + 1]) / 2;
      const T even_change = even_rate * (w * (pressure + T(4.5) * eu * eu - T(1.5) * uu) - even) +
                            even_force * w * (9 * eu * ef - 3 * uf);
      const T odd_change = odd_rate * (w * 3 * eu - odd) + odd_force * w * 3 * ef;
      y[q] = g[q] + even_change + odd_change;
      y[q + 1] = g[q + 1] + even_change - odd_change;
    }
  }
}

template <class F>
void visit_flow(const LocalCall& call, F&& f) {
  visit_step(call, [&]<int D, class T>() {
    if constexpr (D > 1) f.template operator()<D, T>();
  });
}

const OpDef flow_op = {.name = "flow_step",
                       .infer = step_infer,
                       .signatures = step_signatures,
                       .windows = step_windows,
                       .local = [](const LocalCall& call) {
                         visit_flow(call, [&]<int D, class T>() {
                           for_each_row<T>(call, [&](const Row<T>& row) {
                             flow_row<D>(row, call.dynamic_as<FlowCoefficients>());
                           });
                         });
                       }};

struct VelocityCoefficients {
  FlowCoefficients flow;
  double to_speed;      // lattice to physical velocity
  double to_vorticity;  // lattice velocity difference over two points to physical vorticity
};

/// Lattice velocity at a point of row `y` from its populations after a step.
template <int D, class T>
std::array<double, D> velocity_at(const T* x, std::int64_t y, const FlowCoefficients& k) {
  using L = Lattice<D>;
  std::array<double, D> u{};
  for (int q = 0; q < L::kQ; ++q) {
    for (std::size_t d = 0; d < D; ++d) u[d] += L::kE[q][d] * static_cast<double>(x[q]);
  }
  u[D - 1] -= k.force_at(y) / 2;
  for (double& v : u) v /= 1.0 - k.drag / 2;
  return u;
}

template <int D, class T>
void velocity_row(const Row<T>& row, const VelocityCoefficients& k) {
  constexpr std::int64_t kQ = Lattice<D>::kQ;
  const std::int64_t y = row.first[1];
  for (std::int64_t i = 0; i < row.points; ++i) {
    const T* const x = row.in + i * kQ;
    T* const out = row.out + i * 3;
    const auto u = velocity_at<D>(x, y, k.flow);
    for (std::size_t d = 0; d < D; ++d) out[d] = static_cast<T>(u[D - 1 - d] * k.to_speed);
    if constexpr (D == 2) {
      const double dv = velocity_at<D>(x + row.step[2], y, k.flow)[0] -
                        velocity_at<D>(x - row.step[2], y, k.flow)[0];
      const double du = velocity_at<D>(x + row.step[1], y + 1, k.flow)[1] -
                        velocity_at<D>(x - row.step[1], y - 1, k.flow)[1];
      out[2] = static_cast<T>((dv - du) * k.to_vorticity);
    }
  }
}

/// Populations -> what Flow::fields returns; always three channels.
const OpDef velocity_op = {.name = "flow_velocity",
                           .infer =
                               [](const Problem& p, std::vector<OutputMeta>& out) {
                                 Shape shape = p.shape(0);
                                 shape.back() = 3;
                                 out.push_back({shape, p.dtypes[0]});
                               },
                           .signatures = step_signatures,
                           .windows = step_windows,
                           .local =
                               [](const LocalCall& call) {
                                 visit_flow(call, [&]<int D, class T>() {
                                   for_each_row<T>(call, [&](const Row<T>& row) {
                                     velocity_row<D>(row, call.dynamic_as<VelocityCoefficients>());
                                   });
                                 });
                               }};

/// What the start is made of, physical units; index 0 is z.
struct Start {
  std::array<double, 3> u{};
  double gradient[3][3] = {};  // [a][b]: du_b / dx_a
  double pressure = 0.0;
};

/// u = amplitude cos(k . x + phase), amplitude at right angles to k
struct Wave {
  std::array<double, 3> amplitude{};
  std::array<double, 3> k{};
  double phase = 0.0;
};

constexpr std::int64_t kWaves = 24;

std::vector<Wave> random_waves(const FlowOptions& o,
                               int dims,
                               const std::array<double, 3>& lengths,
                               std::int64_t sample) {
  constexpr double kTurn = 2.0 * std::numbers::pi;
  const std::vector<double> draws = uniform_numbers(o.seed, sample, 6 * kWaves);
  std::vector<Wave> waves;
  double energy = 0.0;
  for (std::int64_t w = 0; w < kWaves; ++w) {
    const double* const r = draws.data() + 6 * w;
    // A direction evenly on the circle or sphere, a length from half to one and a half of the peak.
    const double height = dims == 3 ? 2.0 * r[0] - 1.0 : 0.0;
    const double around = kTurn * r[1];
    const double flat = std::sqrt(1.0 - height * height);
    const double length = static_cast<double>(o.peak) * (0.5 + r[2]);
    const std::array<double, 3> wish = {length * height, length * flat * std::sin(around),
                                        length * flat * std::cos(around)};
    Wave wave;
    wave.phase = kTurn * r[3];
    double k2 = 0.0;
    for (std::size_t d = 0; d < 3; ++d) {
      wave.k[d] = kTurn / lengths[d] * std::round(wish[d] * lengths[d] / kTurn);
      k2 += wave.k[d] * wave.k[d];
    }
    if (k2 == 0.0) {
      wave.k[2] = kTurn / lengths[2];
      k2 = wave.k[2] * wave.k[2];
    }
    // In 2-D the amplitude turns k by 90 degrees; in 3-D it is k times a random direction.
    const double h = dims == 3 ? 2.0 * r[4] - 1.0 : 1.0;
    const double f = std::sqrt(1.0 - h * h);
    const std::array<double, 3> b = {h, f * std::sin(kTurn * r[5]), f * std::cos(kTurn * r[5])};
    for (std::size_t d = 0; d < 3; ++d) {
      const std::size_t e = (d + 1) % 3;
      const std::size_t g = (d + 2) % 3;
      wave.amplitude[d] = (b[e] * wave.k[g] - b[g] * wave.k[e]) / std::sqrt(k2);
      energy += wave.amplitude[d] * wave.amplitude[d] / 2.0;
    }
    waves.push_back(wave);
  }
  const double scale = energy > 0.0 ? o.speed / std::sqrt(energy) : 0.0;
  for (Wave& w : waves)
    for (double& a : w.amplitude) a *= scale;
  return waves;
}

Start start_of(const std::vector<Wave>& waves, const std::array<double, 3>& x) {
  Start s;
  for (const Wave& w : waves) {
    const double angle = w.k[0] * x[0] + w.k[1] * x[1] + w.k[2] * x[2] + w.phase;
    const double cosine = std::cos(angle);
    const double sine = std::sin(angle);
    for (std::size_t b = 0; b < 3; ++b) {
      s.u[b] += w.amplitude[b] * cosine;
      for (std::size_t a = 0; a < 3; ++a) s.gradient[a][b] -= w.k[a] * w.amplitude[b] * sine;
    }
  }
  return s;
}

Start taylor_green(double speed, double ky, const std::array<double, 3>& x) {
  const double sx = std::sin(x[2]);
  const double cx = std::cos(x[2]);
  const double sy = std::sin(ky * x[1]);
  const double cy = std::cos(ky * x[1]);
  Start s;
  s.u = {0.0, -speed / ky * sx * cy, speed * cx * sy};
  s.gradient[2][2] = -speed * sx * sy;
  s.gradient[1][2] = speed * ky * cx * cy;
  s.gradient[2][1] = -speed / ky * cx * cy;
  s.gradient[1][1] = speed * sx * sy;
  s.pressure =
      -speed * speed / 4.0 * (std::cos(2.0 * x[2]) + std::cos(2.0 * ky * x[1]) / (ky * ky));
  return s;
}

/// Populations after a step that have the start's velocity, pressure and stress (lattice units).
template <int D>
void populations(const Start& s, double even_rate, std::vector<double>& g) {
  using L = Lattice<D>;
  double uu = 0.0;
  double divergence = 0.0;
  for (std::size_t d = 3 - D; d < 3; ++d) {
    uu += s.u[d] * s.u[d];
    divergence += s.gradient[d][d];
  }
  for (int q = 0; q < L::kQ; ++q) {
    double eu = 0.0;
    double stress = -divergence / 3.0;
    for (std::size_t a = 0; a < D; ++a) {
      eu += L::kE[q][a] * s.u[3 - D + a];
      for (std::size_t b = 0; b < D; ++b) {
        stress += L::kE[q][a] * L::kE[q][b] * s.gradient[3 - D + a][3 - D + b];
      }
    }
    g[static_cast<std::size_t>(q)] =
        L::kW[q] * (3.0 * s.pressure + 3.0 * eu + 4.5 * eu * eu - 1.5 * uu -
                    3.0 / even_rate * (1.0 - even_rate) * stress);
  }
}

const FlowOptions& checked(const FlowOptions& o, const Layout& grid) {
  const int dims = grid.dims() - 2;
  if (dims < 2 || dims > 3) {
    throw UsageError(str("flow: shape ", grid.shape(), " has ", dims,
                         " domain dimensions. Give [N, y, x, C] or [N, z, y, x, C]."));
  }
  if (!(o.viscosity > 0.0) || !(o.fastest > 0.0) || !(o.courant > 0.0) || o.courant > 0.3 ||
      o.drag < 0.0 || o.waves < 0 || o.peak < 1) {
    throw UsageError(str("flow: viscosity ", o.viscosity, ", fastest ", o.fastest, ", courant ",
                         o.courant, ", drag ", o.drag, ", waves ", o.waves, ", peak ", o.peak,
                         " (viscosity, fastest, courant and peak must be positive, courant at most "
                         "0.3, the rest not negative)."));
  }
  return o;
}

}  // namespace

/// Coefficients of both ops from the options.
struct Flow::Numbers {
  explicit Numbers(const Flow& flow) {
    const FlowOptions& o = flow.options_;
    const double even_time = 3.0 * flow.lattice_viscosity_ + 0.5;
    step = {.even_rate = 1.0 / even_time,
            .odd_rate = 1.0,
            .forcing = o.forcing * flow.dt_ * flow.dt_ / flow.dx_,
            .wave = 2.0 * std::numbers::pi * static_cast<double>(o.waves) /
                    static_cast<double>(flow.rows_),
            .drag = o.drag * flow.dt_};
  }
  FlowCoefficients step;
};

Flow::Flow(const FlowOptions& options, const Layout& grid, DType dtype)
    : options_(checked(options, grid)) {
  const FlowOptions& o = options_;
  const int dims = grid.dims() - 2;
  const std::int64_t columns = grid.shape()[dims];
  rows_ = grid.shape()[dims - 1];
  const Layout layout = with_channels("flow", grid, dims == 2 ? Lattice<2>::kQ : Lattice<3>::kQ);
  dx_ = 2.0 * std::numbers::pi / static_cast<double>(columns);
  dt_ = fitting_step(o.interval, o.courant * dx_ / o.fastest);
  lattice_viscosity_ = o.viscosity * dt_ / (dx_ * dx_);

  std::array<double, 3> lengths = {2.0 * std::numbers::pi, 0.0, 2.0 * std::numbers::pi};
  for (int d = 0; d < dims; ++d) {
    lengths[static_cast<std::size_t>(3 - dims + d)] =
        dx_ * static_cast<double>(grid.shape()[d + 1]);
  }
  std::vector<std::vector<Wave>> waves(static_cast<std::size_t>(grid.shape()[0]));
  if (o.start == FlowOptions::Start::kRandom) {
    for (std::size_t n = 0; n < waves.size(); ++n) {
      waves[n] = random_waves(o, dims, lengths, static_cast<std::int64_t>(n));
    }
  }
  const Numbers numbers(*this);
  const double to_lattice = dt_ / dx_;
  state_ = fill_points(
      layout, dtype,
      [&](std::int64_t n, const std::array<std::int64_t, 3>& at, std::vector<double>& channels) {
        std::array<double, 3> x{};
        for (std::size_t d = 0; d < 3; ++d) x[d] = (static_cast<double>(at[d]) + 0.5) * dx_;
        Start s = o.start == FlowOptions::Start::kTaylorGreen
                      ? taylor_green(o.speed, 2.0 * std::numbers::pi / lengths[1], x)
                      : start_of(waves[static_cast<std::size_t>(n)], x);
        s.pressure *= to_lattice * to_lattice;
        for (std::size_t a = 0; a < 3; ++a) {
          s.u[a] *= to_lattice;
          for (std::size_t b = 0; b < 3; ++b) s.gradient[a][b] *= dt_;
        }
        // The momentum of a state includes half a step of the force.
        s.u[2] += (numbers.step.force_at(at[1]) - numbers.step.drag * s.u[2]) / 2;
        s.u[1] -= numbers.step.drag * s.u[1] / 2;
        s.u[0] -= numbers.step.drag * s.u[0] / 2;
        if (dims == 2) {
          populations<2>(s, numbers.step.even_rate, channels);
        } else {
          populations<3>(s, numbers.step.even_rate, channels);
        }
      });
}

Tensor Flow::stepped(const Tensor& state) const {
  return call(flow_op, {state}, NoArgs{}, Numbers(*this).step);
}

Tensor Flow::fields() const {
  const double to_speed = dx_ / dt_;
  return call(velocity_op, {state_}, NoArgs{},
              VelocityCoefficients{Numbers(*this).step, to_speed, to_speed / (2.0 * dx_)});
}

std::vector<std::string> Flow::field_names() const {
  if (state_.dims() == 4) return {"u", "v", "vorticity"};
  return {"u", "v", "w"};
}

std::vector<double> Flow::lengths() const {
  std::vector<double> lengths;
  for (int d = 1; d + 1 < state_.dims(); ++d) {
    lengths.push_back(dx_ * static_cast<double>(state_.size(d)));
  }
  return lengths;
}

}  // namespace tessera::solvers
