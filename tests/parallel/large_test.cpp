// ranks: 2
// label: deep
#include <catch2/catch.hpp>
#include <tessera/parallel/communicator.hpp>

using namespace tessera;
using namespace tessera::parallel;

namespace {

constexpr std::int64_t kBytes = (std::int64_t{2} << 30) + (std::int64_t{100} << 20) + 7;

std::uint8_t pattern(std::int64_t i, int process) {
  return static_cast<std::uint8_t>((i >> 20) + i * 3 + process * 5);
}

std::vector<std::uint8_t> mine() {
  std::vector<std::uint8_t> x(static_cast<std::size_t>(kBytes));
  for (std::int64_t i = 0; i < kBytes; ++i) {
    x[static_cast<std::size_t>(i)] = pattern(i, process().rank);
  }
  return x;
}

template <class F>
std::int64_t wrong(const std::uint8_t* x, F&& expected) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < kBytes; ++i) count += x[i] != expected(i);
  return count;
}

}  // namespace

TEST_CASE("one message of more than 2 GiB") {
  std::vector<std::uint8_t> x = mine();
  if (process().rank == 0) {
    isend(x.data(), kBytes, 1, 0).wait();
  } else {
    irecv(x.data(), kBytes, 0, 0).wait();
    REQUIRE(wrong(x.data(), [](std::int64_t i) { return pattern(i, 0); }) == 0);
  }
}

TEST_CASE("collectives of more than 2 GiB") {
  std::vector<std::uint8_t> x = mine();
  all_reduce(Group::world(), x.data(), kBytes, DType::kUInt8).wait();
  REQUIRE(wrong(x.data(), [](std::int64_t i) {
            return static_cast<std::uint8_t>(pattern(i, 0) + pattern(i, 1));
          }) == 0);
  x = mine();
  std::vector<std::uint8_t> all(static_cast<std::size_t>(2 * kBytes));
  all_gather(Group::world(), x.data(), all.data(), kBytes).wait();
  REQUIRE(wrong(all.data(), [](std::int64_t i) { return pattern(i, 0); }) == 0);
  REQUIRE(wrong(all.data() + kBytes, [](std::int64_t i) { return pattern(i, 1); }) == 0);
}
