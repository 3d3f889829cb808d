// ranks: 1 2 3 4 8
#include <catch2/catch.hpp>
#include <cmath>
#include <tessera/parallel/exchange.hpp>
#include <tessera/parallel/stats.hpp>

#include "parallel/job.hpp"
#include "parallel/window_simulation.hpp"

using namespace tessera;
using namespace tessera::parallel;
using namespace tessera::test;

namespace {

/// A value that survives every element type but bool.
double small_value(const WindowCase& c, std::int64_t copy, const Index& i) {
  return std::round(100.0 * std::abs(global_value(c, copy, i)));
}

/// The owned part, in memory that is dense, padded, or in another order of dimensions.
struct Owned {
  Ref<Buffer> buffer;
  View view;

  Owned(Random& random, const Box& box, DType dtype) {
    const int dims = box.dims();
    const int kind = random.number(0, 2);
    Shape padded = box.shape();
    if (kind == 1)
      for (std::int64_t& n : padded) n += 2;
    Strides strides = row_major(padded);
    if (kind == 2) {
      std::int64_t stride = 1;
      for (int d = 0; d < dims; ++d) {
        strides[d] = stride;
        stride *= padded[d];
      }
    }
    const auto bytes = static_cast<std::size_t>(padded.product()) * size_of(dtype);
    buffer = MemoryPool::of(Device{}).allocate(std::max<std::size_t>(bytes, 1));
    view = {buffer->data(), dtype, padded, strides, {}};
    if (kind != 1) return;
    Box inner = box;
    for (int d = 0; d < dims; ++d) inner.set(d, {1, box[d].size() + 1});
    view = view.slice(inner);
  }
};

std::int64_t offset_of(const View& view, const Dims& origin, const Index& at) {
  std::int64_t offset = 0;
  for (int d = 0; d < at.size(); ++d) offset += (at[d] - origin[d]) * view.strides[d];
  return offset;
}

double load(const View& view, const Dims& origin, const Index& at) {
  return load_as_double(view.data, view.dtype, offset_of(view, origin, at));
}

void store(const View& view, const Dims& origin, const Index& at, double value) {
  store_double(view.data, view.dtype, offset_of(view, origin, at), value);
}

std::shared_ptr<const ExchangePlan> plan_here(const WindowCase& c) {
  return std::make_shared<const ExchangePlan>(
      plan_window(c.layout, c.edges, c.layout.mesh().rank(), c.needed));
}

void fill_own(const WindowCase& c, const Owned& own, const Box& box) {
  const std::int64_t copy = replica(c.layout, c.layout.mesh().rank());
  for_each_index(box, [&](const Index& i) { store(own.view, box.lo, i, small_value(c, copy, i)); });
}

/// Number of elements of `region` that assemble() gets wrong.
int wrong_elements(const WindowCase& c,
                   const WindowExchange& exchange,
                   const Box& region,
                   DType dtype,
                   int input = 0) {
  constexpr double kAbsent = 111.0;
  const Ref<Buffer> buffer = MemoryPool::of(Device{}).allocate(
      static_cast<std::size_t>(std::max<std::int64_t>(region.volume(), 1)) * size_of(dtype));
  const View out = View::dense(buffer->data(), dtype, region.shape());
  exchange.assemble(region, out, kAbsent, input);
  const std::int64_t copy = replica(c.layout, c.layout.mesh().rank());
  int wrong = 0;
  for_each_index(region, [&](const Index& at) {
    const auto real = real_index(c, at);
    wrong += load(out, region.lo, at) != (real ? small_value(c, copy, *real) : kAbsent);
  });
  return wrong;
}

Box random_part(Random& random, const Box& box) {
  Box part = box;
  for (int d = 0; d < box.dims(); ++d) {
    const std::int64_t lo = random.integer(box.lo[d], std::max(box.lo[d], box.hi[d]));
    part.set(d, {lo, random.integer(lo, std::max(lo, box.hi[d]))});
  }
  return part;
}

constexpr DType kTypes[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16,
                            DType::kInt32,   DType::kInt64,   DType::kUInt8};

}  // namespace

TEST_CASE("every rank sees what it needs, on random meshes, windows and element types") {
  Random random = agreed_random("exchange");
  for (int draw = 0; draw < 60; ++draw) {
    const WindowCase c = random_window_case(random, random_world(random), 20000);
    const DType dtype = kTypes[random.number(0, 5)];
    const bool polls = random.chance(0.5);
    const auto plan = plan_here(c);
    // From here on ranks draw differently: each has a stream of its own.
    Random mine("", static_cast<std::uint64_t>(draw * 1000 + process().rank), false);
    const Owned own(mine, plan->owned, dtype);
    fill_own(c, own, plan->owned);
    reset_comm_stats();
    WindowExchange exchange(c.layout.mesh(), {plan, {own.view, plan->owned, c.layout.shape()}},
                            {"exchange_test", c.layout, {}});
    while (polls && !exchange.poll()) {
    }
    exchange.wait();
    const CommCounters sent = comm_stats().point_to_point();
    INFO("draw " << draw << " " << c.layout << " " << name(dtype));
    CHECK(sent.bytes == plan->send_bytes(dtype));
    CHECK(sent.messages == plan->send_messages());
    if (!plan->needed.empty()) CHECK(wrong_elements(c, exchange, plan->needed, dtype) == 0);
    for (int k = 0; k < 3 && !plan->needed.empty(); ++k)
      CHECK(wrong_elements(c, exchange, random_part(mine, plan->needed), dtype) == 0);
  }
}

