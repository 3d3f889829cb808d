#include <algorithm>
#include <catch2/catch.hpp>
#include <tessera/core/error.hpp>
#include <tessera/nn/atoms/batches.hpp>

using namespace tessera;
using namespace tessera::nn;

TEST_CASE("shuffles depend on seed and epoch alone") {
  const auto order = shuffled(100, 3, 1);
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (std::int64_t i = 0; i < 100; ++i) REQUIRE(sorted[static_cast<std::size_t>(i)] == i);
  REQUIRE(order == shuffled(100, 3, 1));
  REQUIRE(order != shuffled(100, 3, 2));
  REQUIRE(order != shuffled(100, 4, 1));
  REQUIRE(shuffled(0, 1).empty());
  // Each number comes to each place about equally often.
  std::vector<int> first(5, 0);
  for (std::uint64_t e = 0; e < 2000; ++e) ++first[static_cast<std::size_t>(shuffled(5, 9, e)[0])];
  for (const int count : first) REQUIRE(count > 300);
}

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

TEST_CASE("structures in batches") {
  const std::vector<Structure> list(7);
  const std::vector<std::int64_t> some = {6, 0, 3, 1, 2};
  const auto batches = batches_of(list, some, 2);
  REQUIRE(batches.size() == 3);
  REQUIRE(batches[0][0] == &list[6]);
  REQUIRE(batches[2].size() == 1);
  REQUIRE(batches_of(list, some, 2, true).size() == 2);
  REQUIRE(batches_of(list, some, 9, true).size() == 1);
  REQUIRE(batches_of(list, {}, 2).empty());
  REQUIRE_THROWS_AS(batches_of(list, some, 0), UsageError);
  REQUIRE_THROWS_AS(batches_of(list, std::vector<std::int64_t>{7}, 1), UsageError);
}
