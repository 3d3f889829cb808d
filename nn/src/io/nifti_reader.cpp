#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <span>
#include <tessera/nn/io/nifti.hpp>
#include <vector>

#include "io/decoding.hpp"
#include "io/dense_array.hpp"
#include "io/nifti_header.hpp"
#include "io/posix_file.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kBlock = 64 << 10;  // bytes read, or kept of a stream, at a time
// Deflate makes at most this much of a byte.
constexpr std::int64_t kLargestRatio = 1032;

bool is_compressed(const File& file) {
  std::uint8_t mark[2] = {};
  if (file.size() < 2) return false;
  file.read(mark, 2, 0);
  return mark[0] == 0x1f && mark[1] == 0x8b;
}

/// The decompressed bytes of a file by ascending offsets.
class GzipStream {
 public:
  explicit GzipStream(const File& file)
      : file_(file), size_(file.size()), in_(kBlock), out_(kBlock) {
    constexpr int kGzip = 16;
    if (inflateInit2(&z_, kGzip + MAX_WBITS) != Z_OK)
      throw OutOfMemory(str("nifti: no memory to decompress ", file.path(), "."));
  }
  ~GzipStream() { inflateEnd(&z_); }
  GzipStream(const GzipStream&) = delete;

  /// Where the next byte is that can be read.
  std::int64_t position() const { return at_; }
  /// Bytes of the file taken so far.
  std::int64_t taken() const { return from_; }
  /// Copies bytes that begin at position() or later. Returns how many there were.
  std::int64_t read(std::byte* to, std::int64_t offset, std::int64_t bytes) {
    while (at_ < offset) {  // what lies before
      const std::int64_t n = inflate_some(out_.data(), std::min(offset - at_, kBlock));
      if (n == 0) return 0;
    }
    std::int64_t done = 0;
    while (done < bytes) {
      const std::int64_t n = inflate_some(to + done, bytes - done);
      if (n == 0) break;
      done += n;
    }
    return done;
  }
  /// Throws DataError when what follows the bytes read shows that they are damaged.
  void finish() { inflate_some(out_.data(), kBlock); }

 private:
  /// At least one byte; 0 at the end.
  std::int64_t inflate_some(std::byte* to, std::int64_t bytes) {
    bytes = std::min<std::int64_t>(bytes, std::numeric_limits<uInt>::max());
    z_.next_out = reinterpret_cast<Bytef*>(to);
    z_.avail_out = static_cast<uInt>(bytes);
    while (z_.avail_out == static_cast<uInt>(bytes)) {
      if (z_.avail_in == 0 && !refill()) break;
      if (ended_) {  // files may hold several members
        if (inflateReset(&z_) != Z_OK) damaged("cannot go on");
        ended_ = false;
      }
      const int status = inflate(&z_, Z_NO_FLUSH);
      if (status == Z_STREAM_END) {
        ended_ = true;
      } else if (status == Z_MEM_ERROR) {
        throw OutOfMemory(str("nifti: no memory to decompress ", file_.path(), "."));
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        damaged(z_.msg != nullptr ? z_.msg : "unknown data");
      }
    }
    const std::int64_t n = bytes - z_.avail_out;
    at_ += n;
    return n;
  }
  bool refill() {
    const std::int64_t n = std::min(kBlock, size_ - from_);
    if (n <= 0) return false;
    file_.read(in_.data(), n, from_);
    from_ += n;
    z_.next_in = reinterpret_cast<Bytef*>(in_.data());
    z_.avail_in = static_cast<uInt>(n);
    return true;
  }
  [[noreturn]] void damaged(const char* why) const {
    throw DataError(str("nifti: the compressed data of ", file_.path(), " are damaged (", why,
                        " about byte ", from_ - z_.avail_in, "). Get the file anew."));
  }

  const File& file_;
  std::int64_t size_;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
  z_stream z_ = {};
  std::int64_t from_ = 0;  // next byte of the file
  std::int64_t at_ = 0;    // next decompressed byte
  bool ended_ = false;     // a member ended
};

}  // namespace

struct NiftiReader::State {
  File file;
  bool compressed = false;
  NiftiLayout layout = {};
  std::unique_ptr<GzipStream> stream = {};  // begun where it was left
  std::mutex mutex = {};                    // of the stream

  [[noreturn]] void too_short(const std::string& holds) const {
    throw DataError(str("nifti: ", file.path(), " ends early (", layout.array.shape, " voxels of ",
                        name(layout.array.type), " need ", layout.end, " bytes; ", holds,
                        "). Get the file anew."));
  }
  /// Returns how many bytes of the file were taken.
  std::int64_t read(void* to, std::int64_t bytes, std::int64_t offset) {
    if (!compressed) {
      file.read(to, bytes, offset);
      return bytes;
    }
    if (!stream || stream->position() > offset) stream = std::make_unique<GzipStream>(file);
    const std::int64_t before = stream->taken();
    if (stream->read(static_cast<std::byte*>(to), offset, bytes) != bytes)
      too_short("fewer come out of it");
    if (offset + bytes == layout.end) stream->finish();  // the checksum stands at the end
    return stream->taken() - before;
  }
};

NiftiReader::~NiftiReader() = default;

NiftiReader::NiftiReader(const std::string& path)
    : FieldReader(path), state_(new State{.file = File::open(path)}) {
  State& s = *state_;
  s.compressed = is_compressed(s.file);
  std::array<std::byte, kNiftiHeaderBytes> start;
  auto had = static_cast<std::int64_t>(start.size());
  if (s.compressed) {
    had = GzipStream(s.file).read(start.data(), 0, had);
  } else {
    had = std::min(had, s.file.size());
    s.file.read(start.data(), had, 0);
  }
  s.layout = parse_nifti(std::span(start).first(static_cast<std::size_t>(had)), path);
  const std::int64_t size = s.file.size();
  if (!s.compressed && s.layout.end > size) s.too_short(str("it has ", size));
  std::int64_t most = 0;
  if (s.compressed && !__builtin_mul_overflow(size, kLargestRatio, &most) && s.layout.end > most)
    s.too_short(str("its ", size, " compressed ones cannot become more than ", most));

  const NiftiHeader& h = s.layout.header;
  FieldVariable volume = {.name = "volume", .dims = {}, .shape = h.shape, .numeric = true};
  static constexpr const char* kNames[] = {"i", "j", "k", "time"};
  for (int d = h.shape.size() - 1; d >= 0; --d)
    volume.dims.push_back(d < 4 ? kNames[d] : str("dim_", d));
  if (!h.description.empty()) volume.attributes["long_name"] = h.description;
  volume.attributes["spacing"] = std::vector<double>(h.spacing.begin(), h.spacing.end());
  Storage storage = {.type = h.type};
  if (h.slope != 1.0 || h.intercept != 0.0) {
    auto decoding = std::make_shared<Decoding>();
    decoding->scale = h.slope;
    decoding->offset = h.intercept;
    storage.decoding = std::move(decoding);
  }
  add(std::move(volume), std::move(storage));
}

const NiftiHeader& NiftiReader::header() const { return state_->layout.header; }

void NiftiReader::read_raw(std::size_t, const Box& box, void* values) const {
  State& s = *state_;
  std::unique_lock lock(s.mutex, std::defer_lock);
  if (s.compressed) lock.lock();
  std::int64_t taken = 0;
  read_dense(
      s.layout.array, box,
      [&](void* to, std::int64_t bytes, std::int64_t offset) {
        taken += s.read(to, bytes, offset);
      },
      values);
  count_bytes(taken);
}

}  // namespace tessera::io
