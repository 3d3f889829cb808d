// ranks: none
// label: deep
#include "faults.hpp"

namespace tessera::test {

TEST_CASE("fifty faults of each kind at random moments") { strike_at_random(50); }

TEST_CASE("faults among four processes") { strike_at_random(5, 4); }

TEST_CASE("every signal to every process") {
  FaultTest test(2);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    for (const int rank : {-1, 0, 1}) test.ask_to_stop(signal, rank);
  }
}

}  // namespace tessera::test
