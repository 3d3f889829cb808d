#include "io/settings_value.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <tessera/core/error.hpp>
#include <type_traits>
#include <utility>

namespace tessera::io::settings {
namespace {

template <class T>
struct IsList : std::false_type {};
template <class T>
struct IsList<std::vector<T>> : std::true_type {};

std::string line_of(const toml::node& node) { return str(node.source().begin.line); }

Scalar scalar_of(const toml::node& node, const std::string& origin, const std::string& key) {
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_string()) return v->get();
  throw UsageError(str(origin, ":", line_of(node), ": \"", key,
                       "\" is neither a truth value, number or text nor a list of them."));
}

void flatten(const toml::table& table,
             const std::string& prefix,
             const std::string& origin,
             std::vector<Item>& items) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    if (const auto* inner = node.as_table()) {
      flatten(*inner, key + ".", origin, items);
      continue;
    }
    Item item;
    item.key = key;
    item.line = node.source().begin.line;
    if (const auto* list = node.as_array()) {
      item.is_list = true;
      for (const toml::node& element : *list)
        item.values.push_back(scalar_of(element, origin, key));
    } else {
      item.values.push_back(scalar_of(node, origin, key));
    }
    items.push_back(std::move(item));
  }
}

[[noreturn]] void expected(const std::string& type) {
  throw UsageError(str("must be of type ", type));
}

template <class T>
T from_scalar(const Scalar& scalar) {
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::string>) {
    if (const T* v = std::get_if<T>(&scalar)) return *v;
  } else if constexpr (std::is_integral_v<T>) {
    if (const auto* v = std::get_if<std::int64_t>(&scalar)) {
      if (!std::in_range<T>(*v)) throw UsageError("is out of range");
      return static_cast<T>(*v);
    }
  } else {
    if (const auto* v = std::get_if<double>(&scalar)) return *v;
    if (const auto* v = std::get_if<std::int64_t>(&scalar)) {
      constexpr std::int64_t kExact = std::int64_t{1} << 53;
      if (*v > kExact || *v < -kExact) throw UsageError("is not exact as a floating number");
      return static_cast<double>(*v);
    }
  }
  expected(type_name<T>());
}

template <class T>
T parse_scalar(std::string_view text) {
  if constexpr (std::is_same_v<T, std::string>) {
    return std::string(text);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (text == "true" || text == "yes" || text == "on") return true;
    if (text == "false" || text == "no" || text == "off") return false;
    throw UsageError("must be true or false");
  } else {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range) throw UsageError("is out of range");
    if (error != std::errc() || end != text.data() + text.size()) expected(type_name<T>());
    // TOML has no integers beyond 63 bits.
    if constexpr (std::is_same_v<T, std::uint64_t>)
      if (!std::in_range<std::int64_t>(value)) throw UsageError("is out of range");
    return value;
  }
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04X}", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

template <class T>
std::string scalar_text(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return value;
  } else if constexpr (std::is_same_v<T, double>) {
    if (std::isnan(value)) return "nan";
    return fmt::format("{}", value);  // the shortest text that reads back as the same number
  } else {
    return fmt::format("{}", value);
  }
}

template <class T>
std::string scalar_toml(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return quoted(value);
  } else {
    std::string text = scalar_text(value);
    // Without a point or an exponent it would be an integer.
    if (std::is_same_v<T, double> && text.find_first_of(".en") == std::string::npos) text += ".0";
    return text;
  }
}

}  // namespace

std::vector<Item> parse_toml(const std::string& text, const std::string& origin) {
  std::vector<Item> items;
  try {
    flatten(toml::parse(text, origin), "", origin, items);
  } catch (const toml::parse_error& e) {
    throw UsageError(
        str(origin, ":", e.source().begin.line, ": not valid TOML (", e.description(), ")."));
  }
  return items;
}

template <class T>
std::string type_name() {
  if constexpr (IsList<T>::value) {
    using E = typename T::value_type;
    return std::is_same_v<E, std::string> ? "list of texts"
           : std::is_integral_v<E>        ? "list of integers"
                                          : "list of numbers";
  } else if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_integral_v<T>) {
    return "integer";
  } else if constexpr (std::is_same_v<T, double>) {
    return "number";
  } else {
    return "text";
  }
}

template <class T>
T from_item(const Item& item) {
  if (item.is_list != IsList<T>::value) expected(type_name<T>());
  if constexpr (IsList<T>::value) {
    T list;
    for (const Scalar& scalar : item.values)
      list.push_back(from_scalar<typename T::value_type>(scalar));
    return list;
  } else {
    return from_scalar<T>(item.values.front());
  }
}

template <class T>
T from_text(const std::string& text) {
  if constexpr (IsList<T>::value) {
    T list;
    std::string_view rest = text;
    if (rest.size() >= 2 && rest.front() == '[' && rest.back() == ']')
      rest = rest.substr(1, rest.size() - 2);
    while (!rest.empty()) {
      const std::size_t comma = rest.find(',');
      std::string_view word = rest.substr(0, comma);
      while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
      while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
      list.push_back(parse_scalar<typename T::value_type>(word));
      rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    }
    return list;
  } else {
    return parse_scalar<T>(text);
  }
}

template <class T>
std::string to_text(const T& value) {
  if constexpr (IsList<T>::value) {
    std::string text;
    for (const auto& element : value) {
      if (!text.empty()) text += ',';
      text += scalar_text(element);
    }
    return text;
  } else {
    return scalar_text(value);
  }
}

template <class T>
std::string to_toml(const T& value) {
  if constexpr (IsList<T>::value) {
    std::string text = "[";
    for (const auto& element : value) {
      if (text.size() > 1) text += ", ";
      text += scalar_toml(element);
    }
    return text + "]";
  } else {
    return scalar_toml(value);
  }
}

void check_text(const std::string& text) {
  try {
    if (toml::parse("x = " + quoted(text))["x"].value<std::string>() == text) return;
  } catch (const toml::parse_error&) {
  }
  throw UsageError("is not valid UTF-8 text");
}

#define TESSERA_INSTANTIATE(T)                 \
  template T from_item<T>(const Item&);        \
  template T from_text<T>(const std::string&); \
  template std::string to_text<T>(const T&);   \
  template std::string to_toml<T>(const T&);   \
  template std::string type_name<T>();
TESSERA_INSTANTIATE(bool)
TESSERA_INSTANTIATE(int)
TESSERA_INSTANTIATE(std::int64_t)
TESSERA_INSTANTIATE(std::uint64_t)
TESSERA_INSTANTIATE(double)
TESSERA_INSTANTIATE(std::string)
TESSERA_INSTANTIATE(std::vector<std::int64_t>)
TESSERA_INSTANTIATE(std::vector<double>)
TESSERA_INSTANTIATE(std::vector<std::string>)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::io::settings
