#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <tessera/core/backend.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/core/mesh.hpp>
#include <thread>
#include <vector>

#include "large_blocks.hpp"

namespace tessera {

namespace {

thread_local const char* current_op = "allocation";

/// Small blocks come in powers of two from 64 bytes, larger ones in steps of an eighth of their
/// power, so at most 12.5 % is lost.
struct SizeClass {
  std::size_t index;
  std::size_t bytes;
};
constexpr int kSmallest = 6;  // log2
constexpr int kFirstStepped = 12;
constexpr std::size_t kClasses = (kFirstStepped - kSmallest) + 1 + 8 * (64 - kFirstStepped);

SizeClass size_class(std::size_t bytes) {
  if (bytes <= 64) return {0, 64};
  const int log2 = 63 - __builtin_clzll(bytes - 1);  // 2^log2 < bytes <= 2^(log2 + 1)
  if (log2 < kFirstStepped)
    return {static_cast<std::size_t>(log2 + 1 - kSmallest), std::size_t{2} << log2};
  const std::size_t step = std::size_t{1} << (log2 - 3);
  const std::size_t eighths = (bytes + step - 1) / step;  // 9..16
  const auto stepped = static_cast<std::size_t>(log2 - kFirstStepped);
  return {kFirstStepped - kSmallest + 1 + 8 * stepped + (eighths - 9), eighths * step};
}

/// A mutex for a few instructions; the pool is nearly always used by one thread.
class SpinLock {
 public:
  void lock() {
    while (flag_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_ = ATOMIC_FLAG_INIT;
};

/// Device blocks of at least this size go back where keeping them would exceed the peak; on the CPU
/// they lie in a range of their own (LargeBlocks).
constexpr std::int64_t kLargeBlock = 1 << 20;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;  // every block from malloc, whose bounds are checked
#else
constexpr bool kSanitized = false;
#endif

/// Blocks of a dry run have addresses from here on, where no process has memory.
constexpr std::uintptr_t kDryMemory = std::uintptr_t{1} << 60;

bool is_dry(const std::byte* data) { return reinterpret_cast<std::uintptr_t>(data) >= kDryMemory; }

}  // namespace

std::string str(Device device) {
  return device.kind == Device::kCpu ? "cpu" : str("cuda:", static_cast<int>(device.index));
}

AllocationScope::AllocationScope(const char* op) : previous_(current_op) { current_op = op; }
AllocationScope::~AllocationScope() { current_op = previous_; }

struct MemoryPool::State {
  SpinLock mutex;
  Device device;
  const DeviceBackend* backend = nullptr;  // none: the CPU
  MemoryStats stats;
  std::uint64_t serial = 0;
  struct FreeList {
    std::size_t bytes = 0;
    std::vector<std::byte*> blocks;
  };
  std::array<FreeList, kClasses> free;
  LargeBlocks large;
  Buffer* live = nullptr;  // newest first
  MemoryStats dry;         // of dry runs
  std::uintptr_t next_dry = kDryMemory;

  MemoryStats& current() { return dry_run() ? dry : stats; }
  Ref<Buffer> allocate_dry(std::size_t bytes, std::size_t block) {
    Ref<Buffer> buffer(new Buffer);
    buffer->data_ = reinterpret_cast<std::byte*>(next_dry);  // NOLINT
    next_dry += block;
    buffer->bytes_ = bytes;
    buffer->block_bytes_ = block;
    buffer->device_ = device;
    dry.live_bytes += static_cast<std::int64_t>(block);
    dry.peak_bytes = std::max(dry.peak_bytes, dry.live_bytes);
    ++dry.allocations;
    return buffer;
  }

