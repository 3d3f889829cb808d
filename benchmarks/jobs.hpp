#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "measure.hpp"

// Jobs of one or several processes that a benchmark starts itself and lets take turns. Each process
// of a job blocks in read() between its turns, so it leaves the cores to the other jobs.
namespace tessera::bench {

/// A folder of files that are gone at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "bench.XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder: " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// This program, started once more as `ranks` processes with `arguments`; `environment` holds
/// "NAME=value".
class Job {
 public:
  Job(int ranks,
      const std::vector<std::string>& arguments,
      const std::vector<std::string>& environment) {
    for (int r = 0; r < ranks; ++r) commands_.push_back(make_pipe(std::to_string(r)));
    reply_ = make_pipe("reply");
    std::array<char, 4096> self{};
    if (readlink("/proc/self/exe", self.data(), self.size() - 1) < 0)
      throw std::runtime_error("the path of this program is unknown");
    std::vector<std::string> words = {"mpiexec.mpich", "-n",       std::to_string(ranks),
                                      self.data(),     "--worker", folder_.path().string()};
    words.insert(words.end(), arguments.begin(), arguments.end());
    child_ = fork();
    if (child_ != 0) return;
    for (std::string setting : environment) putenv(strdup(setting.c_str()));
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    argv[0] = const_cast<char*>("mpiexec");
    execvp(argv[0], argv.data());
    _exit(127);
  }
  /// Ends the job.
  ~Job() {
    for (const int fd : commands_) close(fd);
    close(reply_);
    if (child_ > 0) waitpid(child_, nullptr, 0);
  }
  Job(const Job&) = delete;

  /// Gives all processes a line and returns the first one's answer; empty when the job has ended.
  std::string run(const std::string& line) {
    for (const int fd : commands_) {
      const std::string text = line + "\n";
      if (write(fd, text.data(), text.size()) < 0) throw std::runtime_error("a job has no pipe");
    }
    std::string answer;
    while (true) {
      pollfd waiting{reply_, POLLIN, 0};
      if (::poll(&waiting, 1, 200) > 0) {
        char c = 0;
        while (read(reply_, &c, 1) == 1) {
          if (c == '\n') return answer;
          answer += c;
        }
      } else if (waitpid(child_, nullptr, WNOHANG) == child_) {
        child_ = -1;
        return {};
      }
    }
  }

 private:
  int make_pipe(const std::string& name) {
    const std::string path = (folder_.path() / name).string();
    if (mkfifo(path.c_str(), 0600) != 0) throw std::runtime_error("no pipe " + path);
    return open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  }

  TemporaryFolder folder_;
  std::vector<int> commands_;
  int reply_ = -1;
  pid_t child_ = -1;
};

/// The other side: process `rank` of a job whose pipes lie in `folder` answers lines with f(line)
/// until the job is ended.
template <class F>
void serve(const std::string& folder, int rank, F&& f) {
  std::ifstream commands(folder + "/" + std::to_string(rank));
  std::ofstream reply(folder + "/reply");
  std::string line;
  while (std::getline(commands, line)) {
    const std::string answer = f(line);
    if (rank == 0) reply << answer << std::endl;
  }
}

/// Median, and the order statistics that hold the median of the population with at least 95 %.
struct Interval95 {
  double median, low, high;

  explicit Interval95(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t n = values.size();
    median = bench::median(values);
    // The number of values below the population's median is binomial(n, 1/2).
    double probability = std::ldexp(1.0, -static_cast<int>(n)), tail = 0;
    std::size_t k = 0;
    while (k < n / 2 && tail + probability <= 0.025) {
      tail += probability;
      probability = probability * static_cast<double>(n - k) / static_cast<double>(k + 1);
      ++k;
    }
    const std::size_t cut = k == 0 ? 0 : k - 1;
    low = values[cut];
    high = values[n - 1 - cut];
  }
};

}  // namespace tessera::bench
