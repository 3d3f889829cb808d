#include <iomanip>
#include <sstream>
#include <tessera/parallel/stats.hpp>

namespace tessera::parallel {

CommCounters& CommCounters::operator+=(const CommCounters& other) {
  calls += other.calls;
  messages += other.messages;
  bytes += other.bytes;
  wait_seconds += other.wait_seconds;
  overlapped_seconds += other.overlapped_seconds;
  return *this;
}

CommCounters CommStats::point_to_point() const {
  CommCounters sum = (*this)[CallKind::kSend];
  sum += (*this)[CallKind::kRecv];
  sum += (*this)[CallKind::kExchange];
  return sum;
}

CommCounters CommStats::total() const {
  CommCounters sum;
  for (const CommCounters& counters : kinds) sum += counters;
  return sum;
}

std::string CommStats::str() const {
  std::ostringstream out;
  out << std::left << std::setw(16) << "kind" << std::right << std::setw(10) << "calls"
      << std::setw(12) << "messages" << std::setw(16) << "bytes" << std::setw(12) << "wait s"
      << std::setw(14) << "overlapped s"
      << "\n"
      << std::fixed << std::setprecision(4);
  const auto row = [&](const char* label, const CommCounters& c) {
    out << std::left << std::setw(16) << label << std::right << std::setw(10) << c.calls
        << std::setw(12) << c.messages << std::setw(16) << c.bytes << std::setw(12)
        << c.wait_seconds << std::setw(14) << c.overlapped_seconds << "\n";
  };
  for (int k = 0; k < kCallKinds; ++k) {
    const auto kind = static_cast<CallKind>(k);
    if ((*this)[kind].calls > 0) row(name(kind), (*this)[kind]);
  }
  row("total", total());
  return std::move(out).str();
}

}  // namespace tessera::parallel
