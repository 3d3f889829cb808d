// main() of every test program: Catch2 between the start and the end of the runtime, on any number
// of ranks.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>
#include <tessera/parallel/runtime.hpp>
#include <thread>

#include "support/ranks.hpp"
#include "support/watchdog.hpp"

namespace {

using tessera::test::launch_rank;
using tessera::test::launch_size;
using tessera::test::Watchdog;

/// Failed assertions only, without totals: what ranks other than 0 print.
class FailuresReporter : public Catch::CompactReporter {
 public:
  using Catch::CompactReporter::CompactReporter;
  static std::string getDescription() { return "Failed assertions only"; }
  void testRunEnded(const Catch::TestRunStats& stats) override {
    Catch::StreamingReporterBase<Catch::CompactReporter>::testRunEnded(stats);
  }
};
CATCH_REGISTER_REPORTER("failures", FailuresReporter)

class Listener : public Catch::TestEventListenerBase {
 public:
  using Catch::TestEventListenerBase::TestEventListenerBase;

  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    Watchdog::instance().begin(info.name);
  }

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    Watchdog::instance().end();
    if (launch_size() == 1 || stats.totals.testCases.failed == 0) return;
    // The ranks may no longer be in step: going on would hang, or compare unrelated messages. The
    // pause lets the others print their own failures before the launcher ends them.
    std::cout.flush();
    std::fprintf(stderr, "[rank %d] test case '%s' failed; ending the run on all ranks.\n",
                 launch_rank(), stats.testInfo.name.c_str());
    std::this_thread::sleep_for(std::chrono::seconds(1));
    std::_Exit(1);
  }
};
CATCH_REGISTER_LISTENER(Listener)

int run(int argc, char** argv) {
  Catch::Session session;
  if (const int error = session.applyCommandLine(argc, argv)) return error;
  std::optional<tessera::test::LinePrefix> prefix;
  if (launch_rank() != 0) {
    session.configData().reporterName = "failures";
    prefix.emplace(std::cout, launch_rank());
  }
  const tessera::Runtime runtime(argc, argv);
  const int failures = session.run();
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "[rank %d] %s\n", launch_rank(), e.what());
    return 1;
  }
}
