// ranks: 1 2 3

#include <tessera/models/atomistic/relax.hpp>

#include "atomistic_support.hpp"

using namespace tessera;
using namespace tessera::atomistic;
using namespace tessera::test;

namespace {

Mesh all_ranks() { return Mesh::world({{"x", process().count}}); }

}  // namespace

TEST_CASE("displaced silicon finds the diamond structure again") {
  const StillingerWeber potential;
  const nn::Structure perfect = diamond_silicon({2, 1, 1});
  const Relaxed relaxed = relax(displaced(perfect, 0.15), potential, all_ranks(), {.force = 1e-6});
  CHECK(relaxed.converged);
  CHECK(relaxed.last.force <= 1e-6);
  // The minimum is normalised to -2 epsilon per atom.
  CHECK(relaxed.last.energy / 16.0 == Approx(-2.0 * 2.1683).margin(1e-6));
  CHECK(relaxed.last.energy == Approx(evaluate(potential, perfect).energy).epsilon(1e-9));
}

TEST_CASE("the box relaxes with its shape, to any pressure") {
  const StillingerWeber potential;
  const std::array<double, 9> strain = {1.04, 0.02, 0, 0, 0.97, -0.03, 0.01, 0, 1.02};
  const nn::Structure start = deformed(displaced(diamond_silicon(), 0.05), strain);
  const RelaxOptions options{.force = 1e-5, .stress = 1e-7, .cell = true};
  const Relaxed relaxed = relax(start, potential, all_ranks(), options);
  CHECK(relaxed.converged);
  CHECK(relaxed.last.energy / 8.0 == Approx(-2.0 * 2.1683).margin(1e-6));
  const Relaxed pressed = [&] {
    RelaxOptions o = options;
    o.pressure = 5.0;
    return relax(start, potential, all_ranks(), o);
  }();
  CHECK(pressed.converged);
  if (process().rank == 0) {
    // a = 5.431 A; the volume follows the pressure by the bulk modulus of about 101 GPa.
    CHECK(std::cbrt(relaxed.structure.cell.volume()) == Approx(5.431).margin(2e-3));
    const double strained = pressed.structure.cell.volume() / relaxed.structure.cell.volume() - 1.0;
    CHECK(strained == Approx(-5.0 / 101.4).epsilon(0.15));
    for (std::size_t k = 0; k < 9; ++k) {
      const double wanted = k % 4 == 0 ? -5.0 / 160.2176634 : 0.0;
      CHECK((*pressed.structure.stress)[k] == Approx(wanted).margin(2e-7));
    }
  }
}

TEST_CASE("quartz keeps its symmetry class and relaxes alike on any mesh") {
  const Vashishta potential;
  RelaxOptions options{.force = 1e-4, .stress = 1e-6, .cell = true};
  const Relaxed one = relax(displaced(quartz()), potential, Mesh::self(), options);
  CHECK(one.converged);
  options.cutting = nn::Cutting::kBisection;
  const Relaxed many = relax(displaced(quartz()), potential, all_ranks(), options);
  CHECK(many.converged);
  CHECK(many.last.energy == Approx(one.last.energy).epsilon(1e-7));
}

TEST_CASE("steps are bounded, and options are checked") {
  const StillingerWeber potential;
  std::int64_t reports = 0;
  const Relaxed stopped =
      relax(displaced(diamond_silicon(), 0.2), potential, all_ranks(), {.steps = 3},
            [&](const RelaxStep& s) { CHECK(s.step == reports++); });
  CHECK(!stopped.converged);
  CHECK(reports == 4);
  nn::Structure slab = diamond_silicon();
  slab.cell.periodic[2] = false;
  REQUIRE_THROWS_AS(relax(slab, potential, all_ranks(), {.cell = true}), UsageError);
  REQUIRE_THROWS_AS(relax(slab, potential, all_ranks(), {.force = 0.0}), UsageError);
  REQUIRE_THROWS_AS(relax({}, potential, all_ranks(), {}), UsageError);
}
