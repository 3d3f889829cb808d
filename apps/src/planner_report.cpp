#include "planner_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/nn/io/jsonl.hpp>
#include <tessera/nn/io/text_table.hpp>

#include "bench_mesh.hpp"
#include "panels.hpp"

namespace tessera::app {
namespace {

using Row = std::vector<std::string>;

std::string milliseconds(double seconds) { return fmt::format("{:.4g}", 1e3 * seconds); }

std::string axes_text(const Proposal& p) {
  std::string text;
  for (const auto& [axes, sent] : p.by_axes)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", axes, format_bytes(sent.bytes));
  return text.empty() ? "-" : text;
}

/// A column `shard` and one `tensor`.
Row spread_of(const Proposal& p) {
  return {p.spread.shard == "none" ? "-" : p.spread.shard,
          p.spread.tensor.empty() ? "-" : p.spread.tensor};
}

Row row_of(const Proposal& p) {
  const Row spread = spread_of(p);
  return {mesh_text(p.axes),
          spread[0],
          spread[1],
          format_bytes(p.memory),
          format_bytes(p.sent.bytes),
          std::to_string(p.sent.messages),
          axes_text(p),
          milliseconds(p.time.seconds()),
          milliseconds(p.time.compute),
          milliseconds(p.time.exposed),
          milliseconds(p.time.hidden),
          fmt::format("{:.1f} %", 100.0 * p.efficiency)};
}

std::string scaling_table(const std::vector<Proposal>& rows, std::int64_t memory) {
  std::vector<Row> table = {{"ranks", "mesh", "shard", "tensor", "memory", "sent", "messages",
                             "ms / step", "exposed", "efficiency"}};
  bool any = false;
  for (const Proposal& p : rows) {
    const bool large = memory > 0 && p.memory > memory;
    any = any || large;
    const Row spread = spread_of(p);
    table.push_back({fmt::format("{}{}", p.ranks, large ? "*" : ""), mesh_text(p.axes), spread[0],
                     spread[1], format_bytes(p.memory), format_bytes(p.sent.bytes),
                     std::to_string(p.sent.messages), milliseconds(p.time.seconds()),
                     fmt::format("{:.1f} %", 100.0 * p.time.exposed / p.time.seconds()),
                     fmt::format("{:.1f} %", 100.0 * p.efficiency)});
  }
  return io::text_table(table, 1) + (any ? "*: needs more memory than a rank has\n" : "");
}

nlohmann::ordered_json json_of(const Proposal& p) {
  nlohmann::ordered_json by_axes = nlohmann::ordered_json::object();
  for (const auto& [axes, sent] : p.by_axes)
    by_axes[axes] = {{"messages", sent.messages}, {"bytes", sent.bytes}};
  return {{"mesh", mesh_text(p.axes)},
          {"shard", p.spread.shard},
          {"tensor", p.spread.tensor},
          {"ranks", p.ranks},
          {"peak_bytes", p.memory},
          {"messages", p.sent.messages},
          {"bytes", p.sent.bytes},
          {"by_axes", by_axes},
          {"seconds", p.time.seconds()},
          {"compute_seconds", p.time.compute},
          {"exposed_seconds", p.time.exposed},
          {"hidden_seconds", p.time.hidden},
          {"efficiency", p.efficiency}};
}

nlohmann::ordered_json json_of(const std::vector<Proposal>& all) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Proposal& p : all) list.push_back(json_of(p));
  return list;
}

void write_json(const ProposalReport& r) {
  const nlohmann::ordered_json json = {{"model", r.model.name},
                                       {"size", size_text(r.model.size)},
                                       {"batch", r.model.batch},
                                       {"latency_seconds", r.network.latency},
                                       {"bytes_per_second", r.network.bandwidth},
                                       {"network", r.network.source},
                                       {"one", json_of(r.one)},
                                       {"proposals", json_of(r.proposals)},
                                       {"strong", json_of(r.strong)},
                                       {"weak", json_of(r.weak)}};
  io::write_text(r.request.json, json.dump(1) + '\n');
}

