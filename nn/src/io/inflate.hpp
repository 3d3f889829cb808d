#pragma once

#include <cstdint>
#include <memory>

#include "io/posix_file.hpp"

namespace tessera::io {

/// A deflated part of a file, read forward; going back begins again from its start.
class InflateStream {
 public:
  /// `bytes` from `offset` on hold `size` bytes; `crc` is their CRC-32.
  InflateStream(const File& file,
                std::int64_t offset,
                std::int64_t bytes,
                std::int64_t size,
                std::uint32_t crc);
  ~InflateStream();

  /// Throws DataError on damage. Returns how many bytes of the file were taken.
  std::int64_t read(void* to, std::int64_t bytes, std::int64_t offset);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::io
