// ranks: 1 2 3 4
// deep: 4

#include <chrono>
#include <set>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/ghost_rows.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/parallel/communicator.hpp>
#include <thread>

#include "support/op_test.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

/// What every rank of a mesh wants of the others, drawn alike everywhere.
struct Wishes {
  Layout owners;
  std::vector<std::vector<std::int64_t>> ghosts;  // by mesh rank
};

Wishes draw_wishes(const Mesh& mesh, Rng& rng) {
  Wishes w;
  const std::int64_t n = rng.integer(0, 14);
  std::vector<int> dims;
  for (int a = 0; a < mesh.axis_count(); ++a) dims.push_back(rng.coin(0.8) ? 0 : -1);
  w.owners = draw_layout(mesh, {n}, dims, static_cast<int>(rng.integer(0, 2)), rng);
  std::vector<std::vector<std::int64_t>> by_part(static_cast<std::size_t>(w.owners.parts(0)));
  for (auto& list : by_part)
    for (std::int64_t row = 0; row < n; ++row)
      if (rng.coin(0.4)) list.push_back(row);
  for (int r = 0; r < mesh.size(); ++r) {
    const Interval own = w.owners.owned(0, r);
    std::vector<std::int64_t> list = by_part[static_cast<std::size_t>(w.owners.part_of(0, r))];
    std::erase_if(list, [&](std::int64_t row) { return own.lo <= row && row < own.hi; });
    w.ghosts.push_back(list);
  }
  return w;
}

/// The global rows in order of the result: per part its own, then its ghosts.
std::vector<std::int64_t> all_rows(const Wishes& w) {
  std::vector<std::int64_t> rows;
  const Mesh& mesh = w.owners.mesh();
  for (int part = 0; part < w.owners.parts(0); ++part) {
    int rank = 0;
    while (w.owners.part_of(0, rank) != part) ++rank;
    REQUIRE(rank < mesh.size());
    const Interval own = w.owners.owned(0, rank);
    for (std::int64_t row = own.lo; row < own.hi; ++row) rows.push_back(row);
    const auto& ghosts = w.ghosts[static_cast<std::size_t>(rank)];
    rows.insert(rows.end(), ghosts.begin(), ghosts.end());
  }
  return rows;
}

std::string check(const Mesh& mesh, Rng& rng) {
  const Wishes w = draw_wishes(mesh, rng);
  const std::int64_t n = w.owners.shape()[0];
  const auto plan = GhostRows::make(w.owners, w.ghosts[static_cast<std::size_t>(mesh.rank())]);
  const std::vector<std::int64_t> rows = all_rows(w);
  const auto total = static_cast<std::int64_t>(rows.size());
  std::string failure;
  if (plan.total() != total - n) failure += str("total ", plan.total(), " of ", total - n, "\n");

  const std::int64_t width = rng.integer(1, 3);
  const DenseArray x = random_array({n, width}, rng.bits());
  const DenseArray g = random_array({total, width}, rng.bits());
  DenseArray y(Shape{total, width});
  DenseArray back(Shape{n, width});
  for (std::int64_t r = 0; r < total; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      y(r, c) = x(rows[static_cast<std::size_t>(r)], c);
      back(rows[static_cast<std::size_t>(r)], c) += g(r, c);
    }
  }
  // x may come in any layout.
  const Layout owned = w.owners.with_inserted_dim(1, width);
  const Layout layout = rng.coin() ? owned : Layout::replicated(mesh, {n, width});
  const Tensor leaf = require_grad(to_tensor(x, layout));
  const Tensor values = ghost_rows(leaf, plan);
  failure += compare("rows", values, y, 0.0);
  const GhostRowsInFlight started = start_ghost_rows(leaf, plan);
  const Tensor late = started.wait();
  failure += compare("rows that were started", late, y, 0.0);
  const Tensor cotangent = to_tensor(g, values.layout());
  const Tensor first = grad({values}, {leaf}, {.create_graph = true}, {require_grad(cotangent)})[0];
  failure += compare("gradient", first, back, 1e-14);
  failure += compare("ghost_sum", ghost_sum(cotangent, plan), back, 1e-14);
  // The gradient is linear in the cotangent, with the op itself as its transpose.
  const Tensor again = grad({first}, {cotangent}, {}, {to_tensor(x, first.layout())})[0];
  failure += compare("gradient of the gradient", again, y, 0.0);
  // And through a nonlinear function, twice.
  const auto cubes_of = [&](const Tensor& v) { return sum(v * square(v) * cotangent.detach()); };
  const Tensor cubes = cubes_of(values);
  const Tensor late_slope = grad({cubes_of(late)}, {leaf}, {.create_graph = true})[0];
  const Tensor late_curvature = grad({sum(late_slope)}, {leaf})[0];
  const Tensor slope = grad({cubes}, {leaf}, {.create_graph = true})[0];
  const Tensor curvature = grad({sum(slope)}, {leaf})[0];
  DenseArray expected(Shape{n, width});
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t c = 0; c < width; ++c) expected(i, c) = 6.0 * x(i, c) * back(i, c);
  failure += compare("second derivative", curvature, expected, 1e-13);
  failure += compare("slope behind a wait", late_slope, to_dense(slope), 0.0);
  failure += compare("second derivative behind a wait", late_curvature, to_dense(curvature), 0.0);
  return failure;
}

}  // namespace

TEST_CASE("ghost rows and their adjoint: values and derivatives of two orders on any cut") {
  for (const Mesh& mesh : test_meshes())
    random_cases(draw_count(10), [&](Rng& rng) { return check(mesh, rng); });
}

