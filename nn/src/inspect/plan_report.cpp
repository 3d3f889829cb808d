#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/nn/inspect/plan.hpp>
#include <tessera/nn/io/text_table.hpp>

namespace tessera::nn {
namespace {

Traffic largest(const Traffic& a, const Traffic& b) {
  return {std::max(a.messages, b.messages), std::max(a.bytes, b.bytes)};
}

void widen(Dims& to, const Dims& by) {
  while (to.size() < by.size()) to.push_back(0);
  for (int d = 0; d < by.size(); ++d) to[d] = std::max(to[d], by[d]);
}

Traffic sent_by(const RankPlan& plan) {
  const parallel::CommCounters total = plan.sent.total();
  return {total.messages, total.bytes};
}

/// `1,1x1,1`: low and high end per domain dimension; empty where nothing is read.
std::string window_text(const LayerPlan& layer) {
  std::string text;
  bool any = false;
  for (int d = 1; d + 1 < layer.window_lo.size(); ++d) {
    any = any || layer.window_lo[d] > 0 || layer.window_hi[d] > 0;
    text += fmt::format("{}{},{}", d > 1 ? " x " : "", layer.window_lo[d], layer.window_hi[d]);
  }
  return any ? text : "";
}

std::string count_text(std::int64_t n) { return n == 0 ? "" : std::to_string(n); }
std::string bytes_text(std::int64_t n) { return n == 0 ? "" : format_bytes(n); }

std::string coordinates(const std::vector<MeshAxis>& axes, int rank) {
  std::string text;
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    text = fmt::format("{}={}{}{}", axis->name, rank % axis->size, text.empty() ? "" : ",", text);
    rank /= axis->size;
  }
  return text;
}

nlohmann::ordered_json json_of(const Traffic& t) {
  return {{"messages", t.messages}, {"bytes", t.bytes}};
}

nlohmann::ordered_json json_of(const LayerPlan& layer) {
  const auto list = [](const Dims& dims) {
    return std::vector<std::int64_t>(dims.begin(), dims.end());
  };
  return {{"layer", layer.layer},
          {"ops", layer.ops},
          {"layout", layer.layout},
          {"window_lo", list(layer.window_lo)},
          {"window_hi", list(layer.window_hi)},
          {"forward", json_of(layer.forward)},
          {"backward", json_of(layer.backward)},
          {"update", json_of(layer.update)},
          {"live_bytes", layer.live_bytes},
          {"peak_bytes", layer.peak_bytes}};
}

nlohmann::ordered_json json_of(const RankPlan& plan) {
  nlohmann::ordered_json sent = nlohmann::ordered_json::object();
  for (int k = 0; k < parallel::kCallKinds; ++k) {
    const auto kind = static_cast<parallel::CallKind>(k);
    const parallel::CommCounters& c = plan.sent[kind];
    if (c.calls == 0) continue;
    sent[parallel::name(kind)] = {{"calls", c.calls}, {"messages", c.messages}, {"bytes", c.bytes}};
  }
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const LayerPlan& layer : plan.layers) layers.push_back(json_of(layer));
  const Traffic total = sent_by(plan);
  nlohmann::ordered_json by_axes = nlohmann::ordered_json::object();
  for (const auto& [axes, traffic] : plan.by_axes) by_axes[axes] = json_of(traffic);
  return {{"rank", plan.rank},
          {"messages", total.messages},
          {"bytes", total.bytes},
          {"sent", sent},
          {"by_axes", by_axes},
          {"rest_bytes", plan.rest_bytes},
          {"peak_bytes", plan.peak_bytes},
          {"parameter_bytes", plan.parameter_bytes},
          {"layers", layers}};
}

}  // namespace

Traffic Plan::total() const {
  Traffic sum;
  for (const RankPlan& plan : plans) sum += sent_by(plan);
  return sum;
}

const RankPlan& Plan::busiest() const {
  return *std::max_element(plans.begin(), plans.end(), [](const RankPlan& a, const RankPlan& b) {
    return sent_by(a).bytes < sent_by(b).bytes;
  });
}

const RankPlan& Plan::largest() const {
  return *std::max_element(plans.begin(), plans.end(), [](const RankPlan& a, const RankPlan& b) {
    return a.peak_bytes < b.peak_bytes;
  });
}

