#pragma once

#include <tessera/core/memory.hpp>

namespace tessera {

/// A queue of work on one device. On the CPU work runs at once, so every stream is idle.
class Stream {
 public:
  static Stream& current(Device device);
  Device device() const { return device_; }
  /// Waits until all work queued so far is done.
  void synchronize() const;
  void* native() const { return native_; }

 private:
  explicit Stream(Device device) : device_(device) {}
  Device device_;
  void* native_ = nullptr;
};

/// A point in a stream that others can wait for.
class Event {
 public:
  void record(const Stream& stream);
  bool ready() const;
  void wait() const;

 private:
  const Stream* stream_ = nullptr;
};

}  // namespace tessera
