// ranks: 1
#include <catch2/catch.hpp>
#include <cmath>
#include <tessera/core/error.hpp>
#include <tessera/nn/io/collective.hpp>
#include <tessera/nn/io/data_error.hpp>

#include "io_support.hpp"

using namespace tessera;
using io::Collective;

TEST_CASE("sums of real numbers are added in rank order, the same on every rank") {
  // 1 + 1e16 - 1e16 depends on the order.
  const std::vector<std::vector<double>> parts = {{1.0, 0.1}, {1e16, 0.2}, {-1e16, 0.3}};
  const auto errors = test::run_as_ranks(3, [&](const Collective& ranks) {
    const std::vector<double> sums = ranks.total(parts[static_cast<std::size_t>(ranks.rank)]);
    if (sums != std::vector<double>{(1.0 + 1e16) - 1e16, (0.1 + 0.2) + 0.3})
      throw Error("another sum");
    if (!ranks.total(std::vector<double>()).empty()) throw Error("not empty");
  });
  for (const std::string& e : errors) CHECK(e == "");
  CHECK(Collective().total(std::vector<double>{2.5}) == std::vector<double>{2.5});
}

TEST_CASE("sums, values of rank 0, and values of which each rank has some") {
  for (const int size : {1, 2, 5}) {
    const auto errors = test::run_as_ranks(size, [&](const Collective& ranks) {
      const auto require = [](bool ok) {
        if (!ok) throw Error("wrong");
      };
      require(ranks.total(ranks.rank + 1) == size * (size + 1) / 2);
      require(ranks.broadcast(100 + ranks.rank) == 100);
      std::vector<double> values(7, 0.0);
      for (std::size_t i = static_cast<std::size_t>(ranks.rank); i < values.size();
           i += static_cast<std::size_t>(size))
        values[i] = i == 3 ? NAN : i == 4 ? -0.0 : 0.1 * static_cast<double>(i);
      ranks.combine(values);
      for (std::size_t i = 0; i < values.size(); ++i)
        require(i == 3 ? std::isnan(values[i])
                       : values[i] == (i == 4 ? 0.0 : 0.1 * static_cast<double>(i)));
      require(std::signbit(values[4]));
      ranks.barrier();
    });
    CHECK(errors == std::vector<std::string>(static_cast<std::size_t>(size)));
  }
}

TEST_CASE("an error of one rank is one of the same kind on all") {
  const auto kinds = [](const std::function<void(int)>& f) {
    std::vector<std::string> seen(3);
    const auto errors = test::run_as_ranks(3, [&](const Collective& ranks) {
      std::string& kind = seen[static_cast<std::size_t>(ranks.rank)];
      try {
        ranks.together([&] { f(ranks.rank); });
        kind = "none";
      } catch (const DataError& e) {
        kind = str("data ", e.what());
      } catch (const IoError& e) {
        kind = str("io ", e.what());
      } catch (const ShapeError& e) {
        kind = str("shape ", e.what());
      } catch (const Error& e) {
        kind = str("other ", e.what());
      }
      ranks.barrier();  // all are in step after the failure
    });
    CHECK(errors == std::vector<std::string>(3));
    CHECK(seen[1] == seen[0]);
    CHECK(seen[2] == seen[0]);
    return seen[0];
  };
  CHECK(kinds([](int) {}) == "none");
  CHECK(kinds([](int r) {
          if (r == 2) throw IoError("a");
        }) == "io a (rank 2)");
  CHECK(kinds([](int r) {
          if (r == 0) throw DataError("b");
        }) == "data b (rank 0)");
  CHECK(kinds([](int r) {
          if (r > 0) throw ShapeError(str("c", r));
        }) == "shape c1 (rank 1)");
  CHECK(kinds([](int) { throw UsageError("d"); }) == "other d");
  CHECK(kinds([](int r) {
          if (r == 1) throw std::runtime_error("e");
        }) == "other e (rank 1)");
  const std::string long_text(5000, 'x');
  CHECK(kinds([&](int r) {
          if (r == 1) throw IoError(long_text);
        }).size() < 1100);
  // One process alone throws its own error.
  CHECK_THROWS_WITH(Collective().together([] { throw IoError("f"); }), "f");
}
