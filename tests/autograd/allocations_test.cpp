// ranks: 1 2
// A call whose decision is cached takes nothing from the heap.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/core/layout.hpp>

#if !defined(__SANITIZE_ADDRESS__)

namespace {
std::atomic<std::int64_t> heap_calls{0};
}

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);

void* malloc(std::size_t bytes) {
  ++heap_calls;
  return __libc_malloc(bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  ++heap_calls;
  return __libc_memalign(alignment, bytes);
}
void* calloc(std::size_t n, std::size_t bytes) {
  ++heap_calls;
  return __libc_calloc(n, bytes);
}
void* realloc(void* block, std::size_t bytes) {
  ++heap_calls;
  return __libc_realloc(block, bytes);
}
}

namespace tessera {

namespace {

template <class F>
std::int64_t allocations(F f) {
  for (int i = 0; i < 3; ++i) f();  // decisions and free lists are filled
  const std::int64_t before = heap_calls;
  for (int i = 0; i < 100; ++i) f();
  return heap_calls - before;
}

}  // namespace

TEST_CASE("a cached call allocates nothing") {
  const int n = process().count;
  const Mesh mesh = Mesh::world({{"h", n}});
  const Layout layout = Layout::make(mesh, {4 * n, 8}, {{{0}, {}}, {}});
  const Tensor a = Tensor::full(layout, 1.0);
  const Tensor b = Tensor::full(layout, 2.0);
  const Tensor bias = Tensor::full(Layout::replicated(mesh, {8}), 3.0);
  CHECK(allocations([&] { add(a, b); }) == 0);
  CHECK(allocations([&] { mul(a, bias); }) == 0);
  CHECK(allocations([&] { relu(affine(a, 2.0, 1.0)); }) == 0);

  const Tensor leaf = require_grad(Tensor::full(layout, 1.0));
  CHECK(allocations([&] { add(leaf, b); }) == 0);
  CHECK(allocations([&] { relu(mul(leaf, bias)); }) == 0);
  // The counter counts.
  CHECK(allocations([&] { Tensor::full(layout, 1.0).str(); }) > 0);
}

}  // namespace tessera

#endif
