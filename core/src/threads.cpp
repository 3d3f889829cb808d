#include <algorithm>
#include <cstdlib>
#include <tessera/core/denormals.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/threads.hpp>
#include <thread>

namespace tessera {

namespace {

int initial_threads() {
  if (const char* text = std::getenv("TESSERA_THREADS")) {
    const int n = std::atoi(text);
    if (n < 1)
      throw UsageError(
          str("TESSERA_THREADS: '", text, "' is not a number of threads. Use 1 or more."));
    return n;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int& threads() {
  static int count = initial_threads();
  return count;
}

ProgressFunction progress = nullptr;

}  // namespace

int thread_count() { return threads(); }
void set_thread_count(int count) { threads() = std::max(1, count); }
void set_progress_function(ProgressFunction f) { progress = f; }
void poll_progress() {
  if (progress == nullptr) return;
  const Denormals kept(false);
  progress();
}

}  // namespace tessera
