#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace tessera::test {

/// Ends the process with a message naming the running test case once it has run longer than
/// `TESSERA_TEST_TIMEOUT` seconds (default 120): a hang becomes a failure that says where.
class Watchdog {
 public:
  static Watchdog& instance();

  void begin(const std::string& test_case);
  void end();

 private:
  Watchdog();
  ~Watchdog();
  void watch();

  std::chrono::duration<double> limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string test_case_;
  std::chrono::steady_clock::time_point deadline_;
  bool running_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tessera::test
