#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <tessera/core/object_cache.hpp>
#include <tessera/core/ref.hpp>

namespace tessera {

/// Where memory lies.
struct Device {
  enum Kind : std::uint8_t { kCpu, kCuda } kind = kCpu;
  std::int8_t index = 0;
  friend bool operator==(Device, Device) = default;
};
std::string str(Device device);

struct MemoryStats {
  std::int64_t live_bytes = 0;    ///< handed out now
  std::int64_t peak_bytes = 0;    ///< most handed out since reset_peak()
  std::int64_t cached_bytes = 0;  ///< free, kept for reuse
  std::int64_t limit_bytes = 0;   ///< 0: none
  std::int64_t allocations = 0;   ///< blocks handed out since start
};

/// A block of the memory pool. Elements are not initialised. 64-byte aligned.
class Buffer : public RefCounted, public CachedObject {
 public:
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  /// Counts in-place changes, so that backward can tell that a saved value was overwritten.
  std::uint32_t version() const { return version_; }
  void bump_version() { ++version_; }

 private:
  friend class MemoryPool;
  void dispose() const override;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t block_bytes_ = 0;
  const char* op_ = nullptr;
  std::uint64_t serial_ = 0;
  Buffer* next_ = nullptr;  // the pool's list of live blocks
  Buffer* previous_ = nullptr;
  std::uint32_t version_ = 0;
  std::uint16_t size_class_ = 0;
  Device device_;
};

/// One pool per device: size-class free lists, counters, and a limit (`TESSERA_MEMORY_LIMIT=2GiB`,
/// per process).
class MemoryPool {
 public:
  /// Throws DeviceError for a device without a backend (see core/backend.hpp).
  static MemoryPool& of(Device device);
  /// Throws OutOfMemory naming the op, the largest live blocks with the ops that made them, and the
  /// smallest number of ranks over which the live bytes would fit.
  Ref<Buffer> allocate(std::size_t bytes);
  MemoryStats stats() const;
  void reset_peak();
  void set_limit(std::int64_t bytes);
  /// Returns free blocks to the system.
  void release_cached();

 private:
  friend class Buffer;
  explicit MemoryPool(Device device);
  void recycle(const Buffer& buffer);
  struct State;
  State* state_;
};

/// Names the op that allocates, for the out-of-memory report; kernels and the dispatcher set it.
class AllocationScope {
 public:
  explicit AllocationScope(const char* op);
  ~AllocationScope();
  AllocationScope(const AllocationScope&) = delete;

 private:
  const char* previous_;
};

/// Parses "2GiB", "500 MB", "1048576"; throws UsageError.
std::int64_t parse_bytes(const std::string& text);
/// 2147483648 -> "2.0 GiB"
std::string format_bytes(std::int64_t bytes);

}  // namespace tessera
