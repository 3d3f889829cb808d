#include "chrome_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <tessera/core/error.hpp>

namespace tessera::app {
namespace {

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

const char* category(ProfileKind kind) {
  switch (kind) {
    case ProfileKind::kPhase:
      return "phase";
    case ProfileKind::kOp:
      return "op";
    case ProfileKind::kTransfer:
      return "transfer";
    case ProfileKind::kWait:
      break;
  }
  return "wait";
}

/// Rows for calls in flight, so that those of one row do not overlap.
class Rows {
 public:
  int row(const ProfileEvent& e) {
    for (std::size_t r = 0; r < ends_.size(); ++r) {
      if (ends_[r] > e.start) continue;
      ends_[r] = e.start + e.seconds;
      return static_cast<int>(r);
    }
    ends_.push_back(e.start + e.seconds);
    return static_cast<int>(ends_.size()) - 1;
  }
  int count() const { return static_cast<int>(ends_.size()); }

 private:
  std::vector<double> ends_;
};

std::string arguments(const Profile& profile, const ProfileEvent& e) {
  std::string text;
  const auto add = [&](const char* key, const std::string& value) {
    text += fmt::format("{}\"{}\":{}", text.empty() ? "" : ",", key, value);
  };
  if (e.layer != 0) add("layer", quoted(profile.text_of(e.layer)));
  if (e.detail != 0) {
    add(e.kind == ProfileKind::kOp ? "layouts" : "for", quoted(profile.text_of(e.detail)));
  }
  if (e.kind == ProfileKind::kOp || e.kind == ProfileKind::kTransfer) {
    add("bytes", fmt::format("{}", e.bytes));
  }
  if (e.flops > 0.0) {
    add("flops", fmt::format("{:.0f}", e.flops));
    if (e.seconds > 0.0) add("GFLOP/s", fmt::format("{:.1f}", e.flops / e.seconds * 1e-9));
  }
  if (e.sequence != 0) add("call", fmt::format("{}", e.sequence));
  if (e.kind == ProfileKind::kTransfer) {
    std::vector<int> peers;
    for (std::uint32_t i = 0; i < e.peer_count; ++i)
      peers.push_back(profile.peers()[e.first_peer + i].process);
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    add("peers", nlohmann::json(peers).dump());
  }
  return text;
}

}  // namespace

void write_chrome_trace(std::ostream& out, const Profile& profile, int rank) {
  // Sorted by start, outer events before inner ones: some viewers rely on it.
  std::vector<std::size_t> order(profile.events().size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const ProfileEvent& x = profile.events()[a];
    const ProfileEvent& y = profile.events()[b];
    return x.start != y.start ? x.start < y.start : x.seconds > y.seconds;
  });
  constexpr int kMainRow = 1;
  out << fmt::format(
      "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
      "{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{0},\"args\":{{\"name\":\"rank {0}\"}}}},\n"
      "{{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":{0},\"args\":{{\"sort_index\":{0}}}}}"
      ",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{0},\"tid\":{1},\"args\":{{\"name\":"
      "\"ops\"}}}}",
      rank, kMainRow);
  Rows rows;
  for (const std::size_t i : order) {
    const ProfileEvent& e = profile.events()[i];
    const int row = e.kind == ProfileKind::kTransfer ? kMainRow + 1 + rows.row(e) : kMainRow;
    out << fmt::format(
        ",\n{{\"name\":{},\"cat\":\"{}\",\"ph\":\"X\",\"ts\":{:.3f},\"dur\":{:.3f},\"pid\":{},"
        "\"tid\":{},\"args\":{{{}}}}}",
        quoted(e.kind == ProfileKind::kWait ? str("wait for ", e.name) : std::string(e.name)),
        category(e.kind), 1e6 * e.start, 1e6 * e.seconds, rank, row, arguments(profile, e));
    if (e.kind == ProfileKind::kOp) {
      out << fmt::format(
          ",\n{{\"name\":\"memory\",\"ph\":\"C\",\"ts\":{:.3f},\"pid\":{},\"args\":{{\"bytes in "
          "use\":{}}}}}",
          1e6 * (e.start + e.seconds), rank, e.live_bytes);
    }
  }
  for (int r = 0; r < rows.count(); ++r) {
    out << fmt::format(
        ",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":"
        "\"transfers {}\"}}}}",
        rank, kMainRow + 1 + r, r + 1);
  }
  out << "\n]}\n";
}

}  // namespace tessera::app