TEST_CASE("the windows of several inputs make one message per peer") {
  Random random = agreed_random("several inputs");
  for (int draw = 0; draw < 25; ++draw) {
    const Mesh mesh = random_world(random);
    const int count = random.number(2, 3);
    std::vector<WindowCase> cases;
    std::vector<DType> types;
    std::vector<Owned> owned;
    std::vector<WindowInput> inputs;
    std::int64_t bytes = 0;
    std::vector<int> peers;
    for (int i = 0; i < count; ++i) {
      cases.push_back(random_window_case(random, mesh, 8000));
      types.push_back(kTypes[random.number(0, 5)]);
    }
    Random mine("", static_cast<std::uint64_t>(draw * 1000 + process().rank), false);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const auto plan = plan_here(cases[i]);
      owned.emplace_back(mine, plan->owned, types[i]);
      fill_own(cases[i], owned.back(), plan->owned);
      inputs.push_back({plan, {owned.back().view, plan->owned, cases[i].layout.shape()}});
      bytes += plan->send_bytes(types[i]);
      for (const Parcel& parcel : plan->sends) peers.push_back(parcel.peer);
    }
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    reset_comm_stats();
    WindowExchange exchange(mesh, inputs, {"exchange_test", cases[0].layout, {}});
    exchange.wait();
    const CommCounters sent = comm_stats().point_to_point();
    CHECK(sent.messages == static_cast<std::int64_t>(peers.size()));
    CHECK(sent.bytes >= bytes);
    CHECK(sent.bytes < bytes + 8 * 1000);  // gaps where element sizes change
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Box& needed = inputs[i].plan->needed;
      if (!needed.empty())
        CHECK(wrong_elements(cases[i], exchange, needed, types[i], static_cast<int>(i)) == 0);
    }
  }
}

TEST_CASE("the adjoint exchange adds every image to its element") {
  Random random = agreed_random("adjoint exchange");
  for (int draw = 0; draw < 60; ++draw) {
    const WindowCase c = random_window_case(random, random_world(random), 10000);
    const Mesh& mesh = c.layout.mesh();
    const auto plan = plan_here(c);
    const auto box_of = [&](int r) {
      Box box = c.layout.owned(r);
      for (int d = 0; d < box.dims(); ++d) box.set(d, c.needed(d, r));
      return box;
    };
    const auto y = [&](int r, const Index& at) {
      std::int64_t place = 0;
      for (const std::int64_t i : at) place = place * 1000 + i;
      return noise(c.seed + 3, {r, place});
    };
    Random mine("", static_cast<std::uint64_t>(draw * 1000 + process().rank), false);
    std::vector<Array> results;
    for (int run = 0; run < 2; ++run) {
      AdjointExchange adjoint(mesh, {plan, DType::kFloat64}, {"exchange_test", c.layout, {}});
      // In two calls, as boundary boxes would.
      const Box part = plan->needed.empty() ? plan->needed : random_part(mine, plan->needed);
      std::vector<Box> regions = difference(plan->needed, part);
      if (!part.empty()) regions.push_back(part);
      if (run == 1) regions = {plan->needed};
      for (const Box& region : regions) {
        if (region.empty()) continue;
        Array values(region);
        for_each_index(region, [&](const Index& at) { values[at] = y(mesh.rank(), at); });
        adjoint.add(region, View::dense(values.values.data(), DType::kFloat64, region.shape()));
      }
      reset_comm_stats();
      adjoint.start();
      const Owned own(mine, plan->owned, DType::kFloat64);
      for_each_index(plan->owned, [&](const Index& i) {
        const bool in_place = !plan->needed.empty() && plan->needed.contains(Box(i, [&] {
          Index end = i;
          for (std::int64_t& v : end) ++v;
          return end;
        }()));
        store(own.view, plan->owned.lo, i, in_place ? y(mesh.rank(), i) : 0.0);
      });
      if (random.chance(0.5)) adjoint.poll();
      adjoint.finish(own.view);
      CHECK(comm_stats().point_to_point().bytes == plan->receive_bytes(DType::kFloat64));
      Array& result = results.emplace_back(plan->owned);
      for_each_index(plan->owned,
                     [&](const Index& i) { result[i] = load(own.view, plan->owned.lo, i); });
    }

    Array expected(plan->owned);
    Array scale(plan->owned);
    for (int r = 0; r < mesh.size(); ++r) {
      if (replica(c.layout, r) != replica(c.layout, mesh.rank())) continue;
      for_each_index(box_of(r), [&](const Index& at) {
        const auto real = real_index(c, at);
        if (!real) return;
        for (int d = 0; d < at.size(); ++d)
          if ((*real)[d] < plan->owned.lo[d] || (*real)[d] >= plan->owned.hi[d]) return;
        expected[*real] += y(r, at);
        scale[*real] += std::abs(y(r, at));
      });
    }
    int wrong = 0;
    for (std::size_t i = 0; i < expected.values.size(); ++i) {
      for (const Array& result : results)
        wrong += std::abs(result.values[i] - expected.values[i]) > 1e-13 * scale.values[i];
    }
    INFO("draw " << draw << " " << c.layout);
    CHECK(wrong == 0);
  }
}

