#include "dynamics_state.hpp"

namespace tessera::atomistic {

namespace {

constexpr std::uint64_t kStartStream = ~std::uint64_t{0};

}  // namespace

std::vector<double> normal_numbers(const std::int64_t* ids,
                                   std::int64_t count,
                                   kernels::PhiloxKey key) {
  std::vector<double> numbers(static_cast<std::size_t>(4 * count));
  for (std::int64_t i = 0; i < count;) {
    std::int64_t j = i + 1;
    while (j < count && ids[j] == ids[j - 1] + 1) ++j;
    const std::int64_t n = 4 * (j - i);
    kernels::random_normal(
        key, 0.0, 1.0,
        {.view = View::dense(&numbers[static_cast<std::size_t>(4 * i)], DType::kFloat64, {n}),
         .box = Box{{4 * ids[i]}, {4 * ids[i] + n}},
         .global = {std::int64_t{1} << 60}});
    i = j;
  }
  return numbers;
}

void Dynamics::State::begin() {
  take_masses();
  std::array<double, 2> sums{};
  for (const double m : masses) {
    sums[0] += m;
    sums[1] += m > 0.0 ? 0.0 : 1.0;
  }
  all_reduce(domain->graph().nodes(), sums);
  if (sums[1] != 0.0) {
    throw UsageError(
        str("dynamics: ", sums[1], " atoms have no mass (species X). Give them an element."));
  }
  total_mass = sums[0];
  if (options.ensemble == Ensemble::kNpt && !(volume() > 0.0)) {
    throw UsageError(
        "dynamics: the box does not repeat along all axes (it has no pressure). Take another "
        "ensemble than npt.");
  }
  evaluate();
}

void Dynamics::State::noise(double h) {
  const double keep = std::exp(-options.friction * h);
  const double spread = std::sqrt((1.0 - keep * keep) * kt() * kAcceleration);
  const auto* const ids = domain->graph().ids.local().as<std::int64_t>();
  const std::vector<double> xi =
      normal_numbers(ids, own(), {.key = options.seed, .stream = static_cast<std::uint64_t>(step)});
  double* const u = v();
  double change = 0.0;
  for (std::int64_t i = 0; i < own(); ++i) {
    const double m = masses[static_cast<std::size_t>(i)];
    for (std::int64_t c = 0; c < 3; ++c) {
      const double before = u[3 * i + c];
      const double after =
          keep * before + spread / std::sqrt(m) * xi[static_cast<std::size_t>(4 * i + c)];
      change += 0.5 * m * (after * after - before * before) / kAcceleration;
      u[3 * i + c] = after;
    }
  }
  all_reduce(domain->graph().nodes(), {&change, 1});
  heat += change;
}

bool Dynamics::State::box_drift(double h) {
  const Tensor& from = domain->positions();
  const Tensor to = Tensor::empty(from.layout(), DType::kFloat64);
  const auto* const r = from.local().as<double>();
  auto* const out = to.mutable_local().as<double>();
  nn::Cell cell = domain->cell();
  for (std::size_t c = 0; c < 3; ++c) {
    const double x = strain_rate[c] * h;
    const double stretch = std::exp(x);
    const double path = h * std::exp(0.5 * x) * sinhc(0.5 * x);
    for (std::int64_t i = 0; i < own(); ++i) {
      const auto k = 3 * i + static_cast<std::int64_t>(c);
      out[k] = r[k] * stretch + path * v()[k];
    }
    for (nn::Vec3& a : cell.vectors) a[c] *= stretch;
  }
  return domain->move(to, cell);
}

void Dynamics::State::take_step() {
  const double h = 0.5 * options.dt;
  switch (options.ensemble) {
    case Ensemble::kNve:
      kick(h);
      arrived(domain->move(drifted(domain->positions(), options.dt)));
      kick(h);
      break;
    case Ensemble::kLangevin: {
      kick(h);
      const Tensor half = drifted(domain->positions(), h);
      noise(options.dt);
      arrived(domain->move(drifted(half, h)));
      kick(h);
      break;
    }
    case Ensemble::kNoseHoover:
      thermostat(h);
      kick(h);
      arrived(domain->move(drifted(domain->positions(), options.dt)));
      kick(h);
      thermostat(h);
      break;
    case Ensemble::kNpt:
      box_thermostat(h);
      thermostat(h);
      box_kick(h);
      kick(h, drag());
      arrived(box_drift(options.dt));
      kick(h, drag());
      box_kick(h);
      thermostat(h);
      box_thermostat(h);
      break;
  }
  ++step;
}

void Dynamics::State::draw_velocities(double temperature) {
  velocities = new_velocities();
  const auto* const ids = domain->graph().ids.local().as<std::int64_t>();
  const std::vector<double> xi =
      normal_numbers(ids, own(), {.key = options.seed, .stream = kStartStream});
  double* const u = v();
  std::array<double, 3> momentum{};
  for (std::int64_t i = 0; i < own(); ++i) {
    const double m = masses[static_cast<std::size_t>(i)];
    for (std::size_t c = 0; c < 3; ++c) {
      const auto k = static_cast<std::int64_t>(c);
      u[3 * i + k] = std::sqrt(kBoltzmann * temperature * kAcceleration / m) *
                     xi[static_cast<std::size_t>(4 * i + k)];
      momentum[c] += m * u[3 * i + k];
    }
  }
  all_reduce(domain->graph().nodes(), momentum);
  if (atoms() < 2) return;
  for (std::int64_t i = 0; i < own(); ++i)
    for (std::size_t c = 0; c < 3; ++c)
      u[3 * i + static_cast<std::int64_t>(c)] -= momentum[c] / total_mass;
  const double now = sum(twice_kinetic());
  const double wanted = (static_cast<double>(3 * atoms()) - 3.0) * kBoltzmann * temperature;
  if (now > 0.0) scale_velocities(std::sqrt(wanted / now));
}

void Dynamics::State::box_kick(double h) {
  const std::array<double, 3> twice = twice_kinetic();
  const double outer = options.pressure / kGigaPascal * volume();
  std::array<double, 3> drive{};
  for (std::size_t c = 0; c < 3; ++c)
    drive[c] = twice[c] + virial(c, c) - outer + sum(twice) / freedom();
  if (options.isotropic) drive.fill(sum(drive) / 3.0);
  for (std::size_t c = 0; c < 3; ++c) strain_rate[c] += h * drive[c] / box_mass();
}

}  // namespace tessera::atomistic
