#include <cstring>
#include <tessera/core/backend.hpp>
#include <tessera/core/error.hpp>

namespace tessera {

namespace {

constinit const DeviceBackend* cuda_backend = nullptr;

}  // namespace

void register_backend(Device::Kind kind, const DeviceBackend* backend) {
  if (kind == Device::kCpu) throw DeviceError("backend: the CPU needs none.");
  cuda_backend = backend;
}

const DeviceBackend& backend_of(const char* op, Device device) {
  if (device.kind == Device::kCpu || cuda_backend == nullptr) {
    throw DeviceError(str(op, ": no back end for ", str(device),
                          " in this program (it is built without CUDA, or without the kernels). "
                          "Use the CPU, or configure with -DTESSERA_CUDA=ON."));
  }
  return *cuda_backend;
}

void copy_bytes(
    void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) {
  if (bytes == 0) return;
  const bool to_host = to_device.kind == Device::kCpu;
  const bool from_host = from_device.kind == Device::kCpu;
  if (to_host && from_host) {
    std::memcpy(to, from, bytes);
    return;
  }
  if (!to_host && !from_host && to_device != from_device) {
    throw DeviceError(str("copy: from ", str(from_device), " to ", str(to_device),
                          " (a process uses one device). Copy through the CPU."));
  }
  const Device device = to_host ? from_device : to_device;
  backend_of("copy", device).copy(device.index, to, from, bytes);
}

}  // namespace tessera
