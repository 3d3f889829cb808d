#include <algorithm>
#include <catch2/catch.hpp>
#include <tessera/core/error.hpp>
#include <tessera/nn/atoms/batches.hpp>

using namespace tessera;
using namespace tessera::nn;

TEST_CASE("a part is held out for validation") {
  const DataSplit split = split_data(25, 0.1, 7);
  REQUIRE(split.valid.size() == 3);
  std::vector<std::int64_t> all = split.train;
  all.insert(all.end(), split.valid.begin(), split.valid.end());
  std::sort(all.begin(), all.end());
  for (std::int64_t i = 0; i < 25; ++i) REQUIRE(all[static_cast<std::size_t>(i)] == i);
  REQUIRE(split.valid != split_data(25, 0.1, 8).valid);
  REQUIRE(split_data(25, 0.0, 7).valid.empty());
  REQUIRE(split_data(1, 0.5, 7).valid.empty());
  REQUIRE(split_data(0, 0.5, 7).train.empty());
  REQUIRE_THROWS_AS(split_data(25, 1.0, 7), UsageError);
  REQUIRE_THROWS_AS(split_data(25, -0.1, 7), UsageError);
}

TEST_CASE("structures by their numbers") {
  const std::vector<Structure> list(7);
  const auto some = structures_of(list, std::vector<std::int64_t>{6, 0, 3});
  REQUIRE(some == std::vector<const Structure*>{&list[6], &list[0], &list[3]});
  REQUIRE(structures_of(list, {}).empty());
  REQUIRE_THROWS_AS(structures_of(list, std::vector<std::int64_t>{7}), UsageError);
}