void draw(const ProposalReport& r) {
  std::vector<Panel> panels = {panel_by_ranks("Predicted step", "ms", true),
                               panel_by_ranks("Predicted efficiency", "%", false),
                               panel_by_ranks("Memory of the largest rank", "MiB", true),
                               panel_by_ranks("Sent by the busiest rank in a step", "MiB", true)};
  const auto add = [&](const std::vector<Proposal>& rows, const std::string& label) {
    for (Panel& p : panels) p.series.push_back({.label = label, .x = {}, .y = {}});
    for (const Proposal& row : rows) {
      const double mib = 1.0 / 1048576.0;
      const double values[] = {1e3 * row.time.seconds(), 100.0 * row.efficiency,
                               mib * static_cast<double>(row.memory),
                               mib * static_cast<double>(row.sent.bytes)};
      for (std::size_t i = 0; i < panels.size(); ++i) {
        panels[i].series.back().x.push_back(row.ranks);
        panels[i].series.back().y.push_back(values[i]);
      }
    }
  };
  add(r.strong, fmt::format("strong, {}", size_text(r.model.size)));
  add(r.weak, fmt::format("weak, {} per rank", size_text(r.weak_part)));
  panels[1].series.push_back({.label = "", .x = {1.0}, .y = {0.0}});  // zero belongs to it
  save_panels(panels, r.request.pictures, "plan");
}

}  // namespace

void print_proposals(const ProposalReport& r) {
  std::string text = fmt::format("{} of {}, batch {}, on {} ranks", r.model.name,
                                 size_text(r.model.size), r.model.batch, r.request.ranks);
  if (r.memory > 0) text += fmt::format(" of {}", format_bytes(r.memory));
  text += "\nops measured on one rank here: ";
  bool first = true;
  for (const auto& [size, seconds] : r.costs.measured()) {
    text += fmt::format("{}{} in {} ms", first ? "" : ", ", size_text(size), milliseconds(seconds));
    first = false;
  }
  text += fmt::format("\nnetwork, {}: {:.2f} us per message, {:.2f} GB/s\n", r.network.source,
                      1e6 * r.network.latency, 1e-9 * r.network.bandwidth);
  text += fmt::format("one rank alone: {} ms per step, {}\n\n", milliseconds(r.one.time.seconds()),
                      format_bytes(r.one.memory));
  std::vector<Row> rows = {{"mesh", "shard", "tensor", "memory / rank", "sent / rank", "messages",
                            "by axis", "ms / step", "compute", "exposed", "hidden", "efficiency"}};
  const auto shown = std::min<std::size_t>(r.proposals.size(),
                                           static_cast<std::size_t>(std::max(r.request.rows, 1)));
  for (std::size_t i = 0; i < shown; ++i) rows.push_back(row_of(r.proposals[i]));
  text += io::text_table(rows, 3);
  Choice unsaid = r.proposals[0];  // what the command does not say yet
  if (unsaid.spread.shard == r.model.spread.shard) unsaid.spread.shard = "none";
  if (unsaid.spread.tensor == r.model.spread.tensor) unsaid.spread.tensor.clear();
  text += fmt::format(
      "{} of {} proposals fit{}\n\nmpiexec -n {} tessera {} --mesh {}\n", r.proposals.size(),
      r.considered,
      shown < r.proposals.size() ? fmt::format(", the fastest {} are shown", shown) : "",
      r.request.ranks, r.model.command, choice_text(unsaid));
  if (!r.strong.empty()) {
    text += fmt::format("\nstrong scaling, predicted: {}, batch {}\n", size_text(r.model.size),
                        r.model.batch) +
            scaling_table(r.strong, r.memory);
  }
  if (!r.weak.empty()) {
    text += fmt::format("\nweak scaling, predicted: {} per rank, batch {}\n",
                        size_text(r.weak_part), r.model.batch) +
            scaling_table(r.weak, r.memory);
  }
  if (!r.request.json.empty()) write_json(r);
  if (!r.request.pictures.empty()) draw(r);
  std::cout << text << std::flush;
}

}  // namespace tessera::app
