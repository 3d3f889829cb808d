#include "stop_signals.hpp"

#include <cstddef>
#include <iterator>

namespace tessera::app {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

}  // namespace

StopSignals::StopSignals() {
  stop_requested = 0;
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    previous_[i] = std::signal(kSignals[i], [](int) { stop_requested = 1; });
  }
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < std::size(kSignals); ++i) std::signal(kSignals[i], previous_[i]);
}

bool StopSignals::requested() { return stop_requested != 0; }

}  // namespace tessera::app
