#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <tessera/nn/io/collective.hpp>

#include "io_support.hpp"

namespace tessera::test {

/// One directory for all ranks.
class SharedDir {
 public:
  explicit SharedDir(const io::Collective& ranks) : ranks_(ranks) {
    const auto id = ranks.broadcast(ranks.rank == 0 ? static_cast<std::int64_t>(::getpid()) : 0);
    path_ =
        (std::filesystem::temp_directory_path() / ("tessera-ranks-" + std::to_string(id))).string();
    if (ranks.rank == 0) std::filesystem::create_directories(path_);
    ranks.barrier();
  }
  ~SharedDir() {
    ranks_.barrier();
    if (ranks_.rank == 0) std::filesystem::remove_all(path_);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  io::Collective ranks_;
  std::string path_;
};

}  // namespace tessera::test