TEST_CASE("each ghost row is sent once, and its gradient once") {
  const int ranks = process().count;
  const Mesh mesh = Mesh::world({{"a", ranks}});
  const std::int64_t n = 4 * ranks;
  const Layout owners = Placement(mesh).shard(0, {"a"}).resolve({n});
  const std::int64_t next = owners.local_box().hi[0] % n;
  std::vector<std::int64_t> wanted;
  if (ranks > 1) wanted = {next, next + 1};
  const auto plan = GhostRows::make(owners, wanted);
  const Tensor x = require_grad(Tensor::full(owners.with_inserted_dim(1, 3), 1.0));
  Tensor y;
  const std::int64_t messages = ranks > 1 ? ranks : 0;
  const std::int64_t bytes = messages * 2 * 3 * 4;
  expect_traffic(bytes, messages, [&] { y = ghost_rows(x, plan); });
  const Tensor g = Tensor::full(y.layout(), 1.0);
  expect_traffic(bytes, messages, [&] { grad({y}, {x}, {}, {g}); });
  REQUIRE(plan.sent() == static_cast<std::int64_t>(wanted.size()));
  GhostRowsInFlight started;
  expect_traffic(bytes, messages, [&] {
    started = start_ghost_rows(x, plan);
    y = started.wait();
  });
  expect_traffic(bytes, messages, [&] { grad({y}, {x}, {}, {g}); });
}

TEST_CASE("what is not waited for is forgotten") {
  const int ranks = process().count;
  const Mesh mesh = Mesh::world({{"a", ranks}});
  const Layout owners = Placement(mesh).shard(0, {"a"}).resolve({2 * ranks});
  std::vector<std::int64_t> wanted;
  if (ranks > 1) wanted = {owners.local_box().hi[0] % (2 * ranks)};
  const auto plan = GhostRows::make(owners, wanted);
  const auto live_bytes = [] { return MemoryPool::of(Device{}).stats().live_bytes; };
  const std::int64_t before = live_bytes();
  for (int i = 0; i < 300; ++i) {
    const Tensor x = Tensor::full(owners, i);
    { (void)start_ghost_rows(x, plan); }
    const Tensor y = start_ghost_rows(x, plan).wait();
    REQUIRE(y.at({y.local_box().hi[0] - 1}) == i);
  }
  // Each that is kept has 64 bytes or more. Those on their way from a rank that is behind arrive
  // without a wait.
  const auto few = [&] { return live_bytes() < before + 100 * 64; };
  for (int i = 0; i < 3000 && !few(); ++i) {
    parallel::poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  REQUIRE(few());
}

TEST_CASE("a tape keeps the plan it needs") {
  const int ranks = process().count;
  const Mesh mesh = Mesh::world({{"a", ranks}});
  const Layout owners = Placement(mesh).shard(0, {"a"}).resolve({2 * ranks});
  const auto make = [&] {
    std::vector<std::int64_t> wanted;
    if (ranks > 1) wanted = {owners.local_box().hi[0] % (2 * ranks)};
    return GhostRows::make(owners, wanted);
  };
  const Tensor x = require_grad(Tensor::full(owners, 1.0));
  Tensor y = ghost_rows(x, make());
  for (int i = 0; i < 5; ++i) make();
  const Tensor g = grad({y}, {x}, {}, {Tensor::full(y.layout(), 1.0)})[0];
  REQUIRE(g.at({owners.local_box().lo[0]}) == (ranks > 1 ? 2.0 : 1.0));
}

TEST_CASE("ranks that know all wishes make the same plan without asking") {
  for (const Mesh& mesh : test_meshes()) {
    random_cases(draw_count(5), [&](Rng& rng) -> std::string {
      const Wishes w = draw_wishes(mesh, rng);
      const auto asked = GhostRows::make(w.owners, w.ghosts[static_cast<std::size_t>(mesh.rank())]);
      std::vector<std::vector<std::int64_t>> by_part(static_cast<std::size_t>(w.owners.parts(0)));
      for (int r = 0; r < mesh.size(); ++r)
        by_part[static_cast<std::size_t>(w.owners.part_of(0, r))] =
            w.ghosts[static_cast<std::size_t>(r)];
      GhostRows known;
      expect_traffic(0, 0, [&] { known = GhostRows::make_known(w.owners, by_part); });
      const DenseArray x = random_array({w.owners.shape()[0]}, rng.bits());
      const Tensor tx = to_tensor(x, w.owners);
      std::string failure = compare("rows", known.rows(), to_dense(asked.rows()), 0.0);
      const Tensor y = ghost_rows(tx, asked);
      failure += compare("values", ghost_rows(tx, known), to_dense(y), 0.0);
      failure += compare("sums", ghost_sum(y, known), to_dense(ghost_sum(y, asked)), 0.0);
      if (known.sent() != asked.sent()) failure += "other rows are sent\n";
      return failure;
    });
  }
}

TEST_CASE("a wrong wish of one rank throws on all") {
  const int ranks = process().count;
  const Mesh mesh = Mesh::world({{"a", ranks}});
  const Layout owners = Placement(mesh).shard(0, {"a"}).resolve({2 * ranks});
  const auto wish = [&](std::vector<std::int64_t> rows) {
    return mesh.rank() == ranks - 1 ? rows : std::vector<std::int64_t>{};
  };
  REQUIRE_THROWS_AS(GhostRows::make(owners, wish({2 * ranks})), ShapeError);
  REQUIRE_THROWS_AS(GhostRows::make(owners, wish({-1})), ShapeError);
  REQUIRE_THROWS_AS(GhostRows::make(owners, wish({2 * ranks - 1})), ShapeError);
  if (ranks > 2) REQUIRE_THROWS_AS(GhostRows::make(owners, wish({1, 0})), ShapeError);
}
