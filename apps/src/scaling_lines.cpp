#include "scaling_lines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <tessera/nn/io/data_error.hpp>
#include <tuple>

namespace tessera::app {
namespace {

using Json = nlohmann::json;

/// Reads fields of one line; errors name the line.
class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  [[noreturn]] void refuse(const std::string& problem) const {
    throw DataError(str("report: ", where_, " ", problem,
                        ". Give the lines that tessera bench scaling prints."));
  }
  const Json& field(const char* key) const {
    const auto it = json_.find(key);
    if (it == json_.end()) refuse(str("has no \"", key, "\""));
    return *it;
  }
  std::string text(const char* key) const {
    if (!field(key).is_string()) refuse(str("has a \"", key, "\" that is not a text"));
    return field(key).get<std::string>();
  }
  double number(const char* key, double least) const {
    const Json& value = field(key);
    if (!value.is_number() || !(value.get<double>() >= least) || value.get<double>() > 1e18)
      refuse(str("has a \"", key, "\" that is no number of at least ", least));
    return value.get<double>();
  }
  std::int64_t count(const char* key, std::int64_t least) const {
    if (!field(key).is_number_integer()) refuse(str("has a \"", key, "\" that is not an integer"));
    return static_cast<std::int64_t>(number(key, static_cast<double>(least)));
  }

 private:
  const Json& json_;
  std::string where_;
};

ScalingLine parse(const std::string& text, const std::string& where) {
  const Json json = Json::parse(text, nullptr, false);
  const Reader r(json, where);
  if (!json.is_object()) r.refuse("is not a JSON object");
  if (r.text("benchmark") != "scaling") r.refuse("is of another benchmark");
  ScalingLine line;
  line.model = r.text("model");
  line.mode = r.text("mode");
  if (line.mode != "strong" && line.mode != "weak") r.refuse("is neither strong nor weak");
  line.size = r.text("size");
  line.mesh = r.text("mesh");
  line.precision = r.text("precision");
  line.version = r.text("version");
  line.width = r.count("width", 1);
  line.ranks = r.count("ranks", 1);
  line.nodes = r.count("nodes", 1);
  line.threads = r.count("threads", 1);
  line.cores_per_node = r.count("cores_per_node", 0);
  line.voxels = r.count("voxels", 1);
  line.sent_bytes = r.count("sent_bytes", 0);
  line.peak_bytes = r.count("peak_bytes", 0);
  line.seconds = r.number("seconds", std::numeric_limits<double>::min());
  line.seconds_low = r.number("seconds_low", 0.0);
  line.seconds_high = r.number("seconds_high", 0.0);
  line.exposed_seconds = r.number("exposed_seconds", 0.0);
  line.cpu_seconds = r.number("cpu_seconds", 0.0);
  line.wait_cpu_seconds = r.number("wait_cpu_seconds", 0.0);
  const Json& exposed = r.field("exposed");
  if (!exposed.is_object()) r.refuse("has an \"exposed\" that is not an object");
  const Reader axes(exposed, where);
  for (const auto& [axis, seconds] : exposed.items())
    line.exposed[axis] = axes.number(axis.c_str(), 0.0);
  return line;
}

double rate(const ScalingLine& line) { return static_cast<double>(line.voxels) / line.seconds; }

}  // namespace

std::vector<ScalingLine> read_scaling_lines(const std::vector<std::string>& paths) {
  std::vector<ScalingLine> lines;
  for (const std::string& path : paths) {
    std::ifstream in(path);
    if (!in) throw IoError(str("report: ", path, " cannot be read. Check the name."));
    std::string text;
    for (int number = 1; std::getline(in, text); ++number) {
      if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
      lines.push_back(parse(text, str(path, ":", number)));
    }
    if (in.bad()) throw IoError(str("report: reading ", path, " failed."));
  }
  if (lines.empty()) {
    throw DataError("report: the files hold no lines. Run tessera bench scaling with --out first.");
  }
  return lines;
}

std::vector<ScalingSeries> scaling_series(const std::vector<ScalingLine>& lines) {
  std::map<std::string, std::map<std::pair<std::int64_t, std::string>, std::vector<ScalingLine>>>
      groups;
  for (const ScalingLine& line : lines) {
    const std::string size = line.mode == "weak"
                                 ? line.size + " per rank"
                                 : fmt::format("{}, {} elements", line.size, line.voxels);
    groups[fmt::format("{} {}, {}, {} channels, {}, version {}", line.model, line.mode, size,
                       line.width, line.precision, line.version)][{line.ranks, line.mesh}]
        .push_back(line);
  }
  std::vector<ScalingSeries> result;
  for (auto& [title, by_ranks] : groups) {
    ScalingSeries series{title, {}};
    for (auto& [key, repeats] : by_ranks) {
      std::sort(repeats.begin(), repeats.end(),
                [](const ScalingLine& a, const ScalingLine& b) { return a.seconds < b.seconds; });
      series.points.push_back({.line = repeats[(repeats.size() - 1) / 2]});
    }
    const ScalingPoint* base = &series.points.front();
    for (const ScalingPoint& p : series.points)
      if (p.line.ranks == base->line.ranks && rate(p.line) > rate(base->line)) base = &p;
    const ScalingLine first = base->line;
    for (ScalingPoint& p : series.points) {
      p.speed_up = rate(p.line) / rate(first);
      p.efficiency =
          p.speed_up * static_cast<double>(first.ranks) / static_cast<double>(p.line.ranks);
      for (const ScalingPoint& other : series.points)
        if (other.line.ranks == p.line.ranks && rate(other.line) > rate(p.line)) p.fastest = false;
    }
    result.push_back(std::move(series));
  }
  return result;
}

}  // namespace tessera::app
