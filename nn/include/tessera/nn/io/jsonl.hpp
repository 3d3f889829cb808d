#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::io {

/// A value of a line of metrics.
using JsonValue = std::variant<std::int64_t, double, bool, std::string>;

/// Appends objects, one per line (JSON Lines), in the order in which their fields are given.
/// Numbers have 17 digits, so that they read back as the same bits; values that are not finite
/// become the texts "nan", "inf", "-inf".
///
/// Every line is written at once and whole. Only the first process of the job writes; on the others
/// calls do nothing.
class JsonLines {
 public:
  /// What to keep of a file that exists.
  static constexpr std::int64_t kNothing = -1;

  /// Opens `path`. Lines before the first one whose `step` is above `keep_to_step` stay; that line
  /// and all after it go, and so does a line that is broken because a run was cut off. The default
  /// empties the file. Throws IoError.
  explicit JsonLines(const std::string& path, std::int64_t keep_to_step = kNothing);
  JsonLines(JsonLines&&) noexcept;
  ~JsonLines();

  /// Appends one object. Throws IoError when the disk does not take it.
  void write(const std::vector<std::pair<std::string, JsonValue>>& fields);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// One number of every line of a file of metrics, e.g. `step` and `loss` for a curve; lines that
/// lack one of the fields, or broken ones, are left out. Returns one list per field. Throws IoError
/// when the file cannot be read.
std::vector<std::vector<double>> read_json_lines(const std::string& path,
                                                 const std::vector<std::string>& fields);

/// Writes a small text file, whole or not at all. Throws IoError.
void write_text(const std::string& path, const std::string& text);

/// Writes an object as a small readable JSON file, whole or not at all; keys with dots become
/// nested objects, whose fields must follow each other.
void write_json(const std::string& path,
                const std::vector<std::pair<std::string, JsonValue>>& fields);

}  // namespace tessera::io