TEST_CASE("a halo of rows is sent from where it lies, and only faces are allocated") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  const std::int64_t rows = 6;
  const Shape shape{rows * process().count, 50, 4};
  const Layout layout = Layout::make(mesh, shape, {{{0}, {}}, {}, {}});
  const std::vector<EdgeRule> edges(3, EdgeRule::kZero);
  const auto plan = std::make_shared<const ExchangePlan>(
      plan_window(layout, edges, mesh.rank(), [&](int d, int r) {
        const Interval own = layout.owned(d, r);
        return d == 0 ? Interval{own.lo - 1, own.hi + 1} : own;
      }));
  const Tensor x = Tensor::zeros(layout);
  const MemoryStats before = MemoryPool::of(Device{}).stats();
  const int neighbours = (mesh.rank() > 0) + (mesh.rank() + 1 < mesh.size());
  CHECK(plan->receive_bytes(DType::kFloat32) == neighbours * 50 * 4 * 4);
  {
    WindowExchange exchange(mesh, {plan, {x.local(), x.local_box(), shape}}, {"halo", layout, {}});
    const MemoryStats during = MemoryPool::of(Device{}).stats();
    CHECK(during.allocations - before.allocations == (neighbours > 0 ? 1 : 0));
    CHECK(during.live_bytes - before.live_bytes <= 4 * plan->receive_bytes(DType::kFloat32));
    exchange.wait();
    CHECK(exchange.pieces().size() == static_cast<std::size_t>(1 + neighbours));
  }
  CHECK(MemoryPool::of(Device{}).stats().live_bytes == before.live_bytes);
}

TEST_CASE("a perturbed plan shows in the values") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  WindowCase c;
  c.layout = Layout::make(mesh, {4 * process().count}, {{{0}, {}}});
  c.edges = {EdgeRule::kCircular};
  c.seed = 3;
  c.needed = [&](int d, int r) {
    const Interval own = c.layout.owned(d, r);
    return Interval{own.lo - 2, own.hi + 2};
  };
  const auto plan = plan_here(c);
  ExchangePlan swapped = *plan;  // left and right neighbour exchanged
  REQUIRE(swapped.images.size() == 2);
  std::swap(swapped.images[0].at, swapped.images[1].at);
  Random random("", 1, false);
  const Owned own(random, plan->owned, DType::kFloat32);
  fill_own(c, own, plan->owned);
  const Piece piece{own.view, plan->owned, c.layout.shape()};
  WindowExchange good(mesh, {plan, piece}, {"good", c.layout, {}});
  WindowExchange bad(mesh, {std::make_shared<const ExchangePlan>(swapped), piece},
                     {"bad", c.layout, {}});
  bad.wait();  // two in flight at once, finished in another order
  good.wait();
  CHECK(wrong_elements(c, good, plan->needed, DType::kFloat32) == 0);
  CHECK(wrong_elements(c, bad, plan->needed, DType::kFloat32) > 0);
}

TEST_CASE("misuse is told") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  const Layout layout = Layout::make(mesh, {2 * process().count}, {{{0}, {}}});
  const std::vector<EdgeRule> edges{EdgeRule::kZero};
  const auto plan = std::make_shared<const ExchangePlan>(
      plan_window(layout, edges, mesh.rank(), [&](int d, int r) { return layout.owned(d, r); }));
  const Tensor x = Tensor::zeros(layout);
  Box other = x.local_box();
  other.hi[0] += 1;
  CHECK_THROWS_AS(WindowExchange(mesh, {plan, {x.local(), other, layout.shape()}}), LayoutError);
  AdjointExchange adjoint(mesh, {plan, DType::kFloat32});
  CHECK_THROWS_AS(adjoint.finish(x.local()), UsageError);
  adjoint.start();
  CHECK_THROWS_AS(adjoint.start(), UsageError);
  CHECK_THROWS_AS(adjoint.add(x.local_box(), x.local()), UsageError);
  adjoint.finish(x.local());
}
