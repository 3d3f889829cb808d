#include <map>
#include <mutex>
#include <tessera/core/backend.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/stream.hpp>

namespace tessera {

Stream& Stream::current(Device device) {
  static Stream cpu{Device{}, nullptr};
  if (device.kind == Device::kCpu) return cpu;
  const DeviceBackend& backend = backend_of("stream", device);
  static std::mutex mutex;
  static std::map<int, Stream> streams;
  const std::lock_guard lock(mutex);
  const auto it = streams.find(device.index);
  if (it != streams.end()) return it->second;
  return streams.emplace(device.index, Stream(device, backend.stream(device.index))).first->second;
}

void Stream::synchronize() const {
  if (device_.kind != Device::kCpu) backend_of("stream", device_).synchronize(native_);
}

void Event::record(const Stream& stream) {
  clear();
  if (stream.device().kind == Device::kCpu) return;
  native_ = backend_of("event", stream.device()).record(stream.native());
  device_ = stream.device();
}

bool Event::ready() const {
  return native_ == nullptr || backend_of("event", device_).ready(native_);
}

void Event::wait() const {
  if (native_ != nullptr) backend_of("event", device_).wait(native_);
}

void Event::clear() {
  if (native_ != nullptr) backend_of("event", device_).forget(native_);
  native_ = nullptr;
}

}  // namespace tessera
