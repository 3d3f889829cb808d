// ranks: none
// label: deep
// A hundred kills of a training, thirty of them inside the write of a checkpoint: each resumes from
// a whole one, to the bits of an undisturbed run.
#include "faults.hpp"

namespace tessera::test {

TEST_CASE("kills inside the write of a checkpoint") {
  strike_in_writes(20, std::random_device{}());
  strike_in_writes(10, std::random_device{}(), 3);
}

TEST_CASE("kills at random moments") {
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed of the kills: %llu\n", static_cast<unsigned long long>(seed));
  FaultTest test(seed);
  int struck = 0;
  int tries = 0;
  for (; struck < 70 && tries < 200; ++tries) struck += test.strike(Fault::kKill) ? 1 : 0;
  std::printf("%d of %d kills came before the end of the training\n", struck, tries);
  CHECK(struck == 70);
}

}  // namespace tessera::test
