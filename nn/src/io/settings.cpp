#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>
#include <tessera/core/error.hpp>
#include <tessera/nn/io/settings.hpp>
#include <tessera/nn/io/suggest.hpp>
#include <type_traits>
#include <utility>

#include "io/posix_file.hpp"
#include "io/settings_value.hpp"

namespace tessera::io {
namespace {

using settings::from_text;
using settings::to_text;
using settings::to_toml;
using settings::type_name;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

bool is_key(const std::string& key) {
  bool in_word = false;
  for (const char c : key) {
    if (c == '.' ? !in_word : !is_word(c)) return false;
    in_word = c != '.';
  }
  return in_word;
}

template <class T>
void check_rule(const T& value, const Settings::Rule& rule) {
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    const auto number = static_cast<double>(value);
    const bool bounded = std::isfinite(rule.min) || std::isfinite(rule.max);
    if (number < rule.min || number > rule.max || (bounded && std::isnan(number))) {
      if (!std::isfinite(rule.max)) throw UsageError(str("must be at least ", rule.min));
      if (!std::isfinite(rule.min)) throw UsageError(str("must be at most ", rule.max));
      throw UsageError(str("must be between ", rule.min, " and ", rule.max));
    }
  } else if constexpr (std::is_same_v<T, std::string>) {
    settings::check_text(value);
    if (rule.choices.empty() ||
        std::find(rule.choices.begin(), rule.choices.end(), value) != rule.choices.end())
      return;
    throw UsageError(str("must be one of ", fmt::format("{}", fmt::join(rule.choices, ", "))) +
                     "." + did_you_mean(value, rule.choices));
  } else if constexpr (!std::is_same_v<T, bool>) {
    for (const auto& element : value) check_rule(element, rule);
  }
}

std::string table_of(const std::string& key) {
  const std::size_t dot = key.rfind('.');
  return dot == std::string::npos ? "" : key.substr(0, dot);
}

}  // namespace

Settings& Settings::declare(const std::string& key,
                            Target target,
                            const std::string& help,
                            const Rule& rule) {
  if (!is_key(key))
    throw UsageError(str("settings: \"", key, "\" is no key. Use words separated by dots."));
  for (const Setting& other : settings_) {
    const auto inside = [](const std::string& a, const std::string& b) {
      return b.rfind(a + ".", 0) == 0;
    };
    if (other.key == key || inside(other.key, key) || inside(key, other.key))
      throw UsageError(str("settings: \"", key, "\" collides with \"", other.key, "\"."));
  }
  Setting setting{key, help, rule, target, {}};
  setting.standard = std::visit([](const auto* value) { return to_text(*value); }, target);
  settings_.push_back(std::move(setting));
  return *this;
}

std::vector<std::string> Settings::keys() const {
  std::vector<std::string> list;
  for (const Setting& s : settings_) list.push_back(s.key);
  return list;
}

const Settings::Setting& Settings::find(std::string_view key) const {
  for (const Setting& s : settings_)
    if (s.key == key) return s;
  throw UsageError(str("unknown setting \"", key, "\".", did_you_mean(key, keys())));
}

Settings::Setting& Settings::find(std::string_view key) {
  return const_cast<Setting&>(std::as_const(*this).find(key));
}

bool Settings::has(std::string_view key) const {
  return std::any_of(settings_.begin(), settings_.end(),
                     [&](const Setting& s) { return s.key == key; });
}

bool Settings::given(std::string_view key) const { return find(key).given; }

std::string Settings::get(std::string_view key) const {
  return std::visit([](const auto* value) { return to_text(*value); }, find(key).target);
}

void Settings::set(std::string_view key, const std::string& text) {
  Setting& setting = find(key);
  std::visit(
      [&](auto* target) {
        using T = std::remove_pointer_t<decltype(target)>;
        try {
          T value = from_text<T>(text);
          check_rule(value, setting.rule);
          *target = std::move(value);
        } catch (const UsageError& e) {
          throw UsageError(str("setting \"", key, "\": ", e.what(), " (given: \"", text, "\")."));
        }
      },
      setting.target);
  setting.given = true;
}

void Settings::load(const std::string& path) { load_text(read_text_file(path), path); }

void Settings::load_text(const std::string& text, const std::string& origin) {
  // Everything is checked before anything is changed.
  std::vector<std::pair<Setting*, Value>> values;
  for (const settings::Item& item : settings::parse_toml(text, origin)) {
    const auto where = [&] { return str(origin, ":", item.line, ": "); };
    try {
      Setting& setting = find(item.key);
      values.emplace_back(&setting, std::visit(
                                        [&](auto* target) -> Value {
                                          using T = std::remove_pointer_t<decltype(target)>;
                                          T value = settings::from_item<T>(item);
                                          check_rule(value, setting.rule);
                                          return value;
                                        },
                                        setting.target));
    } catch (const UsageError& e) {
      if (has(item.key))
        throw UsageError(str(where(), "setting \"", item.key, "\": ", e.what(), "."));
      throw UsageError(where() + e.what());
    }
  }
  for (auto& [setting, value] : values) {
    std::visit(
        [&v = value](auto* target) {
          *target = std::move(std::get<std::remove_pointer_t<decltype(target)>>(v));
        },
        setting->target);
    setting->given = true;
  }
}

std::vector<Settings::Entry> Settings::entries() const {
  std::vector<Entry> list;
  for (const Setting& s : settings_) {
    std::visit(
        [&](const auto* target) {
          using T = std::remove_cv_t<std::remove_pointer_t<decltype(target)>>;
          list.push_back(
              {s.key, s.help, type_name<T>(), s.standard, s.rule.choices, std::is_same_v<T, bool>});
        },
        s.target);
  }
  return list;
}

std::string Settings::toml() const {
  // Keys of the outermost table come first, as TOML wants it; then the tables by first appearance.
  std::vector<std::string> tables = {""};
  for (const Setting& s : settings_)
    if (std::find(tables.begin(), tables.end(), table_of(s.key)) == tables.end())
      tables.push_back(table_of(s.key));
  std::string text;
  for (const std::string& table : tables) {
    if (!table.empty()) text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", table);
    for (const Setting& s : settings_) {
      if (table_of(s.key) != table) continue;
      std::istringstream help(s.help);
      for (std::string line; std::getline(help, line);) text += fmt::format("# {}\n", line);
      const std::string word = table.empty() ? s.key : s.key.substr(table.size() + 1);
      text += fmt::format("{} = {}\n", word,
                          std::visit([](const auto* v) { return to_toml(*v); }, s.target));
    }
  }
  return text;
}

void Settings::save(const std::string& path) const { write_file_atomically(path, toml()); }

}  // namespace tessera::io
