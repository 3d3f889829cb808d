#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tessera/core/error.hpp>
#include <tessera/core/mesh.hpp>
#include <tessera/nn/io/jsonl.hpp>

#include "io/posix_file.hpp"

namespace tessera::io {
namespace {

const char* not_finite(double v) { return std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf"; }

std::string value_text(const JsonValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, double>) {
          if (!std::isfinite(v)) return fmt::format("\"{}\"", not_finite(v));
          std::string text = fmt::format("{:.17g}", v);
          // A reader that tells integers from numbers shall see a number.
          if (text.find_first_of(".e") == std::string::npos) text += ".0";
          return text;
        } else if constexpr (std::is_same_v<T, std::string>) {
          return nlohmann::json(v).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
        } else {
          return fmt::format("{}", v);
        }
      },
      value);
}

/// The field as a number, also when it was not finite.
std::optional<double> number_of(const nlohmann::json& object, const std::string& field) {
  const auto found = object.find(field);
  if (found == object.end()) return std::nullopt;
  if (found->is_number()) return found->get<double>();
  if (found->is_string()) {
    const std::string text = found->get<std::string>();
    if (text == "nan") return std::nan("");
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
  }
  return std::nullopt;
}

/// Calls f(object, offset behind its line) for each whole line up to the first broken one, while f
/// returns true.
template <class F>
void for_each_line(const std::string& text, F&& f) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) return;
    const auto object =
        nlohmann::json::parse(text.begin() + static_cast<std::ptrdiff_t>(at),
                              text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    if (!object.is_object() || !f(object, end + 1)) return;
    at = end + 1;
  }
}

bool exists(const std::string& path) {
  try {
    File::open(path);
    return true;
  } catch (const IoError&) {
    return false;
  }
}

}  // namespace

struct JsonLines::State {
  File file;
  std::int64_t size = 0;
};

JsonLines::JsonLines(JsonLines&&) noexcept = default;
JsonLines::~JsonLines() = default;

JsonLines::JsonLines(const std::string& path, std::int64_t keep_to_step) {
  if (process().rank != 0) return;
  std::int64_t kept = 0;
  if (keep_to_step >= 0 && exists(path)) {
    for_each_line(read_text_file(path), [&](const nlohmann::json& object, std::size_t end) {
      const auto step = number_of(object, "step");
      if (step && *step > static_cast<double>(keep_to_step)) return false;
      kept = static_cast<std::int64_t>(end);
      return true;
    });
    state_ = std::make_unique<State>(State{File::modify(path), kept});
    state_->file.resize(kept);
  } else {
    state_ = std::make_unique<State>(State{File::create(path), 0});
  }
}

void JsonLines::write(const std::vector<std::pair<std::string, JsonValue>>& fields) {
  if (!state_) return;
  std::string line = "{";
  for (const auto& [name, value] : fields)
    line +=
        fmt::format("{}{}: {}", line.size() > 1 ? ", " : "", value_text(name), value_text(value));
  line += "}\n";
  state_->file.write(line.data(), static_cast<std::int64_t>(line.size()), state_->size);
  state_->size += static_cast<std::int64_t>(line.size());
}

std::vector<std::vector<double>> read_json_lines(const std::string& path,
                                                 const std::vector<std::string>& fields) {
  std::vector<std::vector<double>> columns(fields.size());
  for_each_line(read_text_file(path), [&](const nlohmann::json& object, std::size_t) {
    std::vector<double> row;
    for (const std::string& field : fields)
      if (const auto value = number_of(object, field)) row.push_back(*value);
    if (row.size() == fields.size())
      for (std::size_t i = 0; i < row.size(); ++i) columns[i].push_back(row[i]);
    return true;
  });
  return columns;
}

void write_text(const std::string& path, const std::string& text) {
  write_file_atomically(path, text);
}

void write_json(const std::string& path,
                const std::vector<std::pair<std::string, JsonValue>>& fields) {
  // Values are put in as text, so that numbers keep their 17 digits; the frame is written by hand.
  std::vector<std::string> open;
  std::string text = "{";
  bool first = true;
  const auto add_line = [&](const std::string& line) {
    text += fmt::format("\n{:{}}{}", "", 2 * (open.size() + 1), line);
  };
  for (const auto& [name, value] : fields) {
    std::vector<std::string> outer;
    std::size_t at = 0;
    for (std::size_t dot = name.find('.'); dot != std::string::npos;
         at = dot + 1, dot = name.find('.', at))
      outer.push_back(name.substr(at, dot - at));
    std::size_t common = 0;
    while (common < open.size() && common < outer.size() && open[common] == outer[common]) ++common;
    while (open.size() > common) {
      open.pop_back();
      add_line("}");
    }
    if (!first) text += ',';
    first = false;
    while (open.size() < outer.size()) {
      add_line(fmt::format("{}: {{", value_text(outer[open.size()])));
      open.push_back(outer[open.size()]);
    }
    add_line(fmt::format("{}: {}", value_text(name.substr(at)), value_text(value)));
  }
  while (!open.empty()) {
    open.pop_back();
    add_line("}");
  }
  write_file_atomically(path, text + "\n}\n");
}

}  // namespace tessera::io
