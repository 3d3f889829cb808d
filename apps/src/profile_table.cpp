#include "profile_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace tessera::app {
namespace {

/// What happened inside an event without being that event.
struct Inside {
  double ops = 0.0;
  double waits = 0.0;
};

/// For each op of a profile, the ops and waits directly inside. Events of one thread nest.
std::vector<Inside> insides(const std::vector<ProfileEvent>& events) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].kind == ProfileKind::kOp || events[i].kind == ProfileKind::kWait)
      order.push_back(i);
  }
  // An outer event is added after the inner ones: of two that start together it is the later.
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return events[a].start != events[b].start ? events[a].start < events[b].start : a > b;
  });
  std::vector<Inside> found(events.size());
  std::vector<std::size_t> open;
  for (const std::size_t i : order) {
    const ProfileEvent& e = events[i];
    while (!open.empty() && events[open.back()].start + events[open.back()].seconds <= e.start) {
      open.pop_back();
    }
    if (!open.empty()) {
      Inside& outer = found[open.back()];
      (e.kind == ProfileKind::kOp ? outer.ops : outer.waits) += e.seconds;
    }
    open.push_back(i);
  }
  return found;
}

std::string rate_of(const OpCost& op, const kernels::MachinePeak& peak) {
  if (op.seconds <= 0.0) return "";
  const bool counts = op.flops > 0.0;
  const double rate = (counts ? op.flops : op.bytes) / op.seconds;
  if (rate <= 0.0) return "moves nothing";
  const double top = !counts ? peak.bytes_per_second : op.wide ? peak.flops_f64 : peak.flops_f32;
  return fmt::format("{:8.1f} {:<7} {:5.1f} %", rate * 1e-9, counts ? "GFLOP/s" : "GB/s",
                     top > 0.0 ? 100.0 * rate / top : 0.0);
}

}  // namespace

ProfileSummary summarize(const Profile& profile) {
  const std::vector<ProfileEvent>& events = profile.events();
  const std::vector<Inside> inside = insides(events);
  ProfileSummary summary;
  std::map<std::tuple<std::string, std::uint32_t>, OpCost> by_op;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const ProfileEvent& e = events[i];
    if (e.kind == ProfileKind::kWait) summary.wait_seconds += e.seconds;
    if (e.kind != ProfileKind::kOp) continue;
    const std::string& detail = profile.text_of(e.detail);
    OpCost& cost = by_op[{e.name, e.layer != 0 ? e.layer : e.detail}];
    cost.op = e.name;
    cost.where = profile.text_of(e.layer != 0 ? e.layer : e.detail);
    cost.in_layer = e.layer != 0;
    ++cost.calls;
    cost.seconds += std::max(0.0, e.seconds - inside[i].ops - inside[i].waits);
    cost.waited += inside[i].waits;
    cost.flops += e.flops;
    cost.bytes += static_cast<double>(e.bytes);
    cost.wide = detail.starts_with("f64");
  }
  for (auto& [key, cost] : by_op) {
    summary.op_seconds += cost.seconds;
    summary.ops.push_back(std::move(cost));
  }
  std::stable_sort(summary.ops.begin(), summary.ops.end(), [](const OpCost& a, const OpCost& b) {
    return a.seconds + a.waited > b.seconds + b.waited;
  });
  return summary;
}

std::string profile_table(const ProfileSummary& summary,
                          const kernels::MachinePeak& peak,
                          double seconds,
                          std::int64_t steps,
                          std::size_t most) {
  const double n = static_cast<double>(std::max<std::int64_t>(steps, 1));
  std::string text = fmt::format(
      "rank 0, {} steps of {:.2f} ms: computing in ops {:.2f} ms, waiting {:.2f} ms, else {:.2f} "
      "ms\npeaks measured: f32 {:.0f}, f64 {:.0f} GFLOP/s, memory {:.1f} GB/s\n\n"
      "{:<22} {:>7} {:>10} {:>7} {:>11} {:>26}  {}\n",
      steps, 1e3 * seconds / n, 1e3 * summary.op_seconds / n, 1e3 * summary.wait_seconds / n,
      1e3 * std::max(0.0, seconds - summary.op_seconds - summary.wait_seconds) / n,
      peak.flops_f32 * 1e-9, peak.flops_f64 * 1e-9, peak.bytes_per_second * 1e-9, "op", "calls",
      "ms / step", "share", "waiting ms", "rate, of peak", "layer");
  for (std::size_t i = 0; i < std::min(most, summary.ops.size()); ++i) {
    const OpCost& op = summary.ops[i];
    const double total = op.seconds + op.waited;
    text += fmt::format("{:<22} {:>7.6g} {:>10.3f} {:>5.1f} % {:>11.3f} {:>26}  {}\n", op.op,
                        static_cast<double>(op.calls) / n, 1e3 * total / n,
                        seconds > 0.0 ? 100.0 * total / seconds : 0.0, 1e3 * op.waited / n,
                        rate_of(op, peak), op.where.substr(0, 80));
  }
  return text;
}

}  // namespace tessera::app
