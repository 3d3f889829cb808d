#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera::io {

/// Bounds of a number (or of each in a list), or the only texts that are allowed.
struct SettingRule {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices = {};
};

/// Settings of a program: each one a variable of the program with a dotted key, a default and a
/// line of help.
///
///     TrainOptions options;              // holds the defaults
///     Settings settings;
///     settings.add("train.steps", options.steps, "Optimiser steps.", {.min = 1});
///     settings.load("run.toml");
///     settings.set("train.steps", "500");  // the command line goes over the file
///     settings.save("RUN/config.toml");    // every setting; loading it gives the same values
///
/// Values go into the variables at once; the variables must outlive this object.
class Settings {
 public:
  using Rule = SettingRule;

  /// Declares a setting; the variable's value is the default. The type decides what is accepted; an
  /// integer is taken for a floating setting, never the reverse. `T` is bool, int, std::int64_t,
  /// std::uint64_t, double, std::string, or a vector of std::int64_t, double or std::string. Throws
  /// UsageError when the key exists or is no dotted list of words.
  template <class T>
  Settings& add(const std::string& key, T& value, const std::string& help, const Rule& rule = {}) {
    return declare(key, &value, help, rule);
  }

  /// Takes the values of a TOML file. Throws IoError when it cannot be read, UsageError with file,
  /// line and advice when it is not TOML, names an unknown key (with the most similar one), or has
  /// a value of a wrong type; nothing has changed then.
  void load(const std::string& path);
  /// The same from text; `origin` stands for the file name in messages.
  void load_text(const std::string& text, const std::string& origin);
  /// Sets one value from text as typed on a command line: `true`, `1e-3`, `a text`, lists as
  /// `1,2,3`.
  void set(std::string_view key, const std::string& text);

  /// Whether a file or `set` gave the value.
  bool given(std::string_view key) const;
  bool has(std::string_view key) const;
  /// The value as `set` accepts it.
  std::string get(std::string_view key) const;

  struct Entry {
    std::string key;
    std::string help;
    std::string type;      ///< "integer", "list of numbers"...
    std::string standard;  ///< the default as `set` accepts it
    std::vector<std::string> choices;
    bool flag = false;  ///< a truth value
  };
  /// All settings in the order in which they were declared.
  std::vector<Entry> entries() const;

  /// Every setting as TOML with its help as comment. Loading it restores each value exactly.
  std::string toml() const;
  /// Writes `toml()` to a file, whole or not at all.
  void save(const std::string& path) const;

 private:
  using Target = std::variant<bool*,
                              int*,
                              std::int64_t*,
                              std::uint64_t*,
                              double*,
                              std::string*,
                              std::vector<std::int64_t>*,
                              std::vector<double>*,
                              std::vector<std::string>*>;
  using Value = std::variant<bool,
                             int,
                             std::int64_t,
                             std::uint64_t,
                             double,
                             std::string,
                             std::vector<std::int64_t>,
                             std::vector<double>,
                             std::vector<std::string>>;
  struct Setting {
    std::string key;
    std::string help;
    Rule rule;
    Target target;
    std::string standard;
    bool given = false;
  };

  Settings& declare(const std::string& key,
                    Target target,
                    const std::string& help,
                    const Rule& rule);
  Setting& find(std::string_view key);
  const Setting& find(std::string_view key) const;
  std::vector<std::string> keys() const;

  std::vector<Setting> settings_;
};

}  // namespace tessera::io
