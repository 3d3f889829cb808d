// ranks: 1 2 3 4 8
#include <catch2/catch.hpp>
#include <cmath>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/parallel/plan_cache.hpp>
#include <tessera/parallel/redistribute.hpp>
#include <tessera/parallel/stats.hpp>

#include "parallel/job.hpp"
#include "parallel/redistribution_simulation.hpp"

using namespace tessera;
using namespace tessera::parallel;
using namespace tessera::test;

namespace {

RedistributionCase case_on_world(Random& random) {
  const Mesh mesh = random_world(random);
  Shape shape;
  const int dims = random.number(0, 3);
  for (int d = 0; d < dims; ++d) shape.push_back(random.integer(random.chance(0.05) ? 0 : 1, 9));
  return {random_layout(random, mesh, shape, true), random_layout(random, mesh, shape, true),
          static_cast<std::uint64_t>(random.integer(0, 1 << 30))};
}

/// Small whole numbers: exact in every type, also their sums over 8 ranks.
double piece(const Layout& layout, std::uint64_t seed, const Index& i) {
  return std::round(piece_value(layout, seed, layout.mesh().rank(), i) / 100.0);
}

double whole(const Layout& layout, std::uint64_t seed, const Index& i) {
  double value = neutral(layout.partial_op());
  for (const int r : layout.mesh().group(0, layout.partial_axes()))
    value = reduce(layout.partial_op(), value, std::round(piece_value(layout, seed, r, i) / 100.0));
  return value;
}

Tensor make(const Layout& layout, std::uint64_t seed, DType dtype, bool reordered) {
  const Tensor x = Tensor::from_function(
      layout, [&](const Index& i) { return piece(layout, seed, i); }, dtype);
  if (!reordered || x.dims() < 2) return x;
  // The same values, first dimension innermost in memory.
  Shape turned = x.local_shape();
  turned.insert(x.dims() == kMaxDims ? 0 : turned.size(), 1);
  Dims order;
  for (int d = 1; d < x.dims(); ++d) order.push_back(d);
  order.push_back(0);
  const View wanted = kernels::permute(x.local(), order);
  const Tensor memory =
      Tensor::empty(Layout::replicated(Mesh::self(), wanted.shape), dtype, Device{});
  kernels::copy(wanted, memory.local());
  Dims back{x.dims() - 1};
  for (int d = 0; d + 1 < x.dims(); ++d) back.push_back(d);
  return Tensor::alias(memory, layout, kernels::permute(memory.local(), back));
}

constexpr DType kTypes[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kInt32,
                            DType::kInt64};

void check_global(const Tensor& global, const RedistributionCase& c, int draw) {
  int wrong = 0;
  for_each_index(Box::whole(c.from.shape()),
                 [&](const Index& i) { wrong += global.at(i) != whole(c.from, c.seed, i); });
  INFO("draw " << draw << ": " << c.from << " to " << c.to << " on (" << c.from.mesh().str() << ") "
               << name(global.dtype()));
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("random redistributions keep the global value and send the predicted bytes") {
  Random random = agreed_random("redistribute");
  for (int draw = 0; draw < 150; ++draw) {
    const RedistributionCase c = case_on_world(random);
    const DType dtype = kTypes[random.number(0, 4)];
    const Tensor x = make(c.from, c.seed, dtype, random.chance(0.3));
    reset_comm_stats();
    const Tensor y = redistribute(x, c.to);
    CHECK(y.layout() == c.to);
    std::int64_t elements = 0;
    Layout current = c.from;
    for (const RedistributionStep& step : redistribution_steps(c.from, c.to)) {
      if (step.axes == 0)
        elements += plan_redistribution(current, step.to, c.from.mesh().rank()).send_elements();
      current = step.to;
    }
    CHECK(comm_stats().point_to_point().bytes ==
          elements * static_cast<std::int64_t>(size_of(dtype)));
    check_global(replicate_values(y), c, draw);
  }
}

TEST_CASE("redistributions overlap, and finish in the order of the calls to wait") {
  Random random = agreed_random("overlapping redistributions");
  for (int draw = 0; draw < 20; ++draw) {
    std::vector<RedistributionCase> cases;
    std::vector<Redistribution> flights;
    for (int i = 0; i < 4; ++i) {
      cases.push_back(case_on_world(random));
      flights.push_back(start_redistribute(
          make(cases.back().from, cases.back().seed, DType::kFloat32, random.chance(0.5)),
          cases.back().to));
    }
    flights[1].poll();
    const RedistributionCase dropped = case_on_world(random);
    start_redistribute(make(dropped.from, dropped.seed, DType::kFloat32, false), dropped.to);
    for (const int i : {2, 0, 3, 1}) {
      const auto k = static_cast<std::size_t>(i);
      check_global(replicate_values(flights[k].wait()), cases[k], draw);
      CHECK_THROWS_AS(flights[k].wait(), UsageError);
    }
  }
}

TEST_CASE("what is already here does not move") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  const Shape shape{2 * process().count, 3};
  const Layout everywhere = Layout::replicated(mesh, shape);
  const Layout rows = Layout::make(mesh, shape, {{{0}, {}}, {}});
  const Tensor x =
      Tensor::from_function(everywhere, [](const Index& i) { return double(10 * i[0] + i[1]); });
  reset_comm_stats();
  CHECK(redistribute(x, everywhere).id() == x.id());
  const Tensor part = redistribute(x, rows);
  CHECK(part.buffer().get() == x.buffer().get());  // a view
  CHECK(part.at({2 * mesh.rank(), 1}) == 20 * mesh.rank() + 1);
  const Tensor sum = redistribute(x, everywhere.with_partial(1));
  CHECK(sum.at({0, 2}) == (mesh.rank() == 0 ? 2 : 0));
  CHECK(comm_stats().total().messages == 0);
  CHECK(comm_stats().total().bytes == 0);
}

TEST_CASE("Partial sums are taken in rank order, those of bf16 in fp32") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  const int ranks = process().count;
  const Shape shape{ranks, 5};
  const Layout sum = Layout::replicated(mesh, shape).with_partial(1);
  const Layout rows = Layout::make(mesh, shape, {{{0}, {}}, {}});
  const auto value = [](int r, const Index& i) {
    return static_cast<float>(noise(4, {r, i[0] * 5 + i[1]}) * std::pow(10.0, r % 5));
  };
  const Tensor x =
      Tensor::from_function(sum, [&](const Index& i) { return double(value(mesh.rank(), i)); });
  const Tensor y = redistribute(x, rows);
  for_each_index(y.local_box(), [&](const Index& i) {
    float expected = value(0, i);
    for (int r = 1; r < ranks; ++r) expected += value(r, i);
    CHECK(y.at(i) == double(expected));
  });

