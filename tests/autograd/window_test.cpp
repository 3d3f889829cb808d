// ranks: 1 2 3 4 6 8
// deep: 1 4
// The mechanism of windows, through a small op from outside the library.
#include <tessera/autograd/autograd.hpp>

#include "support/autograd/stencil.hpp"
#include "window_call.hpp"

namespace tessera::test {
namespace {

/// Takes either way through a windowed op, whatever its size.
struct OverlapThreshold {
  explicit OverlapThreshold(std::int64_t bytes) { set_overlap_threshold(bytes); }
  ~OverlapThreshold() { set_overlap_threshold(kOverlapThreshold); }
};

OP_TEST("stencil") { return stencil_case({}); }
OP_TEST("stencil, stride 2") { return stencil_case({.stride = 2}); }
OP_TEST("stencil, stride 4: windows with gaps") { return stencil_case({.stride = 4}); }
OP_TEST("stencil, circular") {
  return stencil_case({.edge = static_cast<std::int64_t>(EdgeRule::kCircular)});
}
OP_TEST("stencil, reflect, stride 2") {
  return stencil_case({.stride = 2, .edge = static_cast<std::int64_t>(EdgeRule::kReflect)});
}
OP_TEST("stencil, replicate") {
  return stencil_case({.edge = static_cast<std::int64_t>(EdgeRule::kReplicate)});
}

RANDOM_OP_TEST("stencil, random geometry") {
  OpCase c = stencil_case({.stride = rng.integer(1, 4), .edge = rng.integer(0, 3)});
  c.inputs = {uniform({rng.integer(1, 3), rng.integer(1, 9), rng.integer(1, 9)})};
  return c;
}

TEST_CASE("interior first, boundaries later: the same bits") {
  const OverlapThreshold always(0);
  for (std::int64_t edge = 0; edge < 4; ++edge) {
    OpCase c = stencil_case({.stride = 1 + edge % 2, .edge = edge});
    c.inputs = {uniform({2, 13, 11})};
    c.random_cuts = 6;
    report(check_op(c));
  }
}

TEST_CASE("a stencil sends the faces that it needs, once per neighbour") {
  const int n = process().count;
  const Mesh mesh = Mesh::world({{"h", n}});
  const Layout layout = Layout::make(mesh, {2, 8 * n, 5}, {{}, {{0}, {}}});
  const Tensor x = to_tensor(random_array({2, 8 * n, 5}, 1), layout);
  const std::int64_t face = 2 * 5 * 8;
  stencil(x, {});
  // Zero edges: each inner boundary is crossed both ways.
  expect_traffic(2 * (n - 1) * face, 2 * (n - 1), [&] { stencil(x, {}); });
  // Stride 2 reads one row less behind each part.
  expect_traffic((n - 1) * face, n - 1, [&] { stencil(x, {.stride = 2}); });
  // Circular: the ends meet, and two ranks need both faces in one message. What wraps around in the
  // other dimension is seen in the faces that are here already.
  const std::int64_t messages = n == 1 ? 0 : n == 2 ? 2 : 2 * n;
  expect_traffic(n == 1 ? 0 : 2 * n * face, messages,
                 [&] { stencil(x, {.edge = static_cast<std::int64_t>(EdgeRule::kCircular)}); });
  // The gradient moves the same faces of dy.
  const Tensor leaf = require_grad(x);
  const Tensor y = stencil(leaf, {});
  const Tensor dy = to_tensor(random_array(y.shape(), 2), y.layout());
  expect_traffic(2 * (n - 1) * face, 2 * (n - 1), [&] { grad({y}, {leaf}, {}, {dy}); });
}

TEST_CASE("no activation is copied for a halo") {
  const int n = process().count;
  const Mesh mesh = Mesh::world({{"h", n}});
  const Shape shape{1, 512 * n, 64};
  const Tensor x = to_tensor(random_array(shape, 1), Layout::make(mesh, shape, {{}, {{0}, {}}}));
  MemoryPool& pool = MemoryPool::of(Device{});
  for (std::int64_t edge = 0; edge < 4; ++edge) {
    pool.reset_peak();
    const std::int64_t before = pool.stats().live_bytes;
    const Tensor y = stencil(x, {.edge = edge});
    // Beside the result: the rows that come and go, and the windows of the boundary rows and
    // columns (three wide each), one at a time.
    const std::int64_t faces = 8 * 64 * 8 + 3 * 514 * 8;
    CHECK(pool.stats().peak_bytes - before <= y.local_bytes() + faces + 4096);
    CHECK(faces + 4096 < x.local_bytes() / 5);
  }
}

}  // namespace
}  // namespace tessera::test
