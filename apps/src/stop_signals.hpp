#pragma once

#include <csignal>

namespace tessera::app {

/// Exit code of a job that a signal stopped.
inline constexpr int kExitPreempted = 75;

/// While alive, SIGTERM, SIGINT and SIGUSR1 ask for a stop at the end of what is at hand.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;

  /// Whether this process got one. Others may not have; what follows is to be agreed on.
  static bool requested();

 private:
  static constexpr int kSignals[] = {SIGTERM, SIGINT, SIGUSR1};
  void (*previous_[3])(int) = {};
};

}  // namespace tessera::app
