// ranks: 1
#include <catch2/catch.hpp>
#include <tessera/parallel/plan_cache.hpp>

using namespace tessera;
using namespace tessera::parallel;

TEST_CASE("plans are made once, and the least recently used go first") {
  PlanCache<int> cache(3);
  int made = 0;
  const Layout layout = Layout::replicated(Mesh::self(), {4});
  const auto get = [&](std::uint64_t key) {
    return *cache.get(layout, layout, key, [&] { return ++made; });
  };
  CHECK(get(1) == 1);
  CHECK(get(2) == 2);
  CHECK(get(3) == 3);
  CHECK(get(1) == 1);  // now 2 is the oldest
  CHECK(get(4) == 4);
  CHECK(cache.size() == 3);
  CHECK(get(1) == 1);
  CHECK(get(3) == 3);
  CHECK(get(2) == 5);
  CHECK(cache.hits() == 3);
  CHECK(cache.misses() == 5);
  cache.clear();
  CHECK(cache.size() == 0);
  CHECK(get(2) == 6);
}

TEST_CASE("a cache owns its layouts and does not grow with sizes that change") {
  PlanCache<int> cache(5);
  std::uint64_t id = 0;
  for (int n = 1; n <= 100; ++n) {
    const Layout layout = Layout::replicated(Mesh::self(), {n});
    cache.get(layout, layout, 0, [&] { return n; });
    id = layout.id();
  }
  CHECK(cache.size() == 5);
  // Nobody but the cache holds the last layout: it keeps its id, so its plan is found again.
  const Layout again = Layout::replicated(Mesh::self(), {100});
  CHECK(again.id() == id);
  CHECK(*cache.get(again, again, 0, [] { return -1; }) == 100);
}

TEST_CASE("the plans of this process are remembered") {
  const Layout a = Layout::replicated(Mesh::self(), {6});
  CHECK(cached_redistribution_plan(a, a) == cached_redistribution_plan(a, a));
  const Layout other = Layout::replicated(Mesh::single(5), {6});
  CHECK_THROWS_AS(cached_redistribution_plan(other, other), LayoutError);
}
