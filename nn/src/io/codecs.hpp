#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::io {

/// What turns the bytes of a chunk into those of a file.
struct BytesCodec {
  enum class Kind : std::uint8_t { kInflate, kBlosc, kZstd, kLz4, kCrc32c, kShuffle };
  Kind kind = Kind::kInflate;
  std::int64_t element = 1;  ///< of kShuffle
};

/// Undoes `codecs` (in the order of writing) for a chunk of `size` bytes. Throws DataError
/// beginning with `where` when the bytes are damaged or are not that many; memory stays within a
/// few times `size` and grows with what there really is.
std::vector<std::byte> decode(const std::string& where,
                              const std::vector<BytesCodec>& codecs,
                              std::vector<std::byte> bytes,
                              std::int64_t size);

/// CRC-32C (Castagnoli).
std::uint32_t crc32c(const std::byte* bytes, std::size_t count);

}  // namespace tessera::io
