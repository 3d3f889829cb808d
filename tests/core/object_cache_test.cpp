// ranks: 1
#include <catch2/catch.hpp>
#include <cstring>
#include <tessera/core/inline_vector.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/core/object_cache.hpp>
#include <vector>

namespace tessera {

TEST_CASE("objects of one size take turns in the same memory and never overlap") {
  std::vector<std::pair<void*, std::size_t>> blocks;
  for (std::size_t bytes = 1; bytes < 5000; bytes += 37) {
    void* const block = take_object(bytes);
    std::memset(block, static_cast<int>(bytes % 251), bytes);
    blocks.emplace_back(block, bytes);
  }
  for (const auto& [block, bytes] : blocks) {
    const auto* p = static_cast<const unsigned char*>(block);
    for (std::size_t i = 0; i < bytes; ++i) REQUIRE(p[i] == bytes % 251);
    give_object(block, bytes);
  }
#if !defined(__SANITIZE_ADDRESS__)
  void* const first = take_object(100);
  give_object(first, 100);
  CHECK(take_object(128) == first);  // the same class
  give_object(first, 128);
#endif
}

TEST_CASE("an inline vector constructs and destroys what it holds, and no more") {
  struct Counted : RefCounted {};
  const Ref<Counted> value(new Counted);
  {
    InlineVector<Ref<Counted>, 3> values;
    values.emplace_back(value);
    values.append([&] { return value; });
    CHECK(values.size() == 2);
    CHECK(value->use_count() == 3);
    values.emplace_back();
    CHECK_THROWS_AS(values.emplace_back(value), UsageError);
    CHECK_THROWS_AS(values.append([&] { return value; }), UsageError);
  }
  CHECK(value->use_count() == 1);
}

TEST_CASE("blocks of the pool hold what was asked for, waste at most an eighth, and are reused") {
  MemoryPool& pool = MemoryPool::of(Device{});
  for (std::size_t bytes = 0; bytes < 100000; bytes = bytes * 9 / 8 + 1) {
    const std::int64_t live = pool.stats().live_bytes;
    const Ref<Buffer> block = pool.allocate(bytes);
    const auto taken = static_cast<std::size_t>(pool.stats().live_bytes - live);
    CHECK(taken >= bytes);
    CHECK(taken <= (bytes <= 4096 ? std::max<std::size_t>(64, 2 * bytes) : bytes + bytes / 8 + 1));
    std::memset(block->data(), 1, taken);
    CHECK(reinterpret_cast<std::uintptr_t>(block->data()) % 64 == 0);
  }
  std::byte* data = nullptr;
  {
    const Ref<Buffer> block = pool.allocate(70000);
    data = block->data();
  }
  CHECK(pool.allocate(70001)->data() == data);
}

}  // namespace tessera
