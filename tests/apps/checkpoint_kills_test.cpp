// ranks: none
// label: deep
// A hundred kills of a training, thirty of them inside the write of a checkpoint: each resumes from
// a whole one, to the bits of an undisturbed run.
#include "faults.hpp"

namespace tessera::test {

TEST_CASE("kills inside the write of a checkpoint") {
  strike_in_writes(20);
  strike_in_writes(10, 3);
}

TEST_CASE("kills at random moments") { kill_at_random(70); }

}  // namespace tessera::test
