// ranks: 1
// label: deep
#include <catch2/catch.hpp>
#include <cmath>

#include "parallel/window_simulation.hpp"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("random windows, many") {
  Random random("window plans");
  for (int draw = 0; draw < 60000; ++draw) {
    const WindowCase c = random_window_case(random, draw % 50 ? 30 : 300, 40000);
    const std::string wrong = check_exchange(c, c.plans());
    if (!wrong.empty()) FAIL(wrong << " in draw " << draw << ", layout " << c.layout);
  }
  SUCCEED();
}
