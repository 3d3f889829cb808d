#include "io/compress.hpp"

#include <zlib.h>
#include <zstd.h>

#include <limits>
#include <tessera/core/error.hpp>

namespace tessera::io {
namespace {

std::vector<std::byte> gzip(const std::vector<std::byte>& bytes, int level) {
  z_stream stream = {};
  constexpr int kGzip = 15 + 16;  // the largest window, with gzip's header
  if (deflateInit2(&stream, level, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw OutOfMemory("zarr: a chunk cannot be compressed (no memory for it).");
  std::vector<std::byte> out;
  std::vector<std::byte> block(1 << 16);
  std::size_t given = 0;
  int status = Z_OK;
  while (status != Z_STREAM_END) {
    if (stream.avail_in == 0) {
      // zlib counts in 32 bits.
      const std::size_t n = std::min<std::size_t>(bytes.size() - given, 1u << 30);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data() + given));
      stream.avail_in = static_cast<uInt>(n);
      given += n;
    }
    stream.next_out = reinterpret_cast<Bytef*>(block.data());
    stream.avail_out = static_cast<uInt>(block.size());
    status = deflate(&stream, given == bytes.size() ? Z_FINISH : Z_NO_FLUSH);
    out.insert(out.end(), block.begin(), block.end() - stream.avail_out);
  }
  deflateEnd(&stream);
  return out;
}

std::vector<std::byte> zstd(const std::vector<std::byte>& bytes, int level) {
  std::vector<std::byte> out(ZSTD_compressBound(bytes.size()));
  const std::size_t n = ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), level);
  if (ZSTD_isError(n) != 0)
    throw OutOfMemory(str("zarr: a chunk cannot be compressed (", ZSTD_getErrorName(n), ")."));
  out.resize(n);
  return out;
}

}  // namespace

std::vector<std::byte> compressed(std::vector<std::byte> bytes,
                                  ZarrOptions::Codec codec,
                                  int level) {
  switch (codec) {
    case ZarrOptions::Codec::kGzip:
      return gzip(bytes, level);
    case ZarrOptions::Codec::kZstd:
      return zstd(bytes, level);
    default:
      return bytes;
  }
}

}  // namespace tessera::io
