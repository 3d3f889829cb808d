#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <tessera/core/mesh.hpp>
#include <tessera/nn/io/progress.hpp>

namespace tessera::io {
namespace {

constexpr double kRedraw = 0.1;  // seconds
constexpr int kBarLength = 28;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto s = static_cast<std::int64_t>(std::llround(std::min(seconds, 1e15)));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

Progress::Progress(std::int64_t total, const ProgressOptions& options)
    : total_(total), options_(options), silent_(process().rank != 0) {
  if (!options_.out) options_.out = &std::cerr;
  if (!options_.clock) options_.clock = seconds_now;
  bar_ = options_.bar.value_or(::isatty(STDERR_FILENO) != 0);
  start_ = options_.clock();
}

Progress::~Progress() {
  if (open_line_) *options_.out << std::endl;
}

void Progress::update(std::int64_t done, const std::string& note) {
  if (silent_) return;
  const double now = options_.clock();
  const bool due = !any_shown_ || now - shown_ >= (bar_ ? kRedraw : options_.interval);
  if (due || done >= total_) show(done, note, now);
}

void Progress::show(std::int64_t done, const std::string& note, double now) {
  any_shown_ = true;
  shown_ = now;
  const double elapsed = now - start_;
  const double rate = elapsed > 0 ? static_cast<double>(done - options_.first) / elapsed : 0.0;
  const double left = rate > 0 ? static_cast<double>(total_ - done) / rate : std::nan("");
  const double share =
      total_ > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0)
                 : 1.0;
  const std::string speed = rate > 0 && rate < 1 ? fmt::format("{:.2f} s/step", 1 / rate)
                                                 : fmt::format("{:.2f} steps/s", rate);
  const std::string label = options_.label.empty() ? "" : options_.label + " ";
  const std::string tail = note.empty() ? "" : "  " + note;
  const std::string time =
      done >= total_ ? "took " + format_seconds(elapsed) : format_seconds(left) + " left";
  if (!bar_) {
    *options_.out << fmt::format("{}{}/{} ({:.0f} %)  {}  {}{}", label, done, total_, 100 * share,
                                 speed, time, tail)
                  << std::endl;
    return;
  }
  const int full = static_cast<int>(std::lround(share * kBarLength));
  // To the start of the line; what was longer before is erased.
  *options_.out << fmt::format("\r{}[{}{}] {}/{}  {}  {}{}\033[K", label,
                               std::string(static_cast<std::size_t>(full), '#'),
                               std::string(static_cast<std::size_t>(kBarLength - full), '.'), done,
                               total_, speed, time, tail)
                << std::flush;
  open_line_ = true;
  if (done >= total_) {
    *options_.out << std::endl;
    open_line_ = false;
  }
}

}  // namespace tessera::io
