#pragma once

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <tessera/core/error.hpp>
#include <vector>

extern char** environ;

// A peer's program that answers commands, so that it and a benchmark take turns; and what a step
// adds to a process's memory.
namespace tessera::bench {

/// Bytes of an entry of /proc/self/status.
inline std::int64_t status(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    std::int64_t kib = 0;
    if (word == key && file >> kib) return kib * 1024;
  }
  return 0;
}

/// What `step` adds to the peak of this process.
template <class Step>
std::int64_t added_memory(Step&& step) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts again from here
  const std::int64_t before = status("VmRSS:");
  step();
  return status("VmHWM:") - before;
}

inline std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> list;
  for (std::string& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  return list;
}

/// A program that answers each line with one line.
class Server {
 public:
  explicit Server(std::vector<std::string> words) {
    int down[2], up[2];
    if (pipe(down) != 0 || pipe(up) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, down[0], 0);
    posix_spawn_file_actions_adddup2(&actions, up[1], 1);
    for (const int end : {down[0], down[1], up[0], up[1]})
      posix_spawn_file_actions_addclose(&actions, end);
    if (posix_spawnp(&pid_, words[0].c_str(), &actions, nullptr, pointers(words).data(), environ))
      pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(down[0]);
    close(up[1]);
    to_ = fdopen(down[1], "w");
    from_ = fdopen(up[0], "r");
  }
  ~Server() {
    if (to_ != nullptr) std::fclose(to_);
    if (from_ != nullptr) std::fclose(from_);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Empty when the program is gone.
  std::string read() {
    char line[256];
    return from_ != nullptr && std::fgets(line, sizeof line, from_) != nullptr ? line : "";
  }
  std::string ask(const std::string& line) {
    std::fprintf(to_, "%s\n", line.c_str());
    std::fflush(to_);
    return read();
  }

 private:
  pid_t pid_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
};

struct Timing {
  double seconds = 0;
  double loss = 0;
};

inline Timing timed(Server& peer, const std::string& command) {
  std::istringstream words(peer.ask(command));
  std::string name;
  Timing t;
  if (!(words >> name >> t.seconds >> name >> t.loss))
    throw Error(str("benchmark: the peer did not answer '", command, "'."));
  return t;
}

template <class F>
Timing timed(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  const double loss = f();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), loss};
}

/// The peer's script, started by the interpreter in TESSERA_PYTHON.
class Peer {
 public:
  explicit Peer(const std::string& script) {
    const char* python = std::getenv("TESSERA_PYTHON");
    const char* folder = std::getenv("TESSERA_PEERS");
    script_ = {python != nullptr ? python : "python3",
               str(folder != nullptr ? folder : "benchmarks/peers", "/", script)};
  }
  std::vector<std::string> command(const std::string& words) const {
    std::vector<std::string> list = script_;
    std::istringstream stream(words);
    for (std::string word; stream >> word;) list.push_back(word);
    return list;
  }
  /// Starts `serve THREADS`; says so and returns nothing where there is no PyTorch.
  Server* serve(int threads) {
    server_.emplace(command(str("serve ", threads)));
    const std::string line = server_->read();
    if (line.rfind("version ", 0) == 0) {
      name_ = "PyTorch " + line.substr(8, line.find_last_not_of("\n") - 7);
      return &*server_;
    }
    server_.reset();
    std::printf("peer skipped: no PyTorch in %s (set TESSERA_PYTHON to an interpreter with it)\n",
                script_[0].c_str());
    return nullptr;
  }
  bool takes_part() const { return server_.has_value(); }
  const std::string& name() const { return name_; }

 private:
  std::vector<std::string> script_;
  std::string name_ = "no peer";
  std::optional<Server> server_;
};

}  // namespace tessera::bench