  /// Null when there is no more.
  std::byte* take(std::size_t block) const {
    if (backend != nullptr) return static_cast<std::byte*>(backend->allocate(device.index, block));
    return static_cast<std::byte*>(std::aligned_alloc(64, block));
  }
  void give_back(std::byte* block) const {
    if (backend != nullptr) {
      backend->free(device.index, block);
    } else {
      std::free(block);
    }
  }
  bool is_large(std::size_t bytes) const {
    return !kSanitized && backend == nullptr && static_cast<std::int64_t>(bytes) >= kLargeBlock;
  }
  /// Runs `f` on the large blocks and counts the holes that it makes or fills.
  template <class F>
  auto on_large(const F& f) {
    const std::int64_t before = large.resident_holes();
    const auto result = f();
    stats.cached_bytes += large.resident_holes() - before;
    return result;
  }
  void drop_holes(std::int64_t bytes) {
    on_large([&] { return large.drop_holes(bytes), 0; });
  }
  std::byte* take_large(std::size_t bytes) {
    const auto wanted = static_cast<std::int64_t>(bytes);
    if (stats.limit_bytes > 0) {
      drop_holes(stats.limit_bytes - stats.live_bytes - wanted);
      if (stats.live_bytes + stats.cached_bytes + wanted > stats.limit_bytes) drop_cached();
    }
    std::byte* const data = on_large([&] { return large.take(bytes); });
    // Holes may take a quarter beside the most that was ever in use (a training step of a UNet
    // leaves 23 %); with less the system clears the same pages again in every step.
    const std::int64_t used = stats.live_bytes + wanted;
    drop_holes(std::max(stats.peak_bytes, used) * 5 / 4 - used);
    return data;
  }
  void drop_cached() {
    for (FreeList& list : free) {
      for (std::byte* block : list.blocks) give_back(block);
      stats.cached_bytes -= static_cast<std::int64_t>(list.bytes * list.blocks.size());
      list.blocks.clear();
    }
    drop_holes(0);
  }
  [[noreturn]] void out_of_memory(std::size_t bytes) const;
};

void MemoryPool::State::out_of_memory(std::size_t bytes) const {
  std::vector<const Buffer*> largest;
  for (const Buffer* buffer = live; buffer != nullptr; buffer = buffer->next_)
    largest.push_back(buffer);
  std::sort(largest.begin(), largest.end(), [](const Buffer* a, const Buffer* b) {
    return a->block_bytes_ != b->block_bytes_ ? a->block_bytes_ > b->block_bytes_
                                              : a->serial_ < b->serial_;
  });
  std::string text =
      str("memory: ", current_op, " asks for ", format_bytes(static_cast<std::int64_t>(bytes)),
          " on ", str(device), " of rank ", process().rank, ", ", format_bytes(stats.live_bytes),
          " are in use");
  if (stats.limit_bytes > 0) text += str(" and the limit is ", format_bytes(stats.limit_bytes));
  text += ". Largest live blocks:";
  for (std::size_t i = 0; i < std::min<std::size_t>(5, largest.size()); ++i) {
    text += str(i ? ", " : " ", format_bytes(static_cast<std::int64_t>(largest[i]->block_bytes_)),
                " by ", largest[i]->op_);
  }
  if (stats.limit_bytes > 0) {
    const double total = static_cast<double>(stats.live_bytes) + static_cast<double>(bytes);
    const double factor = std::ceil(total / static_cast<double>(stats.limit_bytes));
    text += str(". Split the domain over at least ",
                static_cast<std::int64_t>(factor) * process().count,
                " ranks, reduce the size, or raise TESSERA_MEMORY_LIMIT.");
  } else {
    text += ". Split the domain over more ranks, or reduce the size.";
  }
  throw OutOfMemory(text);
}

MemoryPool::MemoryPool(Device device) : state_(new State) {
  state_->device = device;
  if (const char* limit = std::getenv("TESSERA_MEMORY_LIMIT"))
    state_->stats.limit_bytes = parse_bytes(limit);
}

MemoryPool& MemoryPool::of(Device device) {
  // Pools outlive static tensors.
  static auto* const cpu = new MemoryPool(Device{});
  if (device.kind == Device::kCpu) return *cpu;
  const DeviceBackend* const backend = &backend_of("memory", device);
  static std::mutex mutex;
  static auto* const pools = new std::map<int, MemoryPool*>;
  const std::lock_guard lock(mutex);
  MemoryPool*& pool = (*pools)[device.index];
  if (pool == nullptr) {
    pool = new MemoryPool(device);
    pool->state_->backend = backend;
  }
  return *pool;
}

Ref<Buffer> MemoryPool::allocate(std::size_t bytes) {
  SizeClass wanted_class = size_class(bytes);
  const bool large = state_->is_large(wanted_class.bytes);
  if (large) {
    const std::size_t granules = (bytes + LargeBlocks::kGranule - 1) / LargeBlocks::kGranule;
    wanted_class.bytes = std::max<std::size_t>(granules * LargeBlocks::kGranule, kLargeBlock);
  }
  const auto wanted = static_cast<std::int64_t>(wanted_class.bytes);
  const std::lock_guard lock(state_->mutex);
  if (dry_run()) [[unlikely]]
    return state_->allocate_dry(bytes, wanted_class.bytes);
  MemoryStats& stats = state_->stats;
  if (stats.limit_bytes > 0 && stats.live_bytes + wanted > stats.limit_bytes)
    state_->out_of_memory(bytes);

  std::byte* data = nullptr;
  State::FreeList& list = state_->free[wanted_class.index];
  if (large) {
    data = state_->take_large(wanted_class.bytes);
  } else if (!list.blocks.empty()) {
    data = list.blocks.back();
    list.blocks.pop_back();
    stats.cached_bytes -= wanted;
  } else {
    list.bytes = wanted_class.bytes;
    if (stats.limit_bytes > 0 &&
        stats.live_bytes + stats.cached_bytes + wanted > stats.limit_bytes) {
      state_->drop_cached();
    }
    data = state_->take(wanted_class.bytes);
    if (data == nullptr) {
      state_->drop_cached();
      data = state_->take(wanted_class.bytes);
    }
  }
  if (data == nullptr) state_->out_of_memory(bytes);
  Ref<Buffer> buffer(new Buffer);
  buffer->data_ = data;
  buffer->bytes_ = bytes;
  buffer->block_bytes_ = wanted_class.bytes;
  buffer->size_class_ = static_cast<std::uint16_t>(wanted_class.index);
  buffer->device_ = state_->device;
  buffer->op_ = current_op;
  buffer->serial_ = ++state_->serial;
  buffer->next_ = state_->live;
  if (state_->live != nullptr) state_->live->previous_ = buffer.get();
  state_->live = buffer.get();
  stats.live_bytes += wanted;
  stats.peak_bytes = std::max(stats.peak_bytes, stats.live_bytes);
  ++stats.allocations;
  return buffer;
}

void MemoryPool::recycle(const Buffer& buffer) {
  const std::lock_guard lock(state_->mutex);
  if (is_dry(buffer.data_)) [[unlikely]] {
    state_->dry.live_bytes -= static_cast<std::int64_t>(buffer.block_bytes_);
    return;
  }
  MemoryStats& stats = state_->stats;
  const auto size = static_cast<std::int64_t>(buffer.block_bytes_);
  (buffer.previous_ != nullptr ? buffer.previous_->next_ : state_->live) = buffer.next_;
  if (buffer.next_ != nullptr) buffer.next_->previous_ = buffer.previous_;
  stats.live_bytes -= size;
  if (state_->is_large(buffer.block_bytes_)) {
    state_->on_large([&] { return state_->large.give_back(buffer.data_, buffer.block_bytes_), 0; });
    return;
  }
  // Large blocks are kept only while they fit under the peak: the process never holds more than it
  // once needed.
  if (size >= kLargeBlock && stats.live_bytes + stats.cached_bytes + size > stats.peak_bytes) {
    state_->give_back(buffer.data_);
    return;
  }
  state_->free[buffer.size_class_].blocks.push_back(buffer.data_);
  stats.cached_bytes += size;
}

void Buffer::dispose() const {
  MemoryPool::of(device_).recycle(*this);
  delete this;
}

MemoryStats MemoryPool::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->current();
}

void MemoryPool::reset_peak() {
  const std::lock_guard lock(state_->mutex);
  MemoryStats& stats = state_->current();
  stats.peak_bytes = stats.live_bytes;
}

void MemoryPool::set_limit(std::int64_t bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->stats.limit_bytes = bytes;
}

void MemoryPool::release_cached() {
  const std::lock_guard lock(state_->mutex);
  state_->drop_cached();
}

std::int64_t parse_bytes(const std::string& text) {
  const auto bad = [&] {
    return UsageError(
        str("memory: '", text, "' is not a size. Write e.g. 2GiB, 500MB or 1048576."));
  };
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !(value >= 0) || std::isinf(value)) throw bad();
  std::string unit(end);
  unit.erase(std::remove(unit.begin(), unit.end(), ' '), unit.end());
  static const std::map<std::string, double> units = {{"", 1.0},
                                                      {"B", 1.0},
                                                      {"KB", 1e3},
                                                      {"MB", 1e6},
                                                      {"GB", 1e9},
                                                      {"TB", 1e12},
                                                      {"KiB", 1024.0},
                                                      {"MiB", 1048576.0},
                                                      {"GiB", 1073741824.0},
                                                      {"TiB", 1099511627776.0}};
  const auto it = units.find(unit);
  if (it == units.end() || value * it->second > 9e18) throw bad();
  return static_cast<std::int64_t>(value * it->second);
}

std::string format_bytes(std::int64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024.0 && unit < 5) {
    value /= 1024.0;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text;
}

}  // namespace tessera
