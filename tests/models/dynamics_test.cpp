// ranks: 1 2 4
// deep: 1 4

#include <filesystem>
#include <tessera/autograd/autograd.hpp>
#include <tessera/models/atomistic/dynamics.hpp>
#include <tessera/parallel/communicator.hpp>

#include "atomistic_support.hpp"

using namespace tessera;
using namespace tessera::atomistic;
using namespace tessera::test;

namespace {

Mesh all_ranks() { return Mesh::world({{"x", process().count}}); }

nn::Structure argon(double a = 5.4) {
  nn::Structure cell;
  cell.cell.vectors = {nn::Vec3{a, 0, 0}, nn::Vec3{0, a, 0}, nn::Vec3{0, 0, a}};
  cell.cell.periodic = {true, true, true};
  for (const nn::Vec3& f :
       {nn::Vec3{0, 0, 0}, nn::Vec3{0, 0.5, 0.5}, nn::Vec3{0.5, 0, 0.5}, nn::Vec3{0.5, 0.5, 0}}) {
    cell.species.push_back(18);
    for (const double x : f) cell.positions.push_back(x * a);
  }
  return cell;
}

std::shared_ptr<const Potential> fluid() {
  return std::make_shared<LennardJones>(LennardJonesParameters{.cutoff = 6.0});
}

/// Positions and velocities by id, on every rank.
struct Moment {
  std::vector<double> positions;
  std::vector<double> velocities;
};

Moment moment(const Dynamics& d) {
  const nn::Graph& graph = d.domain().graph();
  const DenseArray ids = to_dense(graph.ids);
  const DenseArray r = to_dense(d.domain().unwrapped());
  const DenseArray v = to_dense(d.velocities());
  Moment m{std::vector<double>(r.values.size()), std::vector<double>(r.values.size())};
  for (std::size_t n = 0; n < ids.values.size(); ++n) {
    for (std::size_t c = 0; c < 3; ++c) {
      const std::size_t at = 3 * static_cast<std::size_t>(ids.values[n]) + c;
      m.positions[at] = r.values[3 * n + c];
      m.velocities[at] = v.values[3 * n + c];
    }
  }
  return m;
}

/// Slope of the conserved quantity, eV/atom/ps, by least squares over `samples` of `steps` steps.
double drift(Dynamics& d, int samples, std::int64_t steps, double dt) {
  double st = 0.0, se = 0.0, stt = 0.0, ste = 0.0;
  const double e0 = d.thermo().conserved;
  for (int k = 0; k < samples; ++k) {
    d.advance(steps);
    const double t = 1e-3 * dt * static_cast<double>((k + 1) * steps);
    const double e = d.thermo().conserved - e0;
    st += t;
    se += e;
    stt += t * t;
    ste += t * e;
  }
  const double slope = (samples * ste - st * se) / (samples * stt - st * st);
  return slope / static_cast<double>(d.domain().graph().node_count());
}

}  // namespace

TEST_CASE("velocity Verlet keeps the energy while atoms cross parts and the box") {
  // A hot, dense gas: atoms wander through parts within a picosecond.
  const auto potential = fluid();
  DynamicsOptions options{.dt = 2.0, .temperature = 600.0, .skin = 0.6, .seed = 4};
  Dynamics d(supercell(argon(6.0), {3, 2, 2}), potential, all_ranks(), options);
  const Thermo start = d.thermo();
  CHECK(start.temperature == Approx(600.0).epsilon(1e-12));
  std::int64_t migrated = 0;
  std::int64_t rebuilds = d.domain().rebuilds();
  double worst = 0.0;
  for (int k = 0; k < 500; ++k) {
    d.advance(1);
    if (d.domain().rebuilds() != rebuilds) migrated += d.domain().migrated();
    rebuilds = d.domain().rebuilds();
    worst = std::max(worst, std::abs(d.thermo().total - start.total));
  }
  CHECK(rebuilds > 10);
  if (process().count > 1) CHECK(migrated > 5);
  CHECK(worst / 48.0 < 2e-4);
  double momentum = 0.0;
  const Moment m = moment(d);
  for (const double v : m.velocities) momentum += v;
  CHECK(std::abs(momentum) < 1e-11);

  if (process().count > 2) return;
  // Error of second order: half the step, a quarter of the fluctuation.
  const auto fluctuation = [&](double dt) {
    options.dt = dt;
    Dynamics e(supercell(argon(6.0), {3, 2, 2}), potential, all_ranks(), options);
    const double first = e.thermo().total;
    double most = 0.0;
    for (int k = 0; k < static_cast<int>(200.0 / dt); ++k) {
      e.advance(1);
      most = std::max(most, std::abs(e.thermo().total - first));
    }
    return most;
  };
  const double ratio = fluctuation(4.0) / fluctuation(2.0);
  CHECK(ratio == Approx(4.0).epsilon(0.2));
}

