#include <array>
#include <cstdint>
#include <new>
#include <tessera/core/object_cache.hpp>

namespace tessera {

namespace {

constexpr std::size_t kStep = 64;
constexpr std::size_t kClasses = 32;  // up to 2 KiB; larger objects are rare
/// A thread that only gives (what another one makes) must not collect blocks for ever.
constexpr std::int32_t kMostFree = 1 << 14;

struct FreeBlock {
  FreeBlock* next;
};

/// Trivial, so that it can be used at any time in the life of a thread.
struct Lists {
  std::array<FreeBlock*, kClasses> heads;
  std::array<std::int32_t, kClasses> counts;
};
thread_local constinit Lists lists{};

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kCache = false;
#else
constexpr bool kCache = true;
#endif

}  // namespace

void* take_object(std::size_t bytes) {
  const std::size_t size_class = (bytes - 1) / kStep;
  if (!kCache || size_class >= kClasses) return ::operator new(bytes);
  FreeBlock*& head = lists.heads[size_class];
  if (head == nullptr) return ::operator new((size_class + 1) * kStep);
  FreeBlock* const block = head;
  head = block->next;
  --lists.counts[size_class];
  return block;
}

void give_object(void* block, std::size_t bytes) {
  const std::size_t size_class = (bytes - 1) / kStep;
  if (!kCache || size_class >= kClasses || lists.counts[size_class] == kMostFree)
    return ::operator delete(block);
  ++lists.counts[size_class];
  lists.heads[size_class] = new (block) FreeBlock{lists.heads[size_class]};
}

}  // namespace tessera