  const Tensor narrow = Tensor::full(sum, mesh.rank() == 0 ? 256.0 : 1.0, DType::kBFloat16);
  const Tensor reduced = redistribute(narrow, rows);
  const float exact = 256.0f + static_cast<float>(ranks - 1);
  for_each_index(reduced.local_box(), [&](const Index& i) {
    CHECK(reduced.at(i) == double(static_cast<float>(BFloat16(exact))));
  });
}

TEST_CASE("scatter and gather_to are inverse to each other") {
  Random random = agreed_random("scatter and gather");
  for (int draw = 0; draw < 60; ++draw) {
    const RedistributionCase c = case_on_world(random);
    const Mesh& mesh = c.to.mesh();
    const int root = random.number(0, mesh.size() - 1);
    const DType dtype = kTypes[random.number(0, 4)];
    const Tensor all = Tensor::from_function(
        Layout::replicated(Mesh::self(), c.to.shape()),
        [&](const Index& i) { return whole(c.from, c.seed, i); }, dtype);
    View values = all.local();
    if (mesh.rank() != root) values = {nullptr, dtype, {}, {}, {}};
    const Tensor x = scatter(c.to, values, root);
    CHECK(x.layout() == c.to);
    check_global(replicate_values(x), c, draw);
    const Tensor back = gather_to(x, root);
    if (mesh.rank() == root) {
      check_global(back, c, draw);
    } else {
      CHECK(back.local_shape().product() == (c.to.dims() == 0 ? 1 : 0));
    }
  }
}

TEST_CASE("processes outside the mesh take no part") {
  if (process().count < 2) return;
  std::vector<int> members;
  for (int p = 1; p < process().count; ++p) members.push_back(p);
  const Mesh mesh = Mesh::of(members, {{"x", process().count - 1}});
  const Shape shape{7, 2};
  const Layout rows = Layout::make(mesh, shape, {{{0}, {}}, {}});
  const Layout everywhere = Layout::replicated(mesh, shape);
  const Tensor x =
      Tensor::from_function(rows, [](const Index& i) { return double(2 * i[0] + i[1]); });
  const Tensor y = redistribute(x, everywhere);
  CHECK(y.layout() == everywhere);
  if (process().rank > 0) CHECK(y.at({6, 1}) == 13);
  CHECK(gather_to(x, 0).local_shape().product() == (process().rank == 1 ? 14 : 0));
}

TEST_CASE("roots and layouts that do not fit are refused on every rank") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  const Tensor x = Tensor::zeros(Layout::replicated(mesh, {2}));
  CHECK_THROWS_AS(gather_to(x, process().count), UsageError);
  CHECK_THROWS_AS(scatter(x.layout(), x.local(), -1), UsageError);
  CHECK_THROWS_AS(redistribute(x, Layout::replicated(mesh, {3})), LayoutError);
}
