#include "io/codecs.hpp"

#include <blosc.h>
#include <lz4.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <tessera/nn/io/data_error.hpp>

namespace tessera::io {
namespace {

using Bytes = std::vector<std::byte>;

[[noreturn]] void fail(const std::string& where, const std::string& problem) {
  throw DataError(str(where, ": damaged chunk (", problem, ")."));
}

/// Room for what a stream gives: grows with it up to a limit.
class Output {
 public:
  Output(const std::string& where, std::int64_t input, std::int64_t limit)
      : where_(where), limit_(static_cast<std::size_t>(limit)) {
    bytes_.resize(std::min(limit_ + 1, 4 * static_cast<std::size_t>(input) + 64));
  }
  std::byte* at() { return bytes_.data() + used_; }
  std::size_t room() {
    if (used_ == bytes_.size()) {
      if (used_ > limit_) fail(where_, "it holds more than its size");
      bytes_.resize(std::min(limit_ + 1, 2 * bytes_.size()));
    }
    return bytes_.size() - used_;
  }
  void add(std::size_t bytes) { used_ += bytes; }
  Bytes take() {
    if (used_ > limit_) fail(where_, "it holds more than its size");
    bytes_.resize(used_);
    return std::move(bytes_);
  }

 private:
  const std::string& where_;
  std::size_t limit_;
  std::size_t used_ = 0;
  Bytes bytes_;
};

/// zlib or gzip, the latter also of several members.
Bytes inflate_all(const std::string& where, const Bytes& in, std::int64_t limit) {
  z_stream stream = {};
  constexpr int kEitherHeader = MAX_WBITS + 32;
  if (inflateInit2(&stream, kEitherHeader) != Z_OK)
    throw OutOfMemory("inflate: no memory for the state of zlib.");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(in.data()));
  stream.avail_in = static_cast<uInt>(in.size());
  Output out(where, std::ssize(in), limit);
  for (;;) {
    const auto room = static_cast<uInt>(std::min<std::size_t>(out.room(), 1 << 30));
    stream.next_out = reinterpret_cast<Bytef*>(out.at());
    stream.avail_out = room;
    const int status = inflate(&stream, Z_NO_FLUSH);
    out.add(room - stream.avail_out);
    if (status == Z_STREAM_END) {
      if (stream.avail_in == 0) return out.take();
      if (inflateReset(&stream) != Z_OK) fail(where, "zlib cannot unpack it");
    } else if (status != Z_OK) {
      fail(where, status == Z_BUF_ERROR ? "it is cut off" : "zlib cannot unpack it");
    }
  }
}

Bytes unzstd(const std::string& where, const Bytes& in, std::int64_t limit) {
  const std::unique_ptr<ZSTD_DCtx, std::size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                        ZSTD_freeDCtx);
  if (!context) throw OutOfMemory("zstd: no memory for the state of zstd.");
  // The window that a frame asks for is allocated: not much more than its content can be.
  int window = 23;
  while (window < 31 && (std::int64_t{1} << window) < limit) ++window;
  ZSTD_DCtx_setParameter(context.get(), ZSTD_d_windowLogMax, window);
  ZSTD_inBuffer source = {in.data(), in.size(), 0};
  Output out(where, std::ssize(in), limit);
  for (;;) {
    const std::size_t room = out.room();
    ZSTD_outBuffer target = {out.at(), room, 0};
    const std::size_t status = ZSTD_decompressStream(context.get(), &target, &source);
    if (ZSTD_isError(status) != 0) fail(where, ZSTD_getErrorName(status));
    out.add(target.pos);
    if (source.pos == source.size && target.pos < target.size) {
      if (status != 0) fail(where, "it is cut off");
      return out.take();
    }
  }
}

