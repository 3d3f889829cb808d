// ranks: 1 2 3 4
// deep: 8

#include <sstream>
#include <tessera/nn/io/data_error.hpp>

#include "atomistic_support.hpp"

using namespace tessera;
using namespace tessera::atomistic;
using namespace tessera::test;

namespace {

/// Of each potential a structure without symmetry.
struct Case {
  std::shared_ptr<const Potential> potential;
  nn::Structure structure;
};

std::vector<Case> cases() {
  nn::Structure argon = diamond_silicon({1, 1, 1});
  for (double& x : argon.positions) x *= 1.6;
  for (nn::Vec3& v : argon.cell.vectors)
    for (double& x : v) x *= 1.6;
  std::fill(argon.species.begin(), argon.species.end(), 18);
  return {{make_potential("vashishta"), displaced(quartz())},
          {make_potential("stillinger-weber"), displaced(diamond_silicon())},
          {make_potential("lennard-jones"), displaced(argon)}};
}

void expect_same(const Answer& a, const Answer& b, double tolerance) {
  CHECK(a.energy == Approx(b.energy).epsilon(tolerance));
  double scale = 1.0;
  for (const double f : b.forces) scale = std::max(scale, std::abs(f));
  CHECK(largest_difference(a.forces, b.forces) <= tolerance * scale * 10);
  for (std::size_t k = 0; k < 9; ++k)
    CHECK(a.virials[k] == Approx(b.virials[k]).epsilon(tolerance).margin(tolerance * 100));
}

}  // namespace

TEST_CASE("potentials give the numbers of LAMMPS") {
  // LAMMPS 22 Jul 2025, units metal, boundary p p p, the same 9 (8) atoms as a triclinic (cubic)
  // box, one process:
  //   pair_style vashishta; pair_coeff * * SiO.1990.vashishta O Si
  //   pair_style sw; pair_coeff * * Si.sw Si
  //   thermo_style custom pe pxx pyy pzz pxy pxz pyz; run 0
  struct Reference {
    double energy;
    std::array<double, 6> pressure;  // bar: xx yy zz xy xz yz
    std::vector<double> forces;
  };
  const Reference silica = {
      -81.6002619591962,
      {-51028.8428639349, 6133.54515782298, -39116.2310857757, 4802.01325821521, 27207.5391007632,
       24053.512672836},
      {0.572087386544623, 0.226341431022488,  -1.37506966447307, -3.54556357418141,
       -5.84984559047728, -3.06624809829467,  -2.55735411736068, -0.639255566084545,
       1.33823160629557,  3.55404921133523,   1.12051801625496,  2.41472767105603,
       2.45761001068977,  3.01721398025422,   -2.17925715784403, 0.811186644630341,
       -2.71212564622357, -2.53272935258935,  -2.3007749055805,  -0.295826889415627,
       2.05639288013343,  -0.238406626649931, 3.38735966185618,  2.46605905363597,
       1.24716597057255,  1.74562060281318,   0.877893062080125}};
  const Reference silicon = {
      -34.4434558442831,
      {2048.02411381518, 3087.09678958003, 1427.73554327184, 8149.29967059282, 4736.27674286586,
       306.968727034624},
      {0.651294923328266,  -0.239412942411621,  -0.778961182480541,  -0.0841044889764737,
       -0.516216013993336, -0.480084758443833,  -0.877108907356866,  -0.160188215788847,
       0.2818867387564,    0.246803191272481,   0.895041323575522,   1.20697659230578,
       1.18042955616432,   0.199069667736742,   -0.0204902825962361, -0.0187764151747429,
       -0.694540056934454, -0.981336984367494,  -1.06558739898749,   -0.341495794606136,
       -0.531890441565157, -0.0329504602694864, 0.857742032422131,   1.30390031839108}};
  const std::vector<Case> all = cases();
  for (int k = 0; k < 2; ++k) {
    const Case& c = all[static_cast<std::size_t>(k)];
    const Reference& expected = k == 0 ? silica : silicon;
    INFO(c.potential->name());
    const Answer a = evaluate(*c.potential, c.structure);
    CHECK(a.energy == Approx(expected.energy).epsilon(1e-11));
    CHECK(largest_difference(a.forces, expected.forces) < 1e-11);
    constexpr std::array<std::size_t, 6> kPlace = {0, 4, 8, 1, 2, 5};
    for (std::size_t p = 0; p < 6; ++p) {
      const double pressure = a.virials[kPlace[p]] / c.structure.cell.volume() * 1.6021765e6;
      CHECK(pressure == Approx(expected.pressure[p]).epsilon(1e-9).margin(1e-5));
    }
  }
}

