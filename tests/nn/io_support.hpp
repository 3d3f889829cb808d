#pragma once

#include <barrier>
#include <cstdint>
#include <exception>
#include <fstream>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <tessera/nn/io/collective.hpp>
#include <thread>
#include <vector>

#include "support/temp_dir.hpp"

namespace tessera::test {

inline void write_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// Runs `f(collective)` as `size` ranks, each a thread, whose collective calls meet. Returns what
/// each rank threw (empty: nothing).
inline std::vector<std::string> run_as_ranks(int size,
                                             const std::function<void(const io::Collective&)>& f) {
  std::barrier meet(size);
  std::mutex mutex;
  std::vector<std::int64_t> total;
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  const auto sum = [&](std::span<std::int64_t> values) {
    meet.arrive_and_wait();
    {
      const std::lock_guard lock(mutex);
      total.resize(std::max(total.size(), values.size()));
      for (std::size_t i = 0; i < values.size(); ++i) total[i] += values[i];
    }
    meet.arrive_and_wait();
    std::copy_n(total.begin(), values.size(), values.begin());
    meet.arrive_and_wait();
    const std::lock_guard lock(mutex);
    total.clear();
  };
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        f(io::Collective{rank, size, sum});
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  }
  threads.clear();
  return errors;
}

}  // namespace tessera::test
