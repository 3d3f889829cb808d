// Loaded before a program (LD_PRELOAD): after SIGUSR2 the next allocation of its C++ code fails, so
// that it throws wherever it happens to be.
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<bool> armed{false};

struct Handler {
  Handler() {
    std::signal(SIGUSR2, [](int) { armed = true; });
  }
};
const Handler handler;

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (armed.exchange(false)) throw std::bad_alloc();
  void* const memory =
      alignment > alignof(std::max_align_t)
          ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
          : std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, 0); }
void* operator new[](std::size_t bytes) { return allocate(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t a) {
  return allocate(bytes, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t bytes, std::align_val_t a) {
  return allocate(bytes, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
