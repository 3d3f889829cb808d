// ranks: 1 2 3

#include <numeric>
#include <tessera/models/atomistic/dynamics.hpp>
#include <tessera/models/atomistic/mace_potential.hpp>
#include <tessera/parallel/communicator.hpp>

#include "atomistic_support.hpp"

using namespace tessera;
using namespace tessera::atomistic;
using namespace tessera::test;

namespace {

Mesh all_ranks() { return Mesh::world({{"x", process().count}}); }

/// Neighbours of each atom within `reach`.
std::vector<int> coordination(const nn::Structure& s, double reach) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(s.atoms()));
  std::iota(ids.begin(), ids.end(), 0);
  const auto list = kernels::find_neighbors(s.positions, s.atoms(), s.cell, reach, ids);
  std::vector<int> count(ids.size(), 0);
  for (const std::int64_t r : list.receivers) ++count[static_cast<std::size_t>(r)];
  return count;
}

}  // namespace

TEST_CASE("quartz has its cell, bonds and density") {
  const nn::Structure one = quartz();
  CHECK(one.cell.volume() == Approx(112.34578).epsilon(1e-7));
  std::vector<std::int64_t> ids(9);
  std::iota(ids.begin(), ids.end(), 0);
  // Edges within 4, 4.5, 5 and 6 A.
  const std::array<std::pair<double, std::size_t>, 4> expected = {
      std::pair{4.0, std::size_t{168}}, {4.5, 270}, {5.0, 408}, {6.0, 666}};
  for (const auto& [cutoff, edges] : expected) {
    CHECK(kernels::find_neighbors(one.positions, 9, one.cell, cutoff, ids).receivers.size() ==
          edges);
  }
  const nn::Structure many = quartz({3, 2, 1});
  REQUIRE(many.atoms() == 54);
  const std::vector<int> bonds = coordination(many, 1.8);
  for (std::size_t i = 0; i < bonds.size(); ++i) CHECK(bonds[i] == (many.species[i] == 8 ? 2 : 4));
  REQUIRE_THROWS_AS(quartz({0, 1, 1}), UsageError);
}

TEST_CASE("a glass is quenched, and every rank has it") {
  const auto potential = std::make_shared<Vashishta>();
  // Fast and small: short times and 36 atoms.
  const QuenchOptions options{
      .density = 2.3, .melt = 5000.0, .melt_time = 60.0, .quench_time = 120.0, .seed = 5};
  std::int64_t reports = 0;
  const nn::Structure glass = quenched(quartz({2, 2, 1}), potential, all_ranks(), options,
                                       [&](std::int64_t step, std::int64_t steps, double kelvin) {
                                         CHECK(steps == 180);
                                         CHECK(step == 20 * reports++);
                                         CHECK(kelvin <= 5000.0);
                                       });
  CHECK(reports == 9);
  REQUIRE(glass.atoms() == 36);
  double mass = 0.0;
  for (const std::int32_t z : glass.species) mass += nn::element_mass(z);
  CHECK(1.66053906660 * mass / glass.cell.volume() == Approx(2.3));
  const Answer a = evaluate(*potential, glass);
  CHECK(glass.energy.value() == Approx(a.energy).epsilon(1e-12));
  CHECK(largest_difference(glass.forces, a.forces) < 1e-11);
  // Every rank has the same.
  double sum = 0.0;
  for (std::size_t i = 0; i < glass.positions.size(); ++i)
    sum += glass.positions[i] * std::sin(static_cast<double>(i));
  double least = sum;
  parallel::all_reduce(parallel::Group::world(), &least, 1, DType::kFloat64, ReduceOp::kMin).wait();
  CHECK(least == sum);
  REQUIRE_THROWS_AS(quenched(quartz(), potential, all_ranks(), {.density = 0.0}), UsageError);
}

TEST_CASE("frames are labelled by the potential") {
  const auto potential = std::make_shared<Vashishta>();
  std::vector<nn::Structure> frames;
  thermal_frames(quartz(), potential, all_ranks(),
                 {.frames = 3,
                  .temperature = 300.0,
                  .last_temperature = 900.0,
                  .settle = 20.0,
                  .interval = 10.0},
                 [&](const nn::Structure& s) { frames.push_back(s); });
  REQUIRE(frames.size() == (process().rank == 0 ? 3 : 0));
  for (const nn::Structure& frame : frames) {
    const Answer a = evaluate(*potential, frame);
    CHECK(frame.energy.value() == Approx(a.energy).epsilon(1e-12));
    CHECK(largest_difference(frame.forces, a.forces) < 1e-11);
    for (std::size_t k = 0; k < 9; ++k) {
      CHECK((*frame.stress)[k] == Approx(-a.virials[k] / frame.cell.volume()).margin(1e-12));
    }
  }
}

TEST_CASE("rattled atoms have the width asked for") {
  const nn::Structure crystal = quartz({6, 6, 6});
  const nn::Structure moved = rattled(crystal, 0.1, 0.0, 3);
  double sum = 0.0;
  double squares = 0.0;
  for (std::size_t i = 0; i < crystal.positions.size(); ++i) {
    const double by = moved.positions[i] - crystal.positions[i];
    sum += by;
    squares += by * by;
  }
  const auto n = static_cast<double>(crystal.positions.size());
  CHECK(std::abs(sum / n) < 0.005);
  CHECK(std::sqrt(squares / n) == Approx(0.1).epsilon(0.03));
  CHECK(moved.cell == crystal.cell);
  const nn::Structure strained = rattled(crystal, 0.0, 0.02, 3);
  CHECK(strained.cell.volume() != Approx(crystal.cell.volume()).epsilon(1e-4));
  CHECK(strained.cell.volume() == Approx(crystal.cell.volume()).epsilon(0.15));
  CHECK(rattled(crystal, 0.1, 0.0, 4).positions != moved.positions);
}

TEST_CASE("a MACE model drives the same dynamics on any mesh") {
  const auto run = [](const Mesh& mesh) {
    models::MaceOptions options{.elements = {8, 14}, .r_max = 4.0, .channels = 4};
    options.e0 = {-1.5, -2.5};
    options.avg_num_neighbors = 18.0;
    const auto potential = std::make_shared<MacePotential>(
        std::make_shared<models::Mace>(options, mesh, DType::kFloat64));
    CHECK(potential->knows(14));
    CHECK(!potential->knows(6));
    Dynamics d(displaced(quartz({2, 1, 1})), potential, mesh,
               {.dt = 0.5, .temperature = 300.0, .skin = 0.3, .seed = 1});
    const double before = d.thermo().total;
    d.advance(8);
    const Thermo t = d.thermo();
    CHECK(t.total == Approx(before).margin(1e-3));
    CHECK(t.kinetic != Approx(before));
    return t;
  };
  const Thermo one = run(Mesh::self());
  const Thermo many = run(all_ranks());
  CHECK(many.potential == Approx(one.potential).epsilon(1e-11));
  CHECK(many.kinetic == Approx(one.kinetic).epsilon(1e-9));
  CHECK(many.pressure == Approx(one.pressure).epsilon(1e-9));
}
