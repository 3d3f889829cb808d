#pragma once

#include <cstddef>
#include <tessera/core/memory.hpp>

namespace tessera {

/// What core needs of a device's own library. The module that knows the library registers one
/// table; core names no device header. Functions report failure by throwing DeviceError.
struct DeviceBackend {
  /// Memory of device `index`, aligned to 64 bytes; null when not enough is free.
  void* (*allocate)(int index, std::size_t bytes);
  /// Never throws.
  void (*free)(int index, void* data);
  /// Copies between host and device or within the device, after all work queued before; returns
  /// when it is done.
  void (*copy)(int index, void* to, const void* from, std::size_t bytes);
  /// The queue of the device on which kernels run.
  void* (*stream)(int index);
  void (*synchronize)(void* stream);
  /// An event after all work queued in `stream` so far.
  void* (*record)(void* stream);
  bool (*ready)(void* event);
  void (*wait)(void* event);
  /// Never throws.
  void (*forget)(void* event);
};

/// Makes `backend`, which must live on, the one of all devices of this kind; null takes it away.
void register_backend(Device::Kind kind, const DeviceBackend* backend);
/// Throws DeviceError naming `op` for the CPU, which has none, and for a kind without a backend.
const DeviceBackend& backend_of(const char* op, Device device);

/// Copies bytes between memories of the CPU and of one device, or within one; returns when it is
/// done. Throws DeviceError for two different devices.
void copy_bytes(
    void* to, Device to_device, const void* from, Device from_device, std::size_t bytes);

}  // namespace tessera