TEST_CASE("silica does not drift") {
  const auto potential = std::make_shared<Vashishta>();
  const double dt = 0.5;
  const bool deep = draw_count(1) > 1;
  Dynamics d(quartz({2, 1, 1}), potential, all_ranks(),
             {.dt = dt, .temperature = 600.0, .skin = 0.4, .seed = 1});
  d.advance(400);  // energy of the lattice flows into all modes
  // 10 ps where time allows.
  const int samples = deep ? 2000 : 40;
  const double slope = drift(d, samples, 10, dt);
  INFO("drift " << slope << " eV/atom/ps, rebuilds " << d.domain().rebuilds());
  CHECK(std::abs(slope) < (deep ? 1e-6 : 2e-4));
  CHECK(d.domain().rebuilds() > 1);
}

TEST_CASE("a run is the same on any mesh") {
  const auto potential = fluid();
  const nn::Structure start = supercell(argon(), {2, 2, 2});
  for (const Ensemble ensemble :
       {Ensemble::kNve, Ensemble::kLangevin, Ensemble::kNoseHoover, Ensemble::kNpt}) {
    INFO(name(ensemble));
    DynamicsOptions options{.ensemble = ensemble,
                            .dt = 4.0,
                            .temperature = 90.0,
                            .pressure = 0.1,
                            .barostat_time = 300.0,
                            .skin = 0.5,
                            .seed = 7};
    Dynamics one(start, potential, Mesh::self(), options);
    one.advance(40);
    const Moment expected = moment(one);
    for (const Mesh& mesh : test_meshes()) {
      options.cutting = mesh.axis_count() == 1 ? nn::Cutting::kBisection : nn::Cutting::kBricks;
      Dynamics many(start, potential, mesh, options);
      many.advance(40);
      const Moment m = moment(many);
      CHECK(largest_difference(m.positions, expected.positions) < 1e-10);
      CHECK(largest_difference(m.velocities, expected.velocities) < 1e-12);
      CHECK(many.thermo().conserved == Approx(one.thermo().conserved).epsilon(1e-11));
    }
  }
}

// Averages need thousands of steps; that a run is the same on any mesh is shown above.
TEST_CASE("thermostats reach their temperature and keep what they should") {
  if (process().count > 1) return;
  const auto potential = fluid();
  const nn::Structure start = supercell(argon(5.6), {2, 2, 2});
  for (const Ensemble ensemble : {Ensemble::kLangevin, Ensemble::kNoseHoover}) {
    INFO(name(ensemble));
    Dynamics d(start, potential, all_ranks(),
               {.ensemble = ensemble,
                .dt = 4.0,
                .temperature = 120.0,
                .start_temperature = 200.0,
                .friction = 0.02,
                .thermostat_time = 200.0,
                .skin = 0.8,
                .seed = 3});
    d.advance(300);
    const double conserved = d.thermo().conserved;
    double sum = 0.0;
    double squares = 0.0;
    double worst = 0.0;
    constexpr int kSamples = 300;
    for (int k = 0; k < kSamples; ++k) {
      d.advance(4);
      const Thermo t = d.thermo();
      sum += t.temperature;
      squares += t.temperature * t.temperature;
      worst = std::max(worst, std::abs(t.conserved - conserved));
    }
    const double mean = sum / kSamples;
    const double variance = squares / kSamples - mean * mean;
    CHECK(mean == Approx(120.0).epsilon(0.04));
    // Of the canonical ensemble: 2 T^2 / degrees of freedom.
    CHECK(variance == Approx(2.0 * 120.0 * 120.0 / 93.0).epsilon(0.5));
    CHECK(worst / 32.0 < 2e-4);
  }
}

