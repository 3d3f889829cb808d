#include "bench_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <tessera/core/memory.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/io/jsonl.hpp>
#include <tessera/nn/io/text_table.hpp>

#include "panels.hpp"
#include "scaling_lines.hpp"
#include "svg_plot.hpp"

namespace tessera::app {
namespace {

constexpr const char* kHead[] = {"ranks",       "nodes",      "threads", "mesh",
                                 "ms / step",   "from",       "to",      "speed-up",
                                 "efficiency",  "exposed",    "by axis", "ns CPU / element",
                                 "sent / step", "peak / rank"};
constexpr const char* kShares =
    "*: more ranks and threads than cores. They take turns, so time per step says nothing about "
    "scaling;\n   CPU time per element and exposed communication do.\n";

using Row = std::vector<std::string>;

std::string axes_text(const ScalingLine& line) {
  std::string text;
  for (const auto& [axes, seconds] : line.exposed) {
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", axes, 1e3 * seconds);
  }
  return text.empty() ? "-" : text + " ms";
}

Row row_of(const ScalingPoint& p) {
  const ScalingLine& l = p.line;
  return {fmt::format("{}{}", l.ranks, l.shares_cores() ? "*" : ""),
          std::to_string(l.nodes),
          std::to_string(l.threads),
          l.mesh,
          fmt::format("{:.2f}", 1e3 * l.seconds),
          fmt::format("{:.2f}", 1e3 * l.seconds_low),
          fmt::format("{:.2f}", 1e3 * l.seconds_high),
          fmt::format("{:.2f}", p.speed_up),
          fmt::format("{:.0f} %", 100.0 * p.efficiency),
          fmt::format("{:.1f} %", 100.0 * l.exposed_seconds / l.seconds),
          axes_text(l),
          fmt::format("{:.1f}", 1e9 * l.work_per_voxel()),
          format_bytes(l.sent_bytes),
          format_bytes(l.peak_bytes)};
}

std::string text_table(const ScalingSeries& series) {
  std::vector<Row> rows = {Row(std::begin(kHead), std::end(kHead))};
  for (const ScalingPoint& p : series.points) rows.push_back(row_of(p));
  return series.title + '\n' + io::text_table(rows, 0);
}

std::string html_table(const ScalingSeries& series) {
  std::string html = "<h2>" + escaped(series.title) + "</h2>\n<table><tr>";
  for (const char* head : kHead) html += fmt::format("<th>{}</th>", head);
  html += "</tr>\n";
  for (const ScalingPoint& p : series.points) {
    html += "<tr>";
    for (const std::string& cell : row_of(p)) html += "<td>" + escaped(cell) + "</td>";
    html += "</tr>\n";
  }
  return html + "</table>\n";
}

/// A number of each point on a curve, by ranks.
template <class F>
io::PlotSeries curve(const ScalingSeries& series, F&& value) {
  io::PlotSeries line = {.label = series.title, .x = {}, .y = {}};
  for (const ScalingPoint& p : series.points) {
    if (!p.fastest) continue;
    line.x.push_back(static_cast<double>(p.line.ranks));
    line.y.push_back(value(p));
  }
  return line;
}

std::vector<Panel> panels(const std::vector<ScalingSeries>& all) {
  Panel speed =
      panel_by_ranks("Speed-up", "elements per second, relative to the fewest ranks", true);
  Panel efficiency = panel_by_ranks("Efficiency", "%", false);
  Panel exposed = panel_by_ranks("Exposed communication", "% of a step", false);
  Panel work = panel_by_ranks("CPU time without waits", "ns per element of the domain", false);
  for (const ScalingSeries& s : all) {
    speed.series.push_back(curve(s, [](const ScalingPoint& p) { return p.speed_up; }));
    efficiency.series.push_back(curve(s, [](const ScalingPoint& p) { return 100 * p.efficiency; }));
    exposed.series.push_back(curve(
        s, [](const ScalingPoint& p) { return 100 * p.line.exposed_seconds / p.line.seconds; }));
    work.series.push_back(
        curve(s, [](const ScalingPoint& p) { return 1e9 * p.line.work_per_voxel(); }));
  }
  for (Panel* p : {&efficiency, &exposed, &work})
    for (io::PlotSeries& s : p->series) s.label.clear();
  io::PlotSeries ideal = {.label = "ideal", .x = {}, .y = {}};
  for (const io::PlotSeries& s : speed.series) {
    for (const double ranks : s.x) ideal.x.push_back(ranks);
  }
  std::sort(ideal.x.begin(), ideal.x.end());
  for (const double ranks : ideal.x) ideal.y.push_back(ranks / ideal.x.front());
  speed.series.push_back(ideal);
  for (Panel* p : {&efficiency, &exposed, &work}) {
    // Zero belongs to the picture.
    p->series.push_back({.label = "", .x = {ideal.x.front()}, .y = {0.0}});
  }
  return {speed, efficiency, exposed, work};
}

void report(const ReportOptions& options) {
  const std::vector<ScalingSeries> all = scaling_series(read_scaling_lines(options.files));
  bool shares = false;
  std::string tables;
  std::string html =
      "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Scaling</title><style>"
      "body{font:15px sans-serif;margin:2em;max-width:1300px}table{border-collapse:collapse;"
      "margin:1em 0}td,th{border:1px solid #ccc;padding:.25em .6em;text-align:right}svg{max-width:"
      "100%;height:auto}pre{font-size:11px;overflow:auto}</style>\n<h1>Scaling</h1>\n<p>Speed-up: "
      "elements of the domain per second beside the run with the fewest ranks. Exposed: time in "
      "which a rank only waited, mean of the ranks.</p>\n";
  for (const ScalingSeries& s : all) {
    if (!tables.empty()) tables += '\n';
    tables += text_table(s);
    html += html_table(s);
    for (const ScalingPoint& p : s.points) shares = shares || p.line.shares_cores();
  }
  if (shares) {
    tables += kShares;
    html += "<p>" + escaped(kShares) + "</p>\n";
  }
  const std::vector<Panel> drawn = panels(all);
  html += svg_of(drawn) + "<h2>Lines</h2><pre>";
  for (const std::string& path : options.files) {
    std::ifstream in(path);
    html += escaped(std::string(std::istreambuf_iterator<char>(in), {}));
  }
  html += "</pre></html>\n";

  save_panels(drawn, options.out, "scaling");
  io::write_text(options.out + "/scaling.html", html);
  std::cout << tables << std::flush;
}

}  // namespace

int bench_report(const ReportOptions& options) {
  nn::collective(Mesh::world({{"h", process().count}})).together([&] {
    if (process().rank == 0) report(options);
  });
  return 0;
}

}  // namespace tessera::app
