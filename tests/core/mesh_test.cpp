// ranks: 1 3
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <tessera/core/error.hpp>
#include <tessera/core/mesh.hpp>

namespace tessera {
namespace {

std::vector<int> processes(int count) {
  std::vector<int> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST_CASE("equal meshes are one object") {
  const Mesh a = Mesh::of(processes(6), {{"x", 2}, {"y", 3}});
  const Mesh b = Mesh::of(processes(6), {{"x", 2}, {"y", 3}});
  CHECK(a == b);
  CHECK(a.hash() == b.hash());
  const std::vector<Mesh> others = {
      Mesh::of(processes(6), {{"x", 3}, {"y", 2}}), Mesh::of(processes(6), {{"y", 2}, {"x", 3}}),
      Mesh::of(processes(6), {{"x", 6}}), Mesh::of({0, 1, 2, 3, 5, 4}, {{"x", 2}, {"y", 3}})};
  for (const Mesh& other : others) {
    CHECK_FALSE(a == other);
    CHECK(a.hash() != other.hash());
  }
  CHECK_FALSE(Mesh().defined());
}

TEST_CASE("ranks run row-major over the axes") {
  const Mesh mesh = Mesh::of(processes(24), {{"a", 2}, {"b", 3}, {"c", 4}});
  CHECK(mesh.size() == 24);
  CHECK(mesh.axis_count() == 3);
  CHECK(mesh.all_axes() == 7u);
  int rank = 0;
  for (int a = 0; a < 2; ++a) {
    for (int b = 0; b < 3; ++b) {
      for (int c = 0; c < 4; ++c, ++rank) {
        const int coordinates[] = {a, b, c};
        CHECK(mesh.rank_at(coordinates) == rank);
        CHECK(mesh.coordinate(rank, 0) == a);
        CHECK(mesh.coordinate(rank, 1) == b);
        CHECK(mesh.coordinate(rank, 2) == c);
        for (int to = 0; to < 3; ++to) {
          const int moved[] = {a, to, c};
          CHECK(mesh.with_coordinate(rank, 1, to) == mesh.rank_at(moved));
        }
      }
    }
  }
}

TEST_CASE("groups share all coordinates outside their axes") {
  const Mesh mesh = Mesh::of(processes(12), {{"a", 2}, {"b", 3}, {"c", 2}});
  for (AxisMask mask = 0; mask < 8; ++mask) {
    std::vector<int> seen;
    for (int rank = 0; rank < 12; ++rank) {
      const std::vector<int> group = mesh.group(rank, mask);
      CHECK(static_cast<int>(group.size()) == mesh.parts(mask));
      CHECK(std::is_sorted(group.begin(), group.end()));
      CHECK(std::count(group.begin(), group.end(), rank) == 1);
      for (const int other : group) {
        CHECK(mesh.group(other, mask) == group);
        for (int axis = 0; axis < 3; ++axis) {
          if (!(mask >> axis & 1u)) {
            CHECK(mesh.coordinate(other, axis) == mesh.coordinate(rank, axis));
          }
        }
      }
      if (group.front() == rank) seen.insert(seen.end(), group.begin(), group.end());
    }
    std::sort(seen.begin(), seen.end());
    CHECK(seen == processes(12));  // the groups partition the mesh
  }
}

TEST_CASE("a slice drops an axis") {
  const Mesh mesh = Mesh::of({10, 11, 12, 13, 14, 15}, {{"stage", 3}, {"h", 2}});
  const Mesh middle = mesh.slice("stage", 1);
  CHECK(middle == Mesh::of({12, 13}, {{"h", 2}}));
  CHECK(mesh.slice("h", 1) == Mesh::of({11, 13, 15}, {{"stage", 3}}));
  CHECK(mesh.process_of(5) == 15);
  CHECK_THROWS_AS(mesh.slice("h", 2), UsageError);
  CHECK_THROWS_AS(mesh.slice("h", -1), UsageError);
}

TEST_CASE("a process knows its place") {
  const int me = process().rank;
  const int count = process().count;
  CHECK(Mesh::self().size() == 1);
  CHECK(Mesh::self().rank() == 0);
  CHECK(Mesh::self().process_of(0) == me);
  CHECK(Mesh::world({{"x", count}}).rank() == me);
  CHECK(Mesh::single(0).rank() == (me == 0 ? 0 : -1));
  std::vector<int> reversed = processes(count);
  std::reverse(reversed.begin(), reversed.end());
  CHECK(Mesh::of(reversed, {{"x", count}}).rank() == count - 1 - me);
  CHECK(Mesh::of({count + 3}, {}).rank() == -1);
}

TEST_CASE("meshes that cannot be are refused with advice") {
  CHECK_THROWS_AS(Mesh::world({{"x", process().count + 1}}), UsageError);
  CHECK_THROWS_WITH(Mesh::of({0, 1, 2}, {{"x", 2}}), Catch::Contains("describe 2 ranks"));
  CHECK_THROWS_AS(Mesh::of({0, 0}, {{"x", 2}}), UsageError);
  CHECK_THROWS_AS(Mesh::of({0, 1}, {{"x", 2}, {"x", 1}}), UsageError);
  CHECK_THROWS_AS(Mesh::of({}, {{"x", 0}}), UsageError);
  const Mesh mesh = Mesh::of(processes(4), {{"data", 2}, {"h", 2}});
  CHECK_THROWS_WITH(mesh.axis("w"), Catch::Contains("data=2 h=2"));
  CHECK(mesh.axis("h") == 1);
  CHECK(mesh.has_axis("data"));
  CHECK_FALSE(mesh.has_axis("w"));
  CHECK(mesh.str() == "data=2 h=2");
}

}  // namespace
}  // namespace tessera
