// ranks: 1
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <map>
#include <tessera/core/backend.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/core/tensor.hpp>

// A device made of host memory: what core asks of a backend, and when.

namespace tessera {
namespace {

constexpr Device kDevice{Device::kCuda, 3};

struct Record {
  std::map<void*, std::size_t> blocks;
  std::size_t capacity = 1 << 20;
  int copies = 0;
  int synchronized = 0;
  int events = 0;
  bool done = false;
};
Record record;

void* allocate(int index, std::size_t bytes) {
  REQUIRE(index == 3);
  std::size_t used = 0;
  for (const auto& [block, size] : record.blocks) used += size;
  if (used + bytes > record.capacity) return nullptr;
  void* const block = std::aligned_alloc(64, bytes);
  record.blocks[block] = bytes;
  return block;
}
void free_block(int, void* data) {
  record.blocks.erase(data);
  std::free(data);
}
void copy(int index, void* to, const void* from, std::size_t bytes) {
  REQUIRE(index == 3);
  std::memcpy(to, from, bytes);
  ++record.copies;
}
void* stream(int) { return &record; }
void synchronize(void* handle) {
  REQUIRE(handle == &record);
  ++record.synchronized;
}
void* record_event(void* handle) {
  REQUIRE(handle == &record);
  ++record.events;
  return &record.events;
}
bool ready(void*) { return record.done; }
void wait(void*) { record.done = true; }
void forget(void*) { --record.events; }

constexpr DeviceBackend kBackend{allocate,     free_block, copy, stream, synchronize,
                                 record_event, ready,      wait, forget};

struct Registered {
  Registered() { register_backend(Device::kCuda, &kBackend); }
  ~Registered() {
    MemoryPool::of(kDevice).release_cached();
    register_backend(Device::kCuda, nullptr);
    record = Record{};
  }
};

TEST_CASE("without a backend every use of the device is an error") {
  register_backend(Device::kCuda, nullptr);
  CHECK_THROWS_AS(MemoryPool::of(kDevice), DeviceError);
  CHECK_THROWS_AS(Stream::current(kDevice), DeviceError);
  CHECK_THROWS_AS(backend_of("test", Device{}), DeviceError);
  CHECK_THROWS_AS(register_backend(Device::kCpu, &kBackend), DeviceError);
  const Layout layout = Layout::replicated(Mesh::world({}), {3});
  CHECK_THROWS_AS(Tensor::empty(layout, DType::kFloat32, kDevice), DeviceError);
  double a = 1, b = 2;
  CHECK_THROWS_AS(copy_bytes(&a, kDevice, &b, Device{}, 8), DeviceError);
  copy_bytes(&a, Device{}, &b, Device{}, 8);
  CHECK(a == 2);
}

TEST_CASE("tensors live in the memory of the backend and are read through it") {
  const Registered registered;
  const Layout layout = Layout::replicated(Mesh::world({}), {2, 3});
  {
    const Tensor t = Tensor::empty(layout, DType::kFloat64, kDevice);
    CHECK(t.device() == kDevice);
    CHECK(record.blocks.count(t.local().data) == 1);
    CHECK(MemoryPool::of(kDevice).stats().live_bytes >= 48);
    const double values[] = {1, 2, 3, 4, 5, 6};
    copy_bytes(t.local().data, kDevice, values, Device{}, sizeof values);
    CHECK(t.at({1, 1}) == 5);
    CHECK(record.copies == 2);
    const Tensor same = Tensor::from_local(t.local(), layout);
    CHECK(same.device() == kDevice);
    CHECK(same.at({0, 2}) == 3);
    View strided = t.local();
    std::swap(strided.shape[0], strided.shape[1]);
    std::swap(strided.strides[0], strided.strides[1]);
    CHECK_THROWS_AS(Tensor::from_local(strided, Layout::replicated(Mesh::world({}), {3, 2})),
                    DeviceError);
    CHECK_THROWS_AS(copy_bytes(t.local().data, kDevice, same.local().data, {Device::kCuda, 1}, 8),
                    DeviceError);
  }
  CHECK(MemoryPool::of(kDevice).stats().live_bytes == 0);
  CHECK(!record.blocks.empty());
  MemoryPool::of(kDevice).release_cached();
  CHECK(record.blocks.empty());
}

TEST_CASE("cached blocks make room before a device is out of memory") {
  const Registered registered;
  MemoryPool& pool = MemoryPool::of(kDevice);
  for (const std::size_t bytes : {300000u, 400000u}) (void)pool.allocate(bytes);
  CHECK(pool.stats().cached_bytes >= 700000);
  const Ref<Buffer> large = pool.allocate(900000);
  CHECK(pool.stats().cached_bytes == 0);
  CHECK(large->device() == kDevice);
  CHECK_THROWS_AS(pool.allocate(900000), OutOfMemory);
}

TEST_CASE("streams and events reach the backend") {
  const Registered registered;
  Stream& s = Stream::current(kDevice);
  CHECK(&s == &Stream::current(kDevice));
  CHECK(s.native() == &record);
  s.synchronize();
  CHECK(record.synchronized == 1);
  {
    Event event;
    CHECK(event.ready());
    event.record(s);
    event.record(s);
    CHECK(record.events == 1);
    CHECK(!event.ready());
    event.wait();
    CHECK(event.ready());
    event.record(Stream::current(Device{}));
    CHECK(record.events == 0);
    CHECK(event.ready());
    event.record(s);
  }
  CHECK(record.events == 0);
}

}  // namespace
}  // namespace tessera
