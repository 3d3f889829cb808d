#include <cmath>
#include <numeric>
#include <tessera/models/atomistic/dynamics.hpp>
#include <tessera/models/atomistic/relax.hpp>
#include <tessera/models/atomistic/silica.hpp>

#include "collect.hpp"
#include "density.hpp"
#include "dynamics_state.hpp"

namespace tessera::atomistic {

namespace {

constexpr std::int64_t kRampSteps = 20;  // between changes of the temperature
constexpr std::uint64_t kRattleStream = ~std::uint64_t{1};
constexpr std::uint64_t kStrainStream = ~std::uint64_t{2};

std::int64_t steps_in(double time, double dt) {
  return std::max<std::int64_t>(1, std::llround(time / dt));
}

void stretch_to(nn::Structure& s, double density) {
  const double by = std::cbrt(density_of(s) / density);
  for (double& x : s.positions) x *= by;
  for (nn::Vec3& v : s.cell.vectors)
    for (double& x : v) x *= by;
}

}  // namespace

nn::Structure quenched(const nn::Structure& crystal,
                       std::shared_ptr<const Potential> potential,
                       const Mesh& mesh,
                       const QuenchOptions& o,
                       const std::function<void(std::int64_t, std::int64_t, double)>& report) {
  if (!(o.density > 0.0) || !(o.melt > 0.0) || !(o.end > 0.0) || !(o.melt_time >= 0.0) ||
      !(o.quench_time >= 0.0) || !(o.dt > 0.0)) {
    throw UsageError(str("quench: density ", o.density, ", temperatures ", o.melt, " and ", o.end,
                         ", times ", o.melt_time, " and ", o.quench_time, ", step ", o.dt,
                         " (none may be negative or zero but the times). Change them."));
  }
  if (!(crystal.cell.volume() > 0.0) || crystal.atoms() == 0)
    throw UsageError("quench: the crystal has no atoms or no volume. Give a periodic one.");
  nn::Structure start = crystal;
  start.columns.clear();
  stretch_to(start, o.density);
  nn::Structure cold;
  {
    Dynamics d(start, potential, mesh,
               {.ensemble = Ensemble::kLangevin,
                .dt = o.dt,
                .temperature = o.melt,
                .friction = o.friction,
                .seed = o.seed});
    const std::int64_t melting = steps_in(o.melt_time, o.dt);
    const std::int64_t quenching = steps_in(o.quench_time, o.dt);
    while (d.step() < melting + quenching) {
      const double past = static_cast<double>(std::max<std::int64_t>(0, d.step() - melting)) /
                          static_cast<double>(quenching);
      const double temperature = o.melt + (o.end - o.melt) * past;
      d.set_temperature(temperature);
      if (report) report(d.step(), melting + quenching, temperature);
      d.advance(std::min(kRampSteps, melting + quenching - d.step()));
    }
    cold = d.snapshot();
    cold.columns.clear();
    cold.info.clear();
  }
  share(cold, mesh);
  nn::Structure glass = relax(cold, *potential, mesh, {.force = 0.01, .steps = 2000}).structure;
  share(glass, mesh);
  return glass;
}

void thermal_frames(const nn::Structure& start,
                    std::shared_ptr<const Potential> potential,
                    const Mesh& mesh,
                    const ThermalOptions& o,
                    const std::function<void(const nn::Structure&)>& take) {
  if (o.frames < 0 || !(o.settle >= 0.0) || !(o.interval > 0.0) || !(o.dt > 0.0)) {
    throw UsageError(str("frames: ", o.frames, " frames, times ", o.settle, " and ", o.interval,
                         ", step ", o.dt, ". Give positive numbers."));
  }
  Dynamics d(start, potential, mesh,
             {.ensemble = Ensemble::kLangevin,
              .dt = o.dt,
              .temperature = o.temperature,
              .friction = o.friction,
              .seed = o.seed});
  for (std::int64_t frame = 0; frame < o.frames; ++frame) {
    const double past =
        o.frames == 1 ? 0.0 : static_cast<double>(frame) / static_cast<double>(o.frames - 1);
    d.set_temperature(o.temperature + (o.last_temperature - o.temperature) * past);
    d.advance(steps_in(frame == 0 ? o.settle : o.interval, o.dt));
    const nn::Structure s = d.snapshot();
    if (mesh.rank() == 0) take(s);
  }
}

nn::Structure rattled(const nn::Structure& structure,
                      double width,
                      double strain,
                      std::uint64_t seed) {
  nn::Structure s = structure;
  s.energy.reset();
  s.forces.clear();
  s.stress.reset();
  s.virials.reset();
  s.columns.clear();
  std::vector<std::int64_t> ids(static_cast<std::size_t>(s.atoms()) + 2);
  std::iota(ids.begin(), ids.end(), 0);
  const std::vector<double> box = normal_numbers(ids.data(), 2, {seed, kStrainStream});
  const std::array<double, 9> f = {
      1.0 + strain * box[0], strain * box[3],       strain * box[4],
      strain * box[3],       1.0 + strain * box[1], strain * box[5],
      strain * box[4],       strain * box[5],       1.0 + strain * box[2]};
  const auto deform = [&](double* r) {
    const nn::Vec3 x = {r[0], r[1], r[2]};
    for (std::size_t a = 0; a < 3; ++a)
      r[a] = f[3 * a] * x[0] + f[3 * a + 1] * x[1] + f[3 * a + 2] * x[2];
  };
  for (nn::Vec3& v : s.cell.vectors) deform(v.data());
  const std::vector<double> xi = normal_numbers(ids.data(), s.atoms(), {seed, kRattleStream});
  for (std::size_t i = 0; i < s.species.size(); ++i) {
    deform(&s.positions[3 * i]);
    for (std::size_t c = 0; c < 3; ++c) s.positions[3 * i + c] += width * xi[4 * i + c];
  }
  return s;
}

}  // namespace tessera::atomistic