TEST_CASE("forces and virials are derivatives of the energy") {
  for (const Case& c : cases()) {
    INFO(c.potential->name());
    const Answer a = evaluate(*c.potential, c.structure);
    constexpr double kStep = 1e-4;
    std::array<double, 3> total{};
    for (std::size_t i = 0; i < c.structure.positions.size(); ++i) {
      nn::Structure s = c.structure;
      const auto energy = [&](double by) {
        s.positions[i] = c.structure.positions[i] + by * kStep;
        return evaluate(*c.potential, s).energy;
      };
      // Fourth order: the error of the difference is far below the tolerance.
      const double slope =
          (8.0 * (energy(1) - energy(-1)) - (energy(2) - energy(-2))) / (12.0 * kStep);
      CHECK(a.forces[i] == Approx(-slope).margin(1e-7));
      total[i % 3] += a.forces[i];
    }
    for (const double t : total) CHECK(std::abs(t) < 1e-12);
    for (std::size_t p = 0; p < 3; ++p) {
      for (std::size_t q = p; q < 3; ++q) {
        constexpr double kStrain = 1e-5;  // less: pairs cross the cutoff, where curvature jumps
        const auto energy = [&](double by) {
          std::array<double, 9> f = {1, 0, 0, 0, 1, 0, 0, 0, 1};
          f[3 * p + q] += 0.5 * by * kStrain;
          f[3 * q + p] += 0.5 * by * kStrain;
          return evaluate(*c.potential, deformed(c.structure, f)).energy;
        };
        const double slope =
            (8.0 * (energy(1) - energy(-1)) - (energy(2) - energy(-2))) / (12.0 * kStrain);
        CHECK(a.virials[3 * p + q] == Approx(-slope).epsilon(1e-7).margin(1e-6));
        CHECK(a.virials[3 * p + q] == a.virials[3 * q + p]);
      }
    }
  }
}

TEST_CASE("energies do not change with what has no meaning") {
  for (const Case& c : cases()) {
    INFO(c.potential->name());
    const Answer a = evaluate(*c.potential, c.structure);
    const double s1 = std::sin(0.7);
    const double c1 = std::cos(0.7);
    for (const auto& f : {std::array<double, 9>{c1, -s1, 0, s1, c1, 0, 0, 0, 1},
                          std::array<double, 9>{1, 0, 0, 0, c1, -s1, 0, s1, c1},
                          std::array<double, 9>{-1, 0, 0, 0, -1, 0, 0, 0, -1}}) {
      const Answer b = evaluate(*c.potential, deformed(c.structure, f));
      CHECK(b.energy == Approx(a.energy).epsilon(1e-12));
      nn::Structure turned;
      turned.positions = a.forces;
      CHECK(largest_difference(b.forces, deformed(turned, f).positions) < 1e-11);
    }
    // Translated, wrapped, in another order.
    nn::Structure moved = c.structure;
    const std::size_t n = moved.species.size();
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t from = (5 * i + 2) % n;
      moved.species[i] = c.structure.species[from];
      for (std::size_t k = 0; k < 3; ++k) {
        moved.positions[3 * i + k] = c.structure.positions[3 * from + k] + 1.37 +
                                     c.structure.cell.vectors[1][k] * static_cast<double>(i % 3);
      }
    }
    const Answer b = evaluate(*c.potential, moved);
    CHECK(b.energy == Approx(a.energy).epsilon(1e-12));
    for (std::size_t i = 0; i < 3 * n; ++i) {
      CHECK(b.forces[i] == Approx(a.forces[3 * ((5 * (i / 3) + 2) % n) + i % 3]).margin(1e-11));
    }
    const Answer twice = evaluate(*c.potential, supercell(c.structure, {2, 1, 1}));
    CHECK(twice.energy == Approx(2.0 * a.energy).epsilon(1e-12));
    for (std::size_t i = 0; i < 6 * n; ++i)
      CHECK(twice.forces[i] == Approx(a.forces[i % (3 * n)]).margin(1e-11));
    for (std::size_t k = 0; k < 9; ++k)
      CHECK(twice.virials[k] == Approx(2.0 * a.virials[k]).margin(1e-10));
  }
}

