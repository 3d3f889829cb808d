// ranks: 1
#include <catch2/catch.hpp>
#include <numeric>
#include <set>
#include <tessera/core/error.hpp>
#include <tessera/core/layout.hpp>
#include <tessera/core/tensor.hpp>

#include "support/dense.hpp"

namespace tessera {
namespace {

Mesh grid(const std::vector<MeshAxis>& axes) {
  int count = 1;
  for (const MeshAxis& a : axes) count *= a.size;
  std::vector<int> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return Mesh::of(all, axes);
}

TEST_CASE("balanced boundaries cover the dimension in blocks") {
  for (std::int64_t n = 0; n < 30; ++n) {
    for (int parts = 1; parts < 8; ++parts) {
      for (const std::int64_t multiple : {1, 2, 3, 8}) {
        const Bounds b = balanced_bounds(n, parts, multiple);
        REQUIRE(static_cast<int>(b.size()) == parts + 1);
        CHECK(b.front() == 0);
        CHECK(b.back() == n);
        std::int64_t least = n;
        std::int64_t most = 0;
        for (int p = 0; p < parts; ++p) {
          const auto u = static_cast<std::size_t>(p);
          CHECK(b[u] <= b[u + 1]);
          CHECK((b[u] % multiple == 0 || b[u] == n));
          const std::int64_t blocks = (b[u + 1] - b[u] + multiple - 1) / multiple;
          least = std::min(least, blocks);
          most = std::max(most, blocks);
        }
        CHECK((most - least <= 1 || n == 0));
      }
    }
  }
}

TEST_CASE("equal layouts are one object, and only they") {
  const Mesh mesh = grid({{"h", 2}, {"w", 3}});
  const Layout a = Layout::make(mesh, {4, 9}, {{{0}, {0, 1, 4}}, {{1}, {0, 3, 3, 9}}});
  CHECK(a == Layout::make(mesh, {4, 9}, {{{0}, {0, 1, 4}}, {{1}, {0, 3, 3, 9}}}));
  const std::vector<Layout> others = {
      Layout::make(mesh, {4, 9}, {{{0}, {0, 2, 4}}, {{1}, {0, 3, 3, 9}}}),
      Layout::make(mesh, {4, 9}, {{{0}, {0, 1, 4}}}),
      Layout::make(mesh, {4, 9}, {{{0}, {0, 1, 4}}}, 2),
      Layout::make(mesh, {4, 9}, {{{0}, {0, 1, 4}}}, 2, ReduceOp::kMax),
      Layout::make(mesh, {4, 9}, {{{0, 1}, {}}}),
      Layout::make(mesh, {4, 9}, {{{1, 0}, {}}}),
      Layout::make(grid({{"w", 2}, {"h", 3}}), {4, 9}, {{{0}, {0, 1, 4}}, {{1}, {0, 3, 3, 9}}}),
      Layout::replicated(mesh, {4, 9}),
      Layout::replicated(mesh, {9, 4})};
  std::set<std::uint64_t> ids = {a.id()};
  std::set<std::uint64_t> hashes = {a.hash()};
  for (const Layout& other : others) {
    CHECK_FALSE(a == other);
    CHECK(ids.insert(other.id()).second);
    CHECK(hashes.insert(other.hash()).second);
  }
}

TEST_CASE("ids are not used again, hashes are") {
  const Mesh mesh = grid({{"h", 2}});
  const auto id_and_hash = [&] {
    const Layout l = Layout::make(mesh, {5, 7}, {{{0}, {0, 4, 5}}});
    return std::pair(l.id(), l.hash());
  };
  const auto first = id_and_hash();
  const auto second = id_and_hash();
  CHECK(first.first != second.first);
  CHECK(first.second == second.second);
  CHECK(Layout().id() == 0);
}

TEST_CASE("the parts of a layout tile the tensor") {
  test::Rng rng(7);
  const Mesh mesh = grid({{"a", 2}, {"b", 3}, {"c", 2}});
  for (int draw = 0; draw < 50; ++draw) {
    const Shape shape{rng.integer(0, 7), rng.integer(0, 5), rng.integer(1, 3)};
    std::vector<DimSplit> splits(3);
    AxisMask used = 0;
    for (int axis = 0; axis < 3; ++axis) {
      const std::int64_t d = rng.integer(-1, 2);
      if (d < 0) continue;
      splits[static_cast<std::size_t>(d)].axes.push_back(axis);
      used |= AxisMask{1} << axis;
    }
    for (int d = 0; d < 3; ++d) {
      DimSplit& s = splits[static_cast<std::size_t>(d)];
      if (s.axes.empty() || rng.coin()) continue;
      AxisMask mask = 0;
      for (const int axis : s.axes) mask |= AxisMask{1} << axis;
      s.bounds = {0, shape[d]};
      for (int p = 1; p < mesh.parts(mask); ++p) s.bounds.push_back(rng.integer(0, shape[d]));
      std::sort(s.bounds.begin(), s.bounds.end());
    }
    const Layout layout = Layout::make(mesh, shape, splits);
    CHECK(layout.split_axes() == used);
    const int replicas = mesh.size() / mesh.parts(used);
    test::DenseArray owners(shape);
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const Box box = layout.owned(rank);
      for_each_index(box, [&](const Index& i) { owners[i] += 1.0; });
      for (int d = 0; d < 3; ++d) CHECK(box[d] == layout.owned(d, rank));
    }
    for (const double count : owners.values) CHECK(count == replicas);
  }
}

TEST_CASE("several axes on one dimension: the first named is outermost") {
  const Mesh mesh = grid({{"a", 2}, {"b", 3}});
  const Layout ab = Layout::make(mesh, {6}, {{{0, 1}, {}}});
  const Layout ba = Layout::make(mesh, {6}, {{{1, 0}, {}}});
  for (int rank = 0; rank < 6; ++rank) {
    const int a = mesh.coordinate(rank, 0);
    const int b = mesh.coordinate(rank, 1);
    CHECK(ab.owned(0, rank).lo == a * 3 + b);
    CHECK(ba.owned(0, rank).lo == b * 2 + a);
  }
  CHECK(ab.parts(0) == 6);
  CHECK(ab.axes_of(0) == 3u);
}

TEST_CASE("axes of one rank neither split nor sum") {
  const Mesh mesh = grid({{"one", 1}, {"h", 2}});
  const Layout plain = Layout::replicated(mesh, {4});
  CHECK(Layout::make(mesh, {4}, {{{0}, {}}}) == plain);
  CHECK(plain.with_partial(1) == plain);
  CHECK(Layout::make(mesh, {4}, {{{0, 1}, {}}}) == Layout::make(mesh, {4}, {{{1}, {}}}));
  CHECK(plain.is_replicated());
  // Where nothing is pending, how it would combine makes no difference.
  const Mesh two = grid({{"a", 2}});
  CHECK(Layout::make(two, {4}, {}, 0, ReduceOp::kMax) == Layout::replicated(two, {4}));
}

TEST_CASE("derived layouts") {
  const Mesh mesh = grid({{"h", 2}, {"w", 2}});
  const Layout x = Layout::make(mesh, {4, 6, 3}, {{}, {{0}, {0, 5, 6}}}, 2);
  CHECK(x.partial_axes() == 2u);
  CHECK(x.dual() == Layout::make(mesh, {4, 6, 3}, {{}, {{0}, {0, 5, 6}}}));
  CHECK(x.dual().dual() == x.dual());
  CHECK(x.dual().with_partial(2) == x);
  CHECK(x.without_dim(0) == Layout::make(mesh, {6, 3}, {{{0}, {0, 5, 6}}}, 2));
  CHECK(x.without_dim(0).with_inserted_dim(0, 4) == x);
  for (int d = 0; d <= x.dims(); ++d) {
    const Layout wider = x.with_inserted_dim(d, 5);
    CHECK(wider.shape()[d] == 5);
    for (int e = 0; e < wider.dims(); ++e)
      CHECK(wider.axes_of(e) == (e == d ? 0u : x.axes_of(e < d ? e : e - 1)));
  }
  CHECK(x.with_dim(1, 8, {{0}, {0, 1, 8}}) ==
        Layout::make(mesh, {4, 8, 3}, {{}, {{0}, {0, 1, 8}}}, 2));
  CHECK(x.with_dim(1, 6, {}) == Layout::make(mesh, {4, 6, 3}, {}, 2));
  CHECK_THROWS_AS(x.without_dim(1), LayoutError);
  CHECK(x.str() == "[4, 6/h(0 5 6), 3] partial(w)");
  CHECK(Layout::make(mesh, {4}, {{{0, 1}, {}}}).str() == "[4/h*w]");
}

TEST_CASE("layouts that do not describe a tensor are refused") {
  const Mesh mesh = grid({{"h", 2}, {"w", 2}});
  CHECK_THROWS_AS(Layout::make(Mesh(), {4}, {}), LayoutError);
  CHECK_THROWS_AS(Layout::make(mesh, {4, 4}, {{{0}, {}}, {{0}, {}}}), LayoutError);
  CHECK_THROWS_AS(Layout::make(mesh, {4}, {{{0, 0}, {}}}), LayoutError);
  CHECK_THROWS_AS(Layout::make(mesh, {4}, {{{2}, {}}}), LayoutError);
  CHECK_THROWS_AS(Layout::make(mesh, {4}, {{{0}, {0, 5}}}), LayoutError);
  CHECK_THROWS_AS(Layout::make(mesh, {4}, {{{0}, {0, 2, 5}}}), LayoutError);
  CHECK_THROWS_AS(Layout::make(mesh, {4}, {{{0}, {1, 2, 4}}}), LayoutError);
  CHECK_THROWS_AS(Layout::make(mesh, {4}, {{{0, 1}, {0, 3, 2, 4, 4}}}), LayoutError);
  CHECK_THROWS_AS(Layout::make(mesh, {4}, {{{0}, {}}}, 1), LayoutError);
  CHECK_THROWS_AS(Layout::make(mesh, {-1}, {}), ShapeError);
}

TEST_CASE("a placement resolves for any shape that has its dimensions") {
  const Mesh mesh = grid({{"data", 2}, {"h", 2}, {"w", 3}});
  const Placement fields = Placement(mesh).batch("data").domain(0, "h").domain(1, "w");
  const Layout x = fields.resolve({3, 20, 50, 7}, {.multiple = 8});
  CHECK(x.split(0).bounds == Bounds{0, 1, 3});
  CHECK(x.split(1).bounds == Bounds{0, 8, 20});
  CHECK(x.split(2).bounds == Bounds{0, 16, 32, 50});
  CHECK_FALSE(x.is_split(3));
  CHECK(fields.batch_only().resolve({3}) == Layout::make(mesh, {3}, {{{0}, {}}}));
  CHECK_THROWS_WITH(fields.resolve({3}), Catch::Contains("batch_only"));
  CHECK_THROWS_AS(Placement(mesh).batch("depth"), UsageError);
  CHECK_THROWS_AS(Placement(mesh).batch("h").shard(0, {"w"}), LayoutError);
  CHECK_THROWS_AS(Placement(mesh).batch("h").domain(0, "h").resolve({4, 4}), LayoutError);
  CHECK_THROWS_AS(Placement().batch("h"), LayoutError);
  CHECK_THROWS_AS(fields.resolve({3, 20, 50}, {.multiple = 0}), LayoutError);
  CHECK(Placement(mesh).shard(1, {"w", "h"}).resolve({2, 12}).split(1).axes ==
        std::vector<int>{2, 1});
}

}  // namespace
}  // namespace tessera
