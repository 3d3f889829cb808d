#pragma once

#include <iosfwd>
#include <tessera/core/profile.hpp>

namespace tessera::app {

/// Writes the profile of `rank` in the trace event format (a JSON object with `traceEvents`; times
/// in microseconds): phases, ops and waits on the main thread, calls in flight on as many rows as
/// overlap, and the memory in use as a counter.
void write_chrome_trace(std::ostream& out, const Profile& profile, int rank);

}  // namespace tessera::app
