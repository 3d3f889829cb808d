#pragma once

// Runs the program `tessera`, alone or under mpiexec, on a small field of its own.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <tessera/nn/io/jsonl.hpp>
#include <tessera/nn/io/netcdf.hpp>
#include <tessera/nn/io/snapshots.hpp>
#include <thread>
#include <vector>

#include "support/temp_dir.hpp"

namespace tessera::test {

/// A directory with a small relief on a globe, removed at the end.
class TemporaryFolder : public TempDir {
 public:
  TemporaryFolder() {
    constexpr std::int64_t kRows = 49;  // one more than a multiple of the factor
    constexpr std::int64_t kColumns = 96;
    io::NetcdfDimension lat = {.name = "lat", .size = kRows};
    io::NetcdfDimension lon = {.name = "lon", .size = kColumns};
    for (std::int64_t i = 0; i < kRows; ++i) lat.coordinates.push_back(-90.0 + 3.75 * double(i));
    for (std::int64_t i = 0; i < kColumns; ++i) lon.coordinates.push_back(3.75 * double(i));
    lon.attributes["units"] = std::string("degrees_east");
    io::NetcdfWriter writer(data(), {lat, lon}, {{.name = "relief", .dims = {"lat", "lon"}}});
    std::vector<float> values;
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t j = 0; j < kColumns; ++j) {
        const double x = 0.0654498 * double(j);
        const double y = 0.0654498 * double(i);
        values.push_back(
            static_cast<float>(2000 * std::sin(x) * std::cos(y) + 300 * std::sin(9 * x + 5 * y)));
      }
    }
    const Box whole = Box::whole({kRows, kColumns});
    writer.write_box("relief", whole,
                     View::dense(values.data(), DType::kFloat32, {kRows, kColumns}));
    writer.commit();
  }
  std::string data() const { return *this / "relief.nc"; }
  /// Files in it beside the relief.
  std::ptrdiff_t files() const { return std::ssize(list()) - 1; }
};

using Words = std::vector<std::string>;

/// Starts a program; its output goes to `output`. `prepare` runs in the new process before.
inline pid_t start(const Words& words,
                   const std::string& output,
                   const std::function<void()>& prepare = {}) {
  const pid_t child = fork();
  if (child == 0) {
    const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(file, 1);
    dup2(file, 2);
    if (prepare) prepare();
    std::vector<char*> arguments;
    for (const std::string& w : words) arguments.push_back(const_cast<char*>(w.c_str()));
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  return child;
}

constexpr int kHangs = -2;

/// Exit code of a program; kHangs when it does not end in time (then it is killed).
inline int wait_for(pid_t child, double seconds = 120) {
  const auto start = std::chrono::steady_clock::now();
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    const std::chrono::duration<double> age = std::chrono::steady_clock::now() - start;
    if (age.count() > seconds) {
      kill(child, SIGTERM);
      // A launcher that has a stopped process below it would go on waiting for that.
      for (int i = 0; i < 500 && waitpid(child, &status, WNOHANG) == 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return kHangs;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct Outcome {
  int code;
  std::string output;

  int count(const std::string& text) const {
    int n = 0;
    for (auto at = output.find(text); at != std::string::npos; at = output.find(text, at + 1)) ++n;
    return n;
  }
  bool says(const std::string& text) const { return count(text) > 0; }
};

/// The command line that runs the program on `ranks` processes; 0: without mpiexec.
inline Words command(int ranks, const Words& words) {
  Words all;
  if (ranks > 0) all = {TESSERA_MPIEXEC, "-n", std::to_string(ranks)};
  all.push_back(TESSERA_PROGRAM);
  all.insert(all.end(), words.begin(), words.end());
  return all;
}
/// The same on two processes, of which process `special` has further environment variables.
inline Words command_with_environment(int special, const Words& environment, const Words& words) {
  Words all = {TESSERA_MPIEXEC};
  for (int rank = 0; rank < 2; ++rank) {
    if (rank > 0) all.push_back(":");
    all.insert(all.end(), {"-n", "1"});
    if (rank == special) all.insert(all.end(), environment.begin(), environment.end());
    all.push_back(TESSERA_PROGRAM);
    all.insert(all.end(), words.begin(), words.end());
  }
  return all;
}

inline Outcome run(const TemporaryFolder& at,
                   const Words& words,
                   const std::function<void()>& prepare = {}) {
  const int code = wait_for(start(words, at / "output", prepare));
  return {code, read_file(at / "output")};
}
/// Runs the program on `ranks` processes; 0: without mpiexec.
inline Outcome tessera(const TemporaryFolder& at, int ranks, const Words& words) {
  return run(at, command(ranks, words));
}
/// The same, words divided by spaces.
inline Outcome program(const TemporaryFolder& at, const std::string& line, int ranks = 0) {
  std::istringstream in(line);
  return tessera(at, ranks, {std::istream_iterator<std::string>(in), {}});
}

inline Words train(const TemporaryFolder& at, const std::string& out, const Words& more = {}) {
  Words words = {"train",     "unet", "--data",        at.data(), "--holdout", "0,90",
                 "--crop",    "32",   "--batch",       "2",       "--base",    "4",
                 "--blocks",  "1",    "--multipliers", "1,2",     "--steps",   "6",
                 "--dropout", "0.1",  "--out",         at / out,  "--lr",      "1e-2"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Paths of a run's checkpoints, oldest first.
inline std::vector<std::string> checkpoints(const std::string& run) {
  return io::Snapshots({.directory = run + "/checkpoints"}, {}).list();
}
/// Names of things that were not finished, in a run and among its checkpoints.
inline std::vector<std::string> unfinished(const std::string& run) {
  std::vector<std::string> names;
  for (const std::string& at : {run, run + "/checkpoints"}) {
    std::error_code error;  // a training may be at work there
    std::filesystem::directory_iterator it(at, error);
    for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (name.find(".tmp-") != std::string::npos) names.push_back(name);
    }
  }
  return names;
}

inline std::vector<double> losses(const TemporaryFolder& at, const std::string& run) {
  return io::read_json_lines(at / run + "/metrics.jsonl", {"loss"})[0];
}

}  // namespace tessera::test