TEST_CASE("potentials are the same on any mesh") {
  for (const Case& c : cases()) {
    INFO(c.potential->name());
    // Atoms in one corner of a wide box leave ranks without any.
    nn::Structure drop = c.structure;
    drop.cell.periodic = {false, false, true};
    drop.cell.vectors[0][0] *= 8.0;
    for (const nn::Structure& s :
         {c.structure, displaced(supercell(c.structure, {2, 1, 1}), 0.02), drop}) {
      const Answer one = evaluate(*c.potential, s);
      for (const Mesh& mesh : test_meshes())
        for (const auto cutting : {nn::Cutting::kBricks, nn::Cutting::kBisection})
          expect_same(evaluate(*c.potential, s, mesh, cutting), one, 1e-12);
    }
  }
}

TEST_CASE("parameters are read, and what is wrong is said") {
  const auto read = [](const std::string& text) {
    std::istringstream stream(text);
    return VashishtaParameters::read(stream, "test.vashishta");
  };
  const std::string entry = "Si Si Si 1 9 1.6 1.6 999 0 4.43 # a comment\n 0 5.5 2 1 2.6 0.5 -0.25";
  const VashishtaParameters p = read(entry);
  REQUIRE(p.elements == std::vector<std::int32_t>{14});
  CHECK(p.pairs.at(0).eta == 9);
  CHECK(p.pairs.at(0).cutoff == 5.5);
  CHECK(p.pairs.at(0).r0 == 2.6);
  CHECK(p.triplets.at(0).b == 2);
  CHECK(p.triplets.at(0).c == 0.5);
  CHECK(p.triplets.at(0).cosine == -0.25);
  const auto says = [&](const std::string& text, const std::string& what) {
    INFO(text);
    REQUIRE_THROWS_WITH(read(text), Catch::Contains(what));
    REQUIRE_THROWS_AS(read(text), DataError);
  };
  says("", ":1: there are no parameters");
  says("# only a comment\n", "there are no parameters");
  says(entry + "\nSi Si", ":3: `Si` begins an entry that is cut off");
  says("Xx" + entry.substr(2), ":1: `Xx` is no element");
  says("Si Si Si 1 9 1.6 1.6 999 zero 4.43 0 5.5 2 1 2.6 0.5 -0.25", "`zero` is no number");
  says("Si Si Si 1 9.5 1.6 1.6 999 0 4.43 0 5.5 2 1 2.6 0.5 -0.25", "whole eta");
  says("Si Si Si 1 9 1.6 1.6 999 0 4.43 0 -5.5 2 1 2.6 0.5 -0.25", "positive cutoff");
  says("Si O O 1 9 1.6 1.6 999 0 4.43 0 5.5 2 1 2.6 0.5 -0.25", "there is no entry O O O");
  REQUIRE_THROWS_AS(VashishtaParameters::read("/nowhere/x.vashishta"), IoError);
  REQUIRE_THROWS_AS(make_potential("vashista"), UsageError);
}

TEST_CASE("unknown elements are an error on every rank") {
  nn::Structure s = quartz();
  s.species[3] = 26;
  const Mesh mesh = Mesh::world({{"x", process().count}});
  REQUIRE_THROWS_WITH(evaluate(Vashishta(), s, mesh), Catch::Contains("atoms of Fe (26)"));
}
