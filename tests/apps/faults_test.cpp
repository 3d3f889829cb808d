// ranks: none
#include "faults.hpp"

namespace tessera::test {

TEST_CASE("processes that are killed, stopped or throw at random moments") {
  strike_at_random({{Fault::kKill, 3}, {Fault::kThrow, 3}, {Fault::kStop, 3}});
}

TEST_CASE("a process that is killed while a checkpoint is written") { strike_in_writes(2); }

TEST_CASE("a signal to any one process stops all after the same step") {
  FaultTest test(1);
  test.ask_to_stop(SIGINT, 1);
  test.ask_to_stop(SIGTERM, 0);
  test.ask_to_stop(SIGUSR1, -1);
}

TEST_CASE("files that fail on one process end the job with 74") {
  FaultTest test(3);
  test.take(0, RLIMIT_FSIZE, 500, "File too large");      // its metrics
  test.take(0, RLIMIT_FSIZE, 20'000, "File too large");   // its part of the checkpoint
  test.take(1, RLIMIT_NOFILE, 3, "Too many open files");  // opening the checkpoint
}

}  // namespace tessera::test
