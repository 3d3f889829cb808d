#pragma once

#include <tessera/core/memory.hpp>

namespace tessera {

/// A queue of work on one device. On the CPU work runs at once, so every stream is idle.
class Stream {
 public:
  /// Throws DeviceError for a device without a backend.
  static Stream& current(Device device);
  Device device() const { return device_; }
  /// Waits until all work queued so far is done.
  void synchronize() const;
  /// The library's own handle (cudaStream_t); null on the CPU.
  void* native() const { return native_; }

 private:
  Stream(Device device, void* native) : device_(device), native_(native) {}
  Device device_;
  void* native_;
};

/// A point in a stream that others can wait for; without one, nothing is waited for.
class Event {
 public:
  Event() = default;
  ~Event() { clear(); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Moves the event behind all work queued in `stream` so far.
  void record(const Stream& stream);
  bool ready() const;
  void wait() const;

 private:
  void clear();
  Device device_;
  void* native_ = nullptr;
};

}  // namespace tessera
