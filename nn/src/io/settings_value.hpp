#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tessera::io::settings {

using Scalar = std::variant<bool, std::int64_t, double, std::string>;

/// A key of a TOML file with its value: one scalar or a list of them.
struct Item {
  std::string key;  // dotted
  std::int64_t line = 0;
  bool is_list = false;
  std::vector<Scalar> values;
};

/// All keys of a TOML document. Throws UsageError with origin and line on text that is not TOML,
/// and on values other than truth values, numbers, texts and lists of them.
std::vector<Item> parse_toml(const std::string& text, const std::string& origin);

/// The value of an item, of text as on a command line; both throw UsageError saying what is
/// expected.
template <class T>
T from_item(const Item& item);
template <class T>
T from_text(const std::string& text);
/// The opposite ways; from_text(to_text(x)) == x, and likewise through TOML.
template <class T>
std::string to_text(const T& value);
template <class T>
std::string to_toml(const T& value);
template <class T>
std::string type_name();

/// Throws UsageError unless `text` survives TOML (it must be UTF-8).
void check_text(const std::string& text);

}  // namespace tessera::io::settings
