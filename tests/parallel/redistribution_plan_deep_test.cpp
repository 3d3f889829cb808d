// ranks: 1
// label: deep
#include <catch2/catch.hpp>
#include <cmath>

#include "parallel/redistribution_simulation.hpp"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("random redistributions, many") {
  Random random("redistribution plans");
  for (int draw = 0; draw < 100000; ++draw) {
    const RedistributionCase c = random_redistribution(random, draw % 50 ? 40 : 200);
    const std::string wrong = check_redistribution(c.from, c.to, c.seed);
    if (!wrong.empty()) {
      FAIL(wrong << ": " << c.from << " to " << c.to << " on (" << c.from.mesh().str() << "), draw "
                 << draw);
    }
  }
  SUCCEED();
}
