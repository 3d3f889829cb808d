#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>

namespace tessera::io {

struct ProgressOptions {
  std::string label = {};
  /// Steps that were done before this run (resumed); they do not count for the rate.
  std::int64_t first = 0;
  /// Seconds between two lines in a log; a bar is redrawn ten times a second.
  double interval = 10.0;
  /// A bar that redraws itself; by default where standard error is a terminal.
  std::optional<bool> bar = {};
  /// Where to write; by default standard error.
  std::ostream* out = nullptr;
  /// Seconds since any origin; by default the clock.
  std::function<double()> clock = {};
};

/// Shows how far a long loop is: a bar with rate and remaining time on a terminal, plain lines now
/// and then in a log. Only the first process of the job shows anything.
class Progress {
 public:
  explicit Progress(std::int64_t total, const ProgressOptions& options = {});
  /// Ends the line of an unfinished bar.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` steps of the total are done; `note` is shown behind ("loss 0.0123"). The last step is
  /// always shown.
  void update(std::int64_t done, const std::string& note = {});

 private:
  void show(std::int64_t done, const std::string& note, double now);

  std::int64_t total_;
  ProgressOptions options_;
  bool silent_;
  bool bar_;
  bool open_line_ = false;
  double start_ = 0.0;
  double shown_ = 0.0;
  bool any_shown_ = false;
};

/// 83 -> "1:23", 3725 -> "1:02:05".
std::string format_seconds(double seconds);

}  // namespace tessera::io