std::vector<LayerPlan> Plan::layers() const {
  // Ranks run the same program, but one without elements may skip a call: rows meet by name.
  std::vector<LayerPlan> rows;
  for (const RankPlan& plan : plans) {
    for (const LayerPlan& layer : plan.layers) {
      const auto it = std::find_if(rows.begin(), rows.end(),
                                   [&](const LayerPlan& r) { return r.layer == layer.layer; });
      if (it == rows.end()) {
        rows.push_back(layer);
        continue;
      }
      widen(it->window_lo, layer.window_lo);
      widen(it->window_hi, layer.window_hi);
      it->forward = nn::largest(it->forward, layer.forward);
      it->backward = nn::largest(it->backward, layer.backward);
      it->update = nn::largest(it->update, layer.update);
      it->live_bytes = std::max(it->live_bytes, layer.live_bytes);
      it->peak_bytes = std::max(it->peak_bytes, layer.peak_bytes);
    }
  }
  return rows;
}

std::string Plan::table() const {
  std::vector<std::vector<std::string>> rows = {
      {"layer", "ops", "layout", "window", "msgs", "forward", "msgs", "backward", "live", "peak"}};
  for (const LayerPlan& l : layers()) {
    Traffic back = l.backward;
    back += l.update;
    rows.push_back({l.layer.empty() ? "(step)" : l.layer, fmt::format("{}", fmt::join(l.ops, " ")),
                    l.layout, window_text(l), count_text(l.forward.messages),
                    bytes_text(l.forward.bytes), count_text(back.messages), bytes_text(back.bytes),
                    bytes_text(l.live_bytes), format_bytes(l.peak_bytes)});
  }
  std::string text = io::text_table(rows, 4);

  std::vector<std::vector<std::string>> ranks_table = {
      {"rank", "at", "msgs", "sent", "at rest", "peak"}};
  const std::size_t shown = plans.size() <= 16 ? plans.size() : 0;
  for (std::size_t i = 0; i < shown; ++i) {
    const RankPlan& p = plans[i];
    const Traffic t = sent_by(p);
    ranks_table.push_back({std::to_string(p.rank), coordinates(axes, p.rank),
                           std::to_string(t.messages), format_bytes(t.bytes),
                           format_bytes(p.rest_bytes), format_bytes(p.peak_bytes)});
  }
  const auto extreme = [&](const char* label, auto pick) {
    std::int64_t messages = sent_by(plans[0]).messages, bytes = sent_by(plans[0]).bytes;
    std::int64_t rest = plans[0].rest_bytes, peak = plans[0].peak_bytes;
    for (const RankPlan& p : plans) {
      messages = pick(messages, sent_by(p).messages);
      bytes = pick(bytes, sent_by(p).bytes);
      rest = pick(rest, p.rest_bytes);
      peak = pick(peak, p.peak_bytes);
    }
    ranks_table.push_back({label, "", std::to_string(messages), format_bytes(bytes),
                           format_bytes(rest), format_bytes(peak)});
  };
  const auto low = [](std::int64_t a, std::int64_t b) { return std::min(a, b); };
  const auto high = [](std::int64_t a, std::int64_t b) { return std::max(a, b); };
  extreme("least", low);
  extreme("most", high);
  text += '\n' + io::text_table(ranks_table, 2);
  if (static_cast<int>(plans.size()) == ranks) {
    const Traffic sum = total();
    text += fmt::format("all {} ranks: {} messages, {} ({} bytes) sent per step\n", ranks,
                        sum.messages, format_bytes(sum.bytes), sum.bytes);
  } else {
    text += fmt::format("planned: {} ranks that stand for all {}\n", plans.size(), ranks);
  }
  return text;
}

std::string Plan::json() const {
  nlohmann::ordered_json mesh = nlohmann::ordered_json::object();
  for (const MeshAxis& axis : axes) mesh[axis.name] = axis.size;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const LayerPlan& layer : layers()) rows.push_back(json_of(layer));
  nlohmann::ordered_json planned = nlohmann::ordered_json::array();
  for (const RankPlan& plan : plans) planned.push_back(json_of(plan));
  return nlohmann::ordered_json{
      {"mesh", mesh}, {"ranks", ranks}, {"layers", rows}, {"plans", planned}}
      .dump(1);
}

}  // namespace tessera::nn
