#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <tessera/parallel/transport.hpp>
#include <vector>

namespace tessera::parallel {

/// What this process has communicated with others. Messages and bytes count what it sent, exactly;
/// messages to itself and those of the check mode do not count.
struct CommCounters {
  std::int64_t calls = 0;
  std::int64_t messages = 0;
  std::int64_t bytes = 0;
  double wait_seconds = 0;        ///< spent inside wait()
  double overlapped_seconds = 0;  ///< in flight while this process did something else

  CommCounters& operator+=(const CommCounters& other);
};

struct CommStats {
  std::array<CommCounters, kCallKinds> kinds;
  const CommCounters& operator[](CallKind kind) const {
    return kinds[static_cast<std::size_t>(kind)];
  }
  /// send, recv and exchange together.
  CommCounters point_to_point() const;
  CommCounters total() const;
  /// A table, one row per kind that was used.
  std::string str() const;
};

/// Since the start or the last reset.
CommStats comm_stats();
void reset_comm_stats();

/// The last calls of this process (at most 256), oldest first, as text.
std::vector<std::string> recent_calls();

}  // namespace tessera::parallel
