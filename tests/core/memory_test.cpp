// ranks: 1
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <tessera/core/error.hpp>
#include <tessera/core/memory.hpp>
#include <vector>

namespace tessera {
namespace {

/// The pool of the process, without a limit and with nothing cached before and after.
struct CleanPool {
  MemoryPool& pool = MemoryPool::of(Device{});
  CleanPool() { clean(); }
  ~CleanPool() { clean(); }
  void clean() const {
    pool.set_limit(0);
    pool.release_cached();
    pool.reset_peak();
  }
  std::int64_t live() const { return pool.stats().live_bytes; }
};

TEST_CASE("live and peak bytes follow the blocks") {
  const CleanPool p;
  const std::int64_t before = p.live();
  Ref<Buffer> a = p.pool.allocate(1000);
  CHECK(a->bytes() == 1000);
  CHECK(reinterpret_cast<std::uintptr_t>(a->data()) % 64 == 0);
  const std::int64_t one = p.live() - before;
  CHECK(one >= 1000);
  CHECK(one <= 2000);
  {
    const Ref<Buffer> b = p.pool.allocate(1 << 20);
    CHECK(p.live() - before >= one + (1 << 20));
    CHECK(p.live() - before <= one + (1 << 20) * 9 / 8);
  }
  CHECK(p.live() - before == one);
  CHECK(p.pool.stats().peak_bytes - before >= one + (1 << 20));
  p.pool.reset_peak();
  CHECK(p.pool.stats().peak_bytes == p.live());
  a = nullptr;
  CHECK(p.live() == before);
}

TEST_CASE("a block is used again, and kept while a tensor needs it") {
  const CleanPool p;
  const std::byte* first = nullptr;
  {
    const Ref<Buffer> a = p.pool.allocate(5000);
    const Ref<Buffer> shared = a;
    first = a->data();
  }
  CHECK(p.pool.stats().cached_bytes >= 5000);
  const Ref<Buffer> again = p.pool.allocate(4999);
  CHECK(again->data() == first);
  CHECK(p.pool.stats().cached_bytes == 0);
  p.pool.release_cached();
  const std::int64_t count = p.pool.stats().allocations;
  const Ref<Buffer> empty = p.pool.allocate(0);
  CHECK(empty->data() != nullptr);
  CHECK(p.pool.stats().allocations == count + 1);
}

TEST_CASE("blocks waste little and keep their size classes apart") {
  const CleanPool p;
  for (std::size_t bytes = 4097; bytes < (1u << 22); bytes = bytes * 5 / 4 + 1) {
    const std::int64_t before = p.live();
    const Ref<Buffer> b = p.pool.allocate(bytes);
    const auto size = static_cast<std::int64_t>(bytes);
    CHECK(p.live() - before >= size);
    CHECK(p.live() - before <= size + size / 8 + 64);
  }
}

TEST_CASE("free memory takes at most a quarter beside the most that was needed") {
  const CleanPool p;
  const std::int64_t before = p.live();
  for (std::size_t bytes = 2 << 20; bytes < (16u << 20); bytes += 1 << 20) {
    (void)p.pool.allocate(bytes);
    const MemoryStats s = p.pool.stats();
    CHECK(s.live_bytes + s.cached_bytes <= s.peak_bytes * 5 / 4);
  }
  CHECK(p.live() == before);
}

TEST_CASE("large blocks never overlap and keep their values, whatever comes and goes around them") {
  const CleanPool p;
  const std::int64_t before = p.live();
  std::uint32_t random = 1;
  const auto next = [&](std::uint32_t n) {
    return (random = random * 1664525u + 1013904223u) / 65536u % n;
  };
  struct Block {
    Ref<Buffer> buffer;
    std::byte value;
  };
  std::vector<Block> blocks;
  const auto holds = [](const Block& b) {
    for (std::size_t i = 0; i < b.buffer->bytes(); i += 4001)
      if (b.buffer->data()[i] != b.value) return false;
    return b.buffer->data()[b.buffer->bytes() - 1] == b.value;
  };
  for (int i = 0; i < 2000; ++i) {
    if (blocks.size() < 12 && next(2) == 0) {
      const Ref<Buffer> b = p.pool.allocate((700u << 10) + next(3000) * 1000u);
      REQUIRE(reinterpret_cast<std::uintptr_t>(b->data()) % 64 == 0);
      const auto value = static_cast<std::byte>(i);
      std::fill_n(b->data(), b->bytes(), value);
      blocks.push_back({b, value});
    } else if (!blocks.empty()) {
      const std::size_t k = next(static_cast<std::uint32_t>(blocks.size()));
      REQUIRE(holds(blocks[k]));
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(k));
    }
    if (i % 500 == 499) p.pool.reset_peak();
    const MemoryStats s = p.pool.stats();
    REQUIRE(s.cached_bytes >= 0);
    REQUIRE(s.live_bytes >= before);
  }
  for (const Block& b : blocks) REQUIRE(holds(b));
  blocks.clear();
  p.pool.release_cached();
  CHECK(p.live() == before);
  CHECK(p.pool.stats().cached_bytes == 0);
}

TEST_CASE("past the limit: an error that helps, and nothing changed") {
  const CleanPool p;
  const std::int64_t before = p.live();
  p.pool.set_limit(before + (8 << 20));
  const AllocationScope scope("conv");
  const Ref<Buffer> big = p.pool.allocate(5 << 20);
  std::vector<Ref<Buffer>> small;
  {
    const AllocationScope inner("group_norm");
    small.push_back(p.pool.allocate(1 << 20));
  }
  const MemoryStats full = p.pool.stats();
  std::string text;
  try {
    (void)p.pool.allocate(12 << 20);
  } catch (const OutOfMemory& e) {
    text = e.what();
  }
  CHECK_THAT(text, Catch::StartsWith("memory: conv asks for 12.0 MiB"));
  CHECK_THAT(text, Catch::Contains("limit is"));
  CHECK_THAT(text, Catch::Contains("5.0 MiB by conv, 1.0 MiB by group_norm"));
  CHECK_THAT(text, Catch::Contains("at least 3 ranks"));
  CHECK(p.pool.stats().live_bytes == full.live_bytes);
  CHECK(p.pool.stats().allocations == full.allocations);
  const Ref<Buffer> fits = p.pool.allocate(1 << 20);
  CHECK(fits->bytes() == 1 << 20);
}

TEST_CASE("cached blocks give way to a limit") {
  const CleanPool p;
  { const Ref<Buffer> a = p.pool.allocate(900 << 10); }
  const std::int64_t cached = p.pool.stats().cached_bytes;
  REQUIRE(cached > 0);
  p.pool.set_limit(p.live() + (1 << 20));
  const Ref<Buffer> b = p.pool.allocate(1 << 20);
  CHECK(p.pool.stats().cached_bytes == 0);
}

TEST_CASE("in-place changes are counted") {
  const CleanPool p;
  const Ref<Buffer> b = p.pool.allocate(8);
  CHECK(b->version() == 0);
  b->bump_version();
  CHECK(b->version() == 1);
}

TEST_CASE("sizes as text") {
  CHECK(parse_bytes("1048576") == 1 << 20);
  CHECK(parse_bytes("2GiB") == std::int64_t{2} << 30);
  CHECK(parse_bytes("500 MB") == 500000000);
  CHECK(parse_bytes("1.5KiB") == 1536);
  for (const char* bad : {"", "GiB", "-1", "2 XB", "nan", "inf", "1e30", "2GiBs"}) {
    CHECK_THROWS_AS(parse_bytes(bad), UsageError);
  }
  CHECK(format_bytes(std::int64_t{2} << 30) == "2.0 GiB");
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(parse_bytes(format_bytes(3 << 20)) == 3 << 20);
}

}  // namespace
}  // namespace tessera
