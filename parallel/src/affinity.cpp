#include "affinity.hpp"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <fstream>
#include <tessera/core/error.hpp>
#include <thread>

namespace tessera::parallel {

CoreSet own_cores() {
  CoreSet cores{};
  constexpr int kCores = static_cast<int>(cores.size() * 64);
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int c = 0; c < std::min(kCores, CPU_SETSIZE); ++c) {
      if (CPU_ISSET(c, &set))
        cores[static_cast<std::size_t>(c / 64)] |= std::uint64_t{1} << (c % 64);
    }
  }
  if (count(cores) == 0) {
    const int n = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    for (int c = 0; c < std::min(n, kCores); ++c)
      cores[static_cast<std::size_t>(c / 64)] |= std::uint64_t{1} << (c % 64);
  }
  return cores;
}

int count(const CoreSet& cores) {
  int n = 0;
  for (const std::uint64_t word : cores) n += std::popcount(word);
  return n;
}

std::string text_of(const CoreSet& cores) {
  const auto has = [&](std::size_t c) {
    return c < cores.size() * 64 && ((cores[c / 64] >> (c % 64)) & 1) != 0;
  };
  std::string text;
  for (std::size_t c = 0; c < cores.size() * 64; ++c) {
    if (!has(c)) continue;
    std::size_t last = c;
    while (has(last + 1)) ++last;
    text += str(text.empty() ? "" : ", ", c);
    if (last > c) text += str(last > c + 1 ? "-" : ", ", last);
    c = last;
  }
  return text;
}

double cpu_quota(const std::string& root) {
  double quota = 0;
  double period = 0;
  std::string word;
  if (std::ifstream v2(root + "/cpu.max"); v2 >> word >> period) {
    if (word == "max") return 0;
    quota = std::atof(word.c_str());
  } else {
    std::ifstream(root + "/cpu/cpu.cfs_quota_us") >> quota;
    std::ifstream(root + "/cpu/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

std::int64_t memory_quota(const std::string& root) {
  constexpr double kUnlimited = 1e18;  // what v1 writes is close to 2^63
  std::string word;
  if (!(std::ifstream(root + "/memory.max") >> word)) {
    std::ifstream(root + "/memory/memory.limit_in_bytes") >> word;
  }
  const double bytes = std::atof(word.c_str());
  return bytes > 0 && bytes < kUnlimited ? static_cast<std::int64_t>(bytes) : 0;
}

}  // namespace tessera::parallel
