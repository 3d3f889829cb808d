// ranks: 1 2
// deep: 2
// Long trainings hold no more memory at the end than after the start.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/random.hpp>
#include <tessera/models/unet.hpp>
#include <tessera/nn/averages.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/optim.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
#ifdef __SANITIZE_ADDRESS__
constexpr bool kFreesMemory = false;  // it keeps what is freed for a while
#else
constexpr bool kFreesMemory = true;
#endif

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t all = 0;
  std::int64_t resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

/// What the process holds: all of it, the part that is in use on the heap, and the pool's.
struct Held {
  std::int64_t resident = resident_bytes();
  std::int64_t heap = static_cast<std::int64_t>(mallinfo2().uordblks);
  MemoryStats pool = MemoryPool::of({}).stats();
};

int steps() { return draw_count(20) >= 500 ? 10'000 : 500; }

class Training {
 public:
  explicit Training(const Mesh& mesh)
      : mesh_(mesh),
        model_({.base = 4, .multipliers = {1, 2}, .norm_groups = 2, .dropout = 0.1}, mesh),
        adam_(model_.parameters(), {.lr = 1e-3}),
        ema_(model_.parameters()) {}

  double step(std::int64_t height, std::int64_t width) {
    const auto s = static_cast<std::uint64_t>(adam_.steps());
    model_.random().step = s;
    const Layout layout = Placement(mesh_).domain(0, "h").resolve(
        {1, height, width, 1}, {.multiple = model_.total_stride()});
    const Tensor loss =
        mse_loss(model_(random_normal(layout, {s, 1})), random_normal(layout, {s, 2}));
    backward(loss);
    optim::clip_grad_norm(model_.parameters(), 1.0);
    adam_.step();
    ema_.update();
    return loss.item();
  }

 private:
  Mesh mesh_;
  models::UNet model_;
  optim::AdamW adam_;
  optim::Ema ema_;
};

}  // namespace

TEST_CASE("a long training does not grow") {
  Training training(Mesh::world({{"h", process().count}}));
  const int n = steps();
  Held before;
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    if (i == n / 5) before = Held();
    sum += training.step(8, 6);
  }
  const Held after;
  REQUIRE(std::isfinite(sum));
  std::cout << n << " steps: resident memory grew by " << (after.resident - before.resident) / 1024
            << " KiB, the heap by " << after.heap - before.heap << " bytes" << std::endl;
  if (kFreesMemory) {
    CHECK(after.resident - before.resident < kMiB);
    CHECK(after.heap - before.heap < 64 * 1024);
  }
  CHECK(after.pool.live_bytes == before.pool.live_bytes);
  CHECK(after.pool.cached_bytes <= before.pool.cached_bytes);
}

TEST_CASE("sizes that change every step do not make caches grow") {
  Training training(Mesh::world({{"h", process().count}}));
  // Each size about once: nothing that is kept by size is used again.
  const int n = std::max(steps(), 2000);
  const std::int64_t columns = 40;
  Held before;
  for (int i = 0; i < n; ++i) {
    if (i == n * 3 / 4) before = Held();  // tables of fixed size are full
    const std::int64_t k = (static_cast<std::int64_t>(i) * 7919) % (columns * 400);
    training.step(4 + k % columns, 4 + (k / columns) % columns);
  }
  const Held after;
  std::cout << n << " sizes: resident memory grew by " << (after.resident - before.resident) / 1024
            << " KiB, the heap by " << after.heap - before.heap << " bytes; the pool holds "
            << after.pool.live_bytes << " live and " << after.pool.cached_bytes << " cached bytes"
            << std::endl;
  if (kFreesMemory) CHECK(after.resident - before.resident < kMiB);
  CHECK(after.pool.live_bytes == before.pool.live_bytes);
  // Not more than the largest step needed at once, per class of sizes.
  CHECK(after.pool.cached_bytes - before.pool.cached_bytes < kMiB / 4);
}

}  // namespace tessera::test
