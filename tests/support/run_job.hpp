// Jobs that a test starts of its own program.
#pragma once

#include <sys/wait.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <string>
#include <tessera/core/error.hpp>

namespace tessera::test {

struct Outcome {
  int code = -1;
  std::string text;

  int count(const std::string& what) const {
    int n = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
      ++n;
    return n;
  }
  bool says(const std::string& what) const { return count(what) > 0; }
};

/// Runs this program again on several processes, with the hidden case `job: SCENARIO` alone.
inline Outcome run_job(int processes,
                       const std::string& scenario,
                       const std::string& environment = "") {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command = str(environment, " ", TESSERA_MPIEXEC, " -n ", processes, " '", self,
                                  "' 'job: ", scenario, "' 2>&1");
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> block;
  while (const std::size_t n = fread(block.data(), 1, block.size(), pipe)) {
    outcome.text.append(block.data(), n);
  }
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

}  // namespace tessera::test
