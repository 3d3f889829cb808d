#include "io/inflate.hpp"

#include <zlib.h>

#include <algorithm>
#include <tessera/nn/io/data_error.hpp>
#include <vector>

namespace tessera::io {

struct InflateStream::State {
  const File& file;
  std::int64_t offset, bytes, size;
  std::uint32_t crc;
  z_stream stream = {};
  bool open = false;
  std::int64_t taken = 0;     // of the deflated bytes
  std::int64_t position = 0;  // in the unpacked ones
  uLong sum = 0;
  std::vector<unsigned char> buffer = {};

  [[noreturn]] void fail(const char* problem) const {
    throw DataError(str(file.path(), ": a compressed member is damaged (", problem, ")."));
  }
  void rewind() {
    if (open) inflateEnd(&stream);
    stream = {};
    open = inflateInit2(&stream, -MAX_WBITS) == Z_OK;
    if (!open) throw OutOfMemory("inflate: no memory for the state of zlib.");
    taken = 0;
    position = 0;
    sum = crc32(0, nullptr, 0);
  }
  void next(unsigned char* to, std::int64_t wanted) {
    while (wanted > 0) {
      if (stream.avail_in == 0) {
        const std::int64_t more =
            std::min<std::int64_t>(static_cast<std::int64_t>(buffer.size()), bytes - taken);
        if (more > 0) file.read(buffer.data(), more, offset + taken);
        taken += more;
        stream.next_in = buffer.data();
        stream.avail_in = static_cast<uInt>(more);
      }
      const auto room = static_cast<uInt>(std::min<std::int64_t>(wanted, 1 << 30));
      stream.next_out = to;
      stream.avail_out = room;
      const int status = inflate(&stream, Z_NO_FLUSH);
      const uInt got = room - stream.avail_out;
      sum = crc32(sum, to, got);
      to += got;
      wanted -= got;
      position += got;
      if (status == Z_STREAM_END && wanted > 0) fail("it ends early");
      if (status != Z_OK && status != Z_STREAM_END)
        fail(status == Z_BUF_ERROR ? "it is cut off" : "zlib cannot unpack it");
    }
    if (position == size && static_cast<std::uint32_t>(sum) != crc) fail("its checksum differs");
  }
};

InflateStream::InflateStream(
    const File& file, std::int64_t offset, std::int64_t bytes, std::int64_t size, std::uint32_t crc)
    : state_(new State{file, offset, bytes, size, crc}) {
  state_->buffer.resize(
      static_cast<std::size_t>(std::clamp<std::int64_t>(bytes, 1, std::int64_t{1} << 16)));
  state_->rewind();
}

InflateStream::~InflateStream() {
  if (state_->open) inflateEnd(&state_->stream);
}

std::int64_t InflateStream::read(void* to, std::int64_t bytes, std::int64_t offset) {
  State& s = *state_;
  std::int64_t before = s.taken;
  if (offset < s.position) {
    s.rewind();
    before = 0;
  }
  unsigned char scratch[4096];
  while (s.position < offset)
    s.next(scratch, std::min<std::int64_t>(sizeof(scratch), offset - s.position));
  s.next(static_cast<unsigned char*>(to), bytes);
  return s.taken - before;
}

}  // namespace tessera::io