Bytes unblosc(const std::string& where, const Bytes& in, std::int64_t limit) {
  std::size_t size = 0;
  if (in.size() < BLOSC_MIN_HEADER_LENGTH ||
      blosc_cbuffer_validate(in.data(), in.size(), &size) != 0)
    fail(where, "no valid blosc header");
  if (size > static_cast<std::size_t>(limit)) fail(where, "it holds more than its size");
  // No codec inside packs better than this.
  constexpr std::size_t kRatio = 65536;
  if (size / kRatio > in.size()) fail(where, "its header promises too much");
  Bytes out(size);
  if (size > 0 && blosc_decompress_ctx(in.data(), out.data(), size, 1) != static_cast<int>(size))
    fail(where, "blosc cannot unpack it");
  return out;
}

Bytes unlz4(const std::string& where, const Bytes& in, std::int64_t limit) {
  if (in.size() < 4) fail(where, "it is cut off");
  std::uint32_t size = 0;
  std::memcpy(&size, in.data(), 4);
  constexpr std::size_t kRatio = 255;
  if (size > static_cast<std::uint64_t>(limit) || size / kRatio > in.size())
    fail(where, "it promises more than its size");
  Bytes out(size);
  const int got = LZ4_decompress_safe(reinterpret_cast<const char*>(in.data() + 4),
                                      reinterpret_cast<char*>(out.data()),
                                      static_cast<int>(in.size() - 4), static_cast<int>(size));
  if (got != static_cast<int>(size)) fail(where, "lz4 cannot unpack it");
  return out;
}

Bytes check_crc(const std::string& where, Bytes in) {
  if (in.size() < 4) fail(where, "it is cut off");
  std::uint32_t expected = 0;
  std::memcpy(&expected, in.data() + in.size() - 4, 4);
  in.resize(in.size() - 4);
  if (crc32c(in.data(), in.size()) != expected) fail(where, "its checksum differs");
  return in;
}

Bytes unshuffle(const Bytes& in, std::int64_t element) {
  Bytes out = in;  // what is left beyond whole elements stays
  const auto size = static_cast<std::size_t>(element);
  const std::size_t count = in.size() / size;
  for (std::size_t b = 0; b < size; ++b)
    for (std::size_t i = 0; i < count; ++i) out[i * size + b] = in[b * count + i];
  return out;
}

}  // namespace

std::uint32_t crc32c(const std::byte* bytes, std::size_t count) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> t = {};
    for (std::uint32_t i = 0; i < t.size(); ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ ((value & 1) != 0 ? 0x82f63b78u : 0u);
      t[i] = value;
    }
    return t;
  }();
  std::uint32_t sum = ~0u;
  for (std::size_t i = 0; i < count; ++i)
    sum = sum >> 8 ^ table[(sum ^ static_cast<std::uint32_t>(bytes[i])) & 255];
  return ~sum;
}

std::vector<std::byte> decode(const std::string& where,
                              const std::vector<BytesCodec>& codecs,
                              std::vector<std::byte> bytes,
                              std::int64_t size) {
  // What one codec hands to another may be longer than the chunk by headers and checksums.
  constexpr std::int64_t kMargin = 4096;
  for (std::size_t k = codecs.size(); k-- > 0;) {
    const std::int64_t limit = k == 0 ? size : size + size / 8 + kMargin;
    switch (codecs[k].kind) {
      case BytesCodec::Kind::kInflate:
        bytes = inflate_all(where, bytes, limit);
        break;
      case BytesCodec::Kind::kBlosc:
        bytes = unblosc(where, bytes, limit);
        break;
      case BytesCodec::Kind::kZstd:
        bytes = unzstd(where, bytes, limit);
        break;
      case BytesCodec::Kind::kLz4:
        bytes = unlz4(where, bytes, limit);
        break;
      case BytesCodec::Kind::kCrc32c:
        bytes = check_crc(where, std::move(bytes));
        break;
      case BytesCodec::Kind::kShuffle:
        bytes = unshuffle(bytes, codecs[k].element);
        break;
    }
  }
  if (std::ssize(bytes) != size) fail(where, str("it holds ", bytes.size(), " bytes, not ", size));
  return bytes;
}

}  // namespace tessera::io
