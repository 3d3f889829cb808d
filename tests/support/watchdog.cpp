#include "support/watchdog.hpp"

#include <cstdio>
#include <cstdlib>

#include "support/ranks.hpp"

namespace tessera::test {

namespace {

double limit_from_environment() {
  const char* text = std::getenv("TESSERA_TEST_TIMEOUT");
  const double seconds = text ? std::atof(text) : 0.0;
  return seconds > 0.0 ? seconds : 120.0;
}

}  // namespace

Watchdog& Watchdog::instance() {
  static Watchdog watchdog;
  return watchdog;
}

Watchdog::Watchdog() : limit_(limit_from_environment()), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::begin(const std::string& test_case) {
  {
    const std::lock_guard lock(mutex_);
    test_case_ = test_case;
    deadline_ = std::chrono::steady_clock::now() +
                std::chrono::duration_cast<std::chrono::steady_clock::duration>(limit_);
    running_ = true;
  }
  changed_.notify_one();
}

void Watchdog::end() {
  const std::lock_guard lock(mutex_);
  running_ = false;
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (!running_) {
      changed_.wait(lock);
    } else if (std::chrono::steady_clock::now() >= deadline_) {
      std::fprintf(stderr,
                   "[rank %d] test case '%s' still runs after %g s (a hang?). Raise "
                   "TESSERA_TEST_TIMEOUT if it is "
                   "only slow.\n",
                   launch_rank(), test_case_.c_str(), limit_.count());
      std::_Exit(124);
    } else {
      changed_.wait_until(lock, deadline_);
    }
  }
}

}  // namespace tessera::test