TEST_CASE("the barostat reaches its pressure and keeps its energy") {
  if (process().count > 1) return;
  const auto potential = fluid();
  for (const bool isotropic : {true, false}) {
    INFO("isotropic " << isotropic);
    Dynamics d(supercell(argon(5.6), {2, 2, 2}), potential, all_ranks(),
               {.ensemble = Ensemble::kNpt,
                .dt = 4.0,
                .temperature = 60.0,
                .thermostat_time = 200.0,
                .pressure = 0.2,
                .barostat_time = 500.0,
                .isotropic = isotropic,
                .skin = 0.8,
                .seed = 3});
    const double volume = d.thermo().volume;
    d.advance(800);
    const double conserved = d.thermo().conserved;
    double pressure = 0.0;
    double worst = 0.0;
    constexpr int kSamples = 300;
    for (int k = 0; k < kSamples; ++k) {
      d.advance(5);
      const Thermo t = d.thermo();
      pressure += t.pressure / kSamples;
      worst = std::max(worst, std::abs(t.conserved - conserved));
    }
    CHECK(pressure == Approx(0.2).margin(0.02));
    CHECK(d.thermo().volume != Approx(volume).epsilon(1e-3));
    CHECK(worst / 32.0 < 2e-4);
    const nn::Cell& cell = d.domain().cell();
    CHECK((cell.vectors[0][0] == cell.vectors[1][1]) == isotropic);
  }
}

TEST_CASE("a run that is continued is the same to the bit") {
  const auto potential = fluid();
  const nn::Structure start = supercell(argon(), {2, 2, 2});
  const std::string path = (std::filesystem::temp_directory_path() /
                            str("tessera_dynamics_", from_process_0(run_seed()), ".safetensors"))
                               .string();
  for (const Ensemble ensemble :
       {Ensemble::kNve, Ensemble::kLangevin, Ensemble::kNoseHoover, Ensemble::kNpt}) {
    INFO(name(ensemble));
    const DynamicsOptions options{
        .ensemble = ensemble, .dt = 4.0, .temperature = 90.0, .skin = 0.5, .seed = 7};
    Dynamics whole(start, potential, all_ranks(), options);
    whole.advance(33);
    whole.save(path);
    whole.advance(25);
    Dynamics second = Dynamics::resume(path, potential, all_ranks(), options);
    CHECK(second.step() == 33);
    second.advance(25);
    const Moment a = moment(whole);
    const Moment b = moment(second);
    CHECK(a.velocities == b.velocities);
    CHECK(a.positions == b.positions);
    CHECK(whole.thermo().conserved == second.thermo().conserved);
    // On another mesh up to rounding.
    Dynamics other = Dynamics::resume(path, potential, Mesh::self(), options);
    other.advance(25);
    CHECK(largest_difference(moment(other).velocities, a.velocities) < 1e-12);
  }
  REQUIRE_THROWS_AS(Dynamics::resume("/nowhere/state", potential, all_ranks(), {}), IoError);
  parallel::barrier(parallel::Group::world()).wait();
  if (process().rank == 0) std::filesystem::remove(path);
}

TEST_CASE("velocities of a structure are taken, snapshots hold labels") {
  const auto potential = fluid();
  Dynamics d(supercell(argon(), {2, 1, 1}), potential, all_ranks(), {.temperature = 50.0});
  d.advance(7);
  const nn::Structure frame = d.snapshot();
  const Moment m = moment(d);
  const double kinetic = d.thermo().kinetic;
  if (process().rank == 0) {
    REQUIRE(frame.energy.has_value());
    REQUIRE(frame.stress.has_value());
    const Answer a = evaluate(*potential, frame);
    CHECK(*frame.energy == Approx(a.energy).epsilon(1e-13));
    CHECK(largest_difference(frame.forces, a.forces) < 1e-13);
    Dynamics again(frame, potential, Mesh::self(), {.temperature = 50.0});
    CHECK(moment(again).velocities == m.velocities);
    CHECK(again.thermo().kinetic == Approx(kinetic).epsilon(1e-14));
  } else {
    CHECK(frame.atoms() == 0);
  }
}

TEST_CASE("options without sense are errors") {
  const auto potential = fluid();
  const auto fails = [&](const DynamicsOptions& options, const nn::Structure& s) {
    REQUIRE_THROWS_AS(Dynamics(s, potential, all_ranks(), options), UsageError);
  };
  fails({.dt = 0.0}, argon());
  fails({.ensemble = Ensemble::kLangevin, .temperature = 0.0}, argon());
  fails({.skin = -1.0}, argon());
  fails({}, nn::Structure{});
  fails({}, quartz());
  nn::Structure slab = argon();
  slab.cell.periodic[2] = false;
  fails({.ensemble = Ensemble::kNpt}, slab);
  REQUIRE_THROWS_AS(ensemble_of("nvt"), UsageError);
}
