#include "io/json_attributes.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <tessera/nn/io/data_error.hpp>

namespace tessera::io {
namespace {

constexpr std::int64_t kSizeLimit = 64 << 20;
constexpr int kDepthLimit = 64;

std::optional<double> number(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_boolean()) return value.get<bool>() ? 1.0 : 0.0;
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (text == "NaN") return NAN;
    if (text == "Infinity") return INFINITY;
    if (text == "-Infinity") return -INFINITY;
  }
  return std::nullopt;
}

}  // namespace

nlohmann::json parse_json(const std::string& where, const std::string& text) {
  try {
    return nlohmann::json::parse(text, [&](int depth, nlohmann::json::parse_event_t, auto&) {
      if (depth > kDepthLimit)
        throw DataError(str(where, ": not usable (JSON deeper than ", kDepthLimit, " levels)."));
      return true;
    });
  } catch (const nlohmann::json::exception& e) {
    throw DataError(str(where, ": damaged (", e.what(), ")."));
  }
}

nlohmann::json parse_json_file(const File& file) {
  if (file.size() > kSizeLimit)
    throw DataError(str(file.path(), ": too large for a description (", file.size(), " bytes)."));
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(text.data(), static_cast<std::int64_t>(text.size()), 0);
  return parse_json(file.path(), text);
}

nlohmann::json parse_json_file(const std::string& path) {
  return parse_json_file(File::open(path));
}

Attributes json_attributes(const nlohmann::json& object) {
  Attributes attributes;
  if (!object.is_object()) return attributes;
  for (const auto& [key, value] : object.items()) {
    if (const auto x = number(value)) {
      attributes[key] = std::vector<double>{*x};
    } else if (value.is_string()) {
      attributes[key] = value.get<std::string>();
    } else if (value.is_array() && !value.empty()) {
      std::vector<double> list;
      std::string lines;
      for (const auto& item : value) {
        if (const auto y = number(item)) list.push_back(*y);
        if (!item.is_string()) continue;
        if (!lines.empty()) lines += '\n';
        lines += item.get_ref<const std::string&>();
      }
      if (list.size() == value.size()) {
        attributes[key] = std::move(list);
      } else if (!lines.empty()) {
        attributes[key] = std::move(lines);
      }
    }
  }
  return attributes;
}

}  // namespace tessera::io
