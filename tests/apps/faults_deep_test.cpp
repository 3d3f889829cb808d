// ranks: none
// label: deep
#include "faults.hpp"

namespace tessera::test {

// A stopped process is found out by the watchdog alone, after its four seconds.
TEST_CASE("faults of each kind at random moments") {
  strike_at_random({{Fault::kKill, 50}, {Fault::kThrow, 50}, {Fault::kStop, 25}});
}

TEST_CASE("faults among four processes") {
  strike_at_random({{Fault::kKill, 5}, {Fault::kThrow, 5}, {Fault::kStop, 5}}, 4);
}

TEST_CASE("every signal to every process") {
  FaultTest test(2);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    for (const int rank : {-1, 0, 1}) test.ask_to_stop(signal, rank);
  }
}

}  // namespace tessera::test
