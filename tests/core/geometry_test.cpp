// ranks: 1
#include <catch2/catch.hpp>
#include <cstring>
#include <tessera/core/box.hpp>
#include <tessera/core/edge.hpp>
#include <tessera/core/shape.hpp>

#include "support/dense.hpp"

namespace tessera {
namespace {

TEST_CASE("short lists") {
  Dims d{3, 1, 4};
  d.insert(1, 9);
  CHECK(d == Dims{3, 9, 1, 4});
  d.erase(0);
  CHECK(d == Dims{9, 1, 4});
  CHECK(d.contains(4));
  CHECK_FALSE(d.contains(3));
  CHECK(d.product() == 36);
  CHECK(Dims{}.product() == 1);
  CHECK(d.str() == "[9, 1, 4]");
  Dims shrunk{1, 2, 3};
  shrunk.resize(2);
  CHECK(std::memcmp(&shrunk, &(const Dims&)Dims{1, 2}, sizeof shrunk) == 0);  // equal bytes
  d.resize(kMaxDims, 1);
  CHECK_THROWS_AS(d.push_back(1), ShapeError);
  CHECK(row_major({2, 3, 4}) == Strides{12, 4, 1});
  CHECK(row_major({}) == Strides{});
}

TEST_CASE("dimensions count from both ends") {
  CHECK(wrap_dim("op", -1, 3) == 2);
  CHECK(wrap_dim("op", 0, 3) == 0);
  CHECK_THROWS_WITH(wrap_dim("op", 3, 3), Catch::StartsWith("op: dimension 3"));
  CHECK_THROWS_AS(wrap_dim("op", -4, 3), ShapeError);
  CHECK_THROWS_AS(wrap_dim("op", 0, 0), ShapeError);
}

TEST_CASE("broadcasting aligns trailing dimensions") {
  CHECK(broadcast_shape("op", {2, 1, 4}, {3, 1}) == Shape{2, 3, 4});
  CHECK(broadcast_shape("op", {}, {5}) == Shape{5});
  CHECK(broadcast_shape("op", {0, 2}, {1, 2}) == Shape{0, 2});
  CHECK_THROWS_WITH(broadcast_shape("add", {2, 3}, {2}), Catch::Contains("add: shapes [2, 3]"));
  CHECK_THROWS_AS(broadcast_shape("op", {0}, {2}), ShapeError);
}

TEST_CASE("intervals") {
  CHECK(Interval{3, 1}.empty());
  CHECK(Interval{3, 1}.size() == 0);
  CHECK(Interval{2, 6}.contains({3, 6}));
  CHECK(Interval{2, 6}.contains({9, 9}));
  CHECK_FALSE(Interval{2, 6}.contains({1, 3}));
  CHECK(intersect(Interval{0, 5}, Interval{3, 9}) == Interval{3, 5});
  CHECK(intersect(Interval{0, 2}, Interval{3, 9}).empty());
}

Box random_box(test::Rng& rng, int dims) {
  Box box = Box::whole(Dims::filled(dims, 0));
  for (int d = 0; d < dims; ++d) {
    const std::int64_t lo = rng.integer(0, 6);
    box.set(d, {lo, lo + rng.integer(0, 5)});
  }
  return box;
}

bool holds(const Box& box, const Index& i) {
  for (int d = 0; d < box.dims(); ++d)
    if (i[d] < box.lo[d] || i[d] >= box.hi[d]) return false;
  return true;
}

TEST_CASE("the difference of boxes covers exactly what is left, once") {
  test::Rng rng(11);
  for (int draw = 0; draw < 300; ++draw) {
    const int dims = static_cast<int>(rng.integer(1, 3));
    const Box outer = random_box(rng, dims);
    const Box inner = random_box(rng, dims);
    const std::vector<Box> rest = difference(outer, inner);
    CHECK(rest.size() <= static_cast<std::size_t>(2 * dims));
    for (const Box& box : rest) {
      CHECK_FALSE(box.empty());
      CHECK(outer.contains(box));
    }
    test::for_each(Dims::filled(dims, 12), [&](const Index& i) {
      int count = 0;
      for (const Box& box : rest) count += holds(box, i);
      REQUIRE(count == (holds(outer, i) && !holds(inner, i) ? 1 : 0));
      REQUIRE(holds(intersect(outer, inner), i) == (holds(outer, i) && holds(inner, i)));
    });
  }
  CHECK(difference(Box({0}, {4}), Box({2}, {2})) == std::vector<Box>{Box({0}, {4})});
  CHECK(Box::whole({2, 3}).volume() == 6);
  CHECK(Box::whole({}).volume() == 1);
  CHECK_FALSE(Box::whole({}).empty());
  CHECK(Box({1, 2}, {3, 5}).str() == "[1, 3) x [2, 5)");
}

TEST_CASE("edge rules") {
  for (std::int64_t n = 1; n < 6; ++n) {
    for (std::int64_t i = 0; i < n; ++i) {
      for (const EdgeRule rule :
           {EdgeRule::kZero, EdgeRule::kCircular, EdgeRule::kReflect, EdgeRule::kReplicate}) {
        CHECK(map_edge(rule, i, n) == i);
      }
    }
    for (std::int64_t i = -12; i < 18; ++i) {
      CHECK(map_edge(EdgeRule::kCircular, i, n) == map_edge(EdgeRule::kCircular, i + n, n));
      CHECK(map_edge(EdgeRule::kReplicate, i, n) == std::min(std::max<std::int64_t>(i, 0), n - 1));
      CHECK(map_edge(EdgeRule::kReflect, -i, n) == map_edge(EdgeRule::kReflect, i, n));
      if (n > 1) {
        CHECK(map_edge(EdgeRule::kReflect, i, n) ==
              map_edge(EdgeRule::kReflect, i + 2 * (n - 1), n));
      }
      if (i < 0 || i >= n) CHECK(map_edge(EdgeRule::kZero, i, n) == -1);
    }
  }
  CHECK(map_edge(EdgeRule::kReflect, -1, 4) == 1);
  CHECK(map_edge(EdgeRule::kReflect, 4, 4) == 2);
  for (const EdgeRule rule : {EdgeRule::kCircular, EdgeRule::kReflect, EdgeRule::kReplicate}) {
    CHECK(map_edge(rule, -1, 0) == -1);  // an empty domain has no element to stand for
  }
}

}  // namespace
}  // namespace tessera
