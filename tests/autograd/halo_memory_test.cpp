// ranks: 1 2 3
// No activation is copied for a halo: what a convolution allocates beside its result is as thin as
// the faces.

#include <catch2/catch.hpp>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/conv.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/parallel/runtime.hpp>

namespace tessera {

namespace {

/// Most bytes that f has in use at once beyond what was in use before and what it returns.
template <class F>
std::int64_t transient_bytes(F f) {
  MemoryPool& pool = MemoryPool::of(Device{});
  pool.reset_peak();
  const std::int64_t before = pool.stats().live_bytes;
  const auto kept = f();
  const std::int64_t after = pool.stats().live_bytes;
  return pool.stats().peak_bytes - std::max(before, after);
}

void check_halo_memory(EdgeRule edge, int split_dim) {
  const Mesh mesh = Mesh::world({{"h", process().count}});
  const std::int64_t rows = 64;
  const std::int64_t channels = 16;
  Shape shape{1, rows, rows, channels};
  shape[split_dim] *= process().count;
  const Layout layout = Placement(mesh).domain(split_dim - 1, "h").resolve(shape);
  const Tensor x = require_grad(Tensor::full(layout, 0.5));
  const Tensor w =
      require_grad(Tensor::full(Layout::replicated(mesh, {channels, 3, 3, channels}), 0.1));
  const ConvOptions options{.pad_lo = {1}, .edges = {edge}};
  Tensor y = conv(x, w, {}, options);  // plans and buffers of the first call are made once
  grad({y}, {x, w}, {}, {y.detach()});

  const std::int64_t activation = x.local_bytes();
  const std::int64_t face = rows * channels * 4;
  // Faces of both sides, packed and received, and the assembled window of a boundary box (3 rows of
  // input per row) on each side of each dimension; the pool rounds up by an eighth.
  const std::int64_t thin = 16 * face;
  REQUIRE(thin < activation / 3);
  CHECK(transient_bytes([&] { return conv(x, w, {}, options); }) <= thin);
  const Tensor g = y.detach();
  // Both gradients are kept; neither needs an activation beside.
  CHECK(transient_bytes([&] { return grad({y}, {x}, {}, {g}); }) <= thin);
  CHECK(transient_bytes([&] { return grad({y}, {w}, {}, {g}); }) <= thin);
}

}  // namespace

TEST_CASE("halo memory: zero edges") { check_halo_memory(EdgeRule::kZero, 1); }
TEST_CASE("halo memory: circular edges, folded gradients") {
  check_halo_memory(EdgeRule::kCircular, 1);
}
TEST_CASE("halo memory: the inner dimension split") { check_halo_memory(EdgeRule::kReflect, 2); }

}  // namespace tessera
