#pragma once

#include <cstdint>
#include <vector>

#include "mpi.hpp"

namespace tessera::parallel {

/// Messages that are waited for together.
class Batch {
 public:
  explicit Batch(mpi::Channel channel) : channel_(channel) {}

  void send(const void* data, std::int64_t bytes, int peer, int tag);
  void recv(void* data, std::int64_t bytes, int peer, int tag);
  /// True when all are done. Throws CommError when a message has another length than expected.
  bool test();
  /// Peers of open receives; of open sends when there are none.
  std::vector<int> missing() const;
  void clear();

  std::int64_t messages() const { return messages_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    std::int64_t bytes;
    int peer;
    bool receives;
  };
  mpi::Channel channel_;
  std::vector<mpi::Handle> handles_;
  std::vector<Entry> entries_;
  std::size_t open_ = 0;
  std::int64_t messages_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace tessera::parallel
