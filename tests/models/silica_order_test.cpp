// How atoms of silica lie to each other: against plain loops, in quartz and in a quick glass.
#include <cmath>
#include <numbers>
#include <tessera/models/atomistic/silica_order.hpp>

#include "atomistic_support.hpp"

using namespace tessera;
using namespace tessera::atomistic;
using namespace tessera::test;

namespace {

/// Over all images within three cells.
std::vector<double> plain_distribution(
    const nn::Structure& s, std::int32_t a, std::int32_t b, std::size_t shells, double width) {
  std::vector<double> g(shells, 0.0);
  double of_a = 0.0, of_b = 0.0;
  for (const std::int32_t z : s.species) {
    of_a += z == a ? 1.0 : 0.0;
    of_b += z == b ? 1.0 : 0.0;
  }
  for (std::size_t i = 0; i < s.species.size(); ++i) {
    for (std::size_t j = 0; j < s.species.size(); ++j) {
      if (s.species[i] != b || s.species[j] != a) continue;
      for (std::int32_t n = 0; n < 343; ++n) {
        const nn::Vec3 shift = s.cell.shift({n % 7 - 3, n / 7 % 7 - 3, n / 49 - 3});
        double square = 0.0;
        for (std::size_t c = 0; c < 3; ++c) {
          const double d = s.positions[3 * j + c] + shift[c] - s.positions[3 * i + c];
          square += d * d;
        }
        const auto k = static_cast<std::size_t>(std::sqrt(square) / width);
        if (square > 0.0 && k < shells) g[k] += 1.0;
      }
    }
  }
  for (std::size_t k = 0; k < shells; ++k) {
    const double r = static_cast<double>(k) * width;
    const double shell = 4.0 / 3.0 * std::numbers::pi * (std::pow(r + width, 3) - std::pow(r, 3));
    g[k] *= s.cell.volume() / (of_a * of_b * shell);
  }
  return g;
}

}  // namespace

TEST_CASE("radial distributions count pairs over even density") {
  const nn::Structure moved = rattled(quartz(), 0.1, 0.02, 3);
  for (const auto& [a, b] : {std::pair(8, 14), std::pair(14, 8), std::pair(8, 8)}) {
    const RadialDistribution d = radial_distribution({moved, moved}, a, b, 6.0, 0.25);
    const std::vector<double> expected = plain_distribution(moved, a, b, 24, 0.25);
    REQUIRE(d.g.size() == 24);
    for (std::size_t k = 0; k < 24; ++k) {
      CHECK(d.r[k] == Approx(0.25 * static_cast<double>(k) + 0.125));
      CHECK(d.g[k] == Approx(expected[k]).margin(1e-12));
    }
  }
  CHECK(radial_distribution({moved}, 8, 1).peak() == 0.0);  // no hydrogen
  CHECK_THROWS_AS(radial_distribution({moved}, 8, 8, 1.0, 0.0), UsageError);
  nn::Structure open = moved;
  open.cell = {};
  CHECK_THROWS_AS(radial_distribution({open}, 8, 8), ShapeError);
}

TEST_CASE("the peak of a distribution is that of a parabola") {
  RadialDistribution d;
  for (int k = 0; k < 10; ++k) {
    d.r.push_back(0.1 * k);
    d.g.push_back(5.0 - 20.0 * (d.r.back() - 0.43) * (d.r.back() - 0.43));
  }
  CHECK(d.peak() == Approx(0.43));
  CHECK(RadialDistribution{}.peak() == 0.0);
}

TEST_CASE("quartz has the order of quartz") {
  const SilicaOrder order = silica_order({quartz({2, 2, 2})});
  CHECK(order.density == Approx(2.6645).epsilon(1e-3));
  CHECK(order.si_with_four == 1.0);
  CHECK(order.oxygen_with_two == 1.0);
  CHECK(order.si_o.peak() == Approx(1.61).margin(0.03));
  CHECK(order.o_o.peak() == Approx(2.63).margin(0.06));
  CHECK(order.si_si.peak() == Approx(3.06).margin(0.06));
  CHECK(order.o_si_o.mean == Approx(109.47).margin(0.1));
  CHECK(order.si_o_si.mean == Approx(143.7).margin(1.5));
  CHECK(order.si_o_si.deviation < 0.01);  // one kind of oxygen
  CHECK(order.summary().find("100.0 % of Si have four O") != std::string::npos);
  CHECK_THROWS_AS(silica_order({}), UsageError);
  CHECK_THROWS_AS(silica_order({diamond_silicon()}), UsageError);
}

TEST_CASE("a quick glass is one of corner-sharing tetrahedra") {
  const auto potential = std::make_shared<Vashishta>();
  const nn::Structure glass = quenched(
      quartz({2, 2, 2}), potential, Mesh::self(),
      {.melt = 8000.0, .melt_time = 300.0, .quench_time = 900.0, .friction = 0.05, .seed = 2});
  const SilicaOrder order = silica_order({glass});
  INFO(order.summary());
  CHECK(order.density == Approx(2.2).epsilon(1e-6));
  CHECK(order.si_with_four > 0.6);
  CHECK(order.oxygen_with_two > 0.6);
  CHECK(order.si_o.peak() == Approx(1.62).margin(0.05));
  CHECK(order.o_o.peak() == Approx(2.64).margin(0.15));
  CHECK(order.si_si.peak() == Approx(3.1).margin(0.25));
  CHECK(order.o_si_o.mean == Approx(109.3).margin(3.0));
  CHECK(order.si_o_si.mean == Approx(145.0).margin(12.0));
  // It is no crystal: angles are spread.
  CHECK(order.si_o_si.deviation > 4.0);
}
