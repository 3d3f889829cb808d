#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <tessera/nn/io/nifti.hpp>
#include <vector>

#include "io/convert.hpp"
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

/// The bytes of a file by ascending offsets, decompressed where it is.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Copies bytes that begin where the last call ended, or later. Returns how many there were.
  virtual std::int64_t read(std::byte* to, std::int64_t offset, std::int64_t bytes) = 0;
  /// Throws DataError when what follows the bytes read shows that they are damaged.
  virtual void finish() {}
};

class PlainStream : public Stream {
 public:
  PlainStream(const File& file, std::int64_t& count)
      : file_(file), size_(file.size()), count_(count), block_(kBlock) {}

  std::int64_t read(std::byte* to, std::int64_t offset, std::int64_t bytes) override {
    std::int64_t done = 0;
    while (done < bytes && offset + done < size_) {
      const std::int64_t at = offset + done;
      if (at < begin_ || at >= end_) {
        begin_ = at;
        end_ = std::min(at + kBlock, size_);
        file_.read(block_.data(), end_ - begin_, begin_);
        count_ += end_ - begin_;
      }
      const std::int64_t n = std::min(end_ - at, bytes - done);
      std::memcpy(to + done, block_.data() + (at - begin_), static_cast<std::size_t>(n));
      done += n;
    }
    return done;
  }

 private:
  const File& file_;
  std::int64_t size_;
  std::int64_t& count_;
  std::vector<std::byte> block_;
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
};

class GzipStream : public Stream {
 public:
  GzipStream(const File& file, std::int64_t& count)
      : file_(file), size_(file.size()), count_(count), in_(kBlock), out_(kBlock) {
    constexpr int kGzip = 16;
    if (inflateInit2(&z_, kGzip + MAX_WBITS) != Z_OK)
      throw OutOfMemory(str("nifti: no memory to decompress ", file.path(), "."));
  }
  ~GzipStream() override { inflateEnd(&z_); }
  GzipStream(const GzipStream&) = delete;

  std::int64_t read(std::byte* to, std::int64_t offset, std::int64_t bytes) override {
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
  void finish() override { inflate_some(out_.data(), kBlock); }

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
    count_ += n;
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
  std::int64_t& count_;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
  z_stream z_ = {};
  std::int64_t from_ = 0;  // next byte of the file
  std::int64_t at_ = 0;    // next decompressed byte
  bool ended_ = false;     // a member ended
};

template <class T>
T load(const std::byte* from, bool swapped) {
  std::array<std::byte, sizeof(T)> raw;
  std::memcpy(raw.data(), from, sizeof(T));
  if (swapped) std::reverse(raw.begin(), raw.end());
  return std::bit_cast<T>(raw);
}

template <class To, class T>
To fitted(T value, const std::string& path) {
  if constexpr (std::is_integral_v<T>) {
    if constexpr (std::is_same_v<To, bool>) {
      if (value == 0 || value == 1) return value != 0;
    } else if (std::in_range<To>(value)) {
      return static_cast<To>(value);
    }
  }
  throw DataError(str("nifti: the value ", +value, " in ", path, " does not fit ",
                      name(dtype_of<To>), ". Read it as a wider type."));
}

}  // namespace

struct NiftiReader::State {
  std::string path;
  std::optional<File> file;
  bool compressed = false;
  NiftiLayout layout;
  mutable std::int64_t bytes_read = 0;
  mutable std::int64_t bytes_kept = 0;

  std::unique_ptr<Stream> stream() const {
    if (compressed) return std::make_unique<GzipStream>(*file, bytes_read);
    return std::make_unique<PlainStream>(*file, bytes_read);
  }
  [[noreturn]] void too_short(const std::string& holds) const {
    throw DataError(str("nifti: ", path, " ends early (", layout.header.shape, " voxels of ",
                        layout.header.type, " need ", layout.end(), " bytes; ", holds,
                        "). Get the file anew."));
  }

  /// Stores `count` voxels that lie at `from`, dense there, in a row of the view.
  void store(const std::byte* from,
             const View& out,
             std::int64_t offset,
             std::int64_t stride,
             std::int64_t count) const {
    const NiftiHeader& h = layout.header;
    visit_nifti(layout.type, [&]<class T>() {
      visit_dtype(out.dtype, [&]<class To>() {
        To* to = out.as<To>() + offset;
        for (std::int64_t i = 0; i < count; ++i, to += stride) {
          const T value = load<T>(from + i * layout.element, layout.swapped);
          if constexpr (std::is_integral_v<To>) {
            *to = fitted<To>(value, path);
          } else {
            const double v = h.scaled() ? h.slope * static_cast<double>(value) + h.intercept
                                        : static_cast<double>(value);
            if constexpr (std::is_same_v<To, BFloat16>) {
              *to = BFloat16(static_cast<float>(v));
            } else {
              *to = static_cast<To>(v);
            }
          }
        }
      });
    });
  }
};

NiftiReader::NiftiReader(NiftiReader&&) noexcept = default;
NiftiReader::~NiftiReader() = default;

NiftiReader::NiftiReader(const std::string& path) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path;
  s.file.emplace(File::open(path));
  s.compressed = is_compressed(*s.file);
  std::array<std::byte, kNiftiHeaderBytes> start;
  const std::int64_t had =
      s.stream()->read(start.data(), 0, static_cast<std::int64_t>(start.size()));
  s.layout = parse_nifti(std::span(start).first(static_cast<std::size_t>(had)), path);
  const std::int64_t size = s.file->size();
  if (!s.compressed && s.layout.end() > size) s.too_short(str("it has ", size));
  std::int64_t most = 0;
  if (s.compressed && !__builtin_mul_overflow(size, kLargestRatio, &most) && s.layout.end() > most)
    s.too_short(str("its ", size, " compressed ones cannot become more than ", most));
}

const std::string& NiftiReader::path() const { return state_->path; }
const NiftiHeader& NiftiReader::header() const { return state_->layout.header; }
std::int64_t NiftiReader::bytes_read() const { return state_->bytes_read; }
std::int64_t NiftiReader::bytes_kept() const { return state_->bytes_kept; }

void NiftiReader::read(const Box& box, const View& out) const {
  const State& s = *state_;
  const NiftiLayout& layout = s.layout;
  const bool integers = layout.type != NiftiType::kFloat32 && layout.type != NiftiType::kFloat64;
  if (!is_floating(out.dtype) && (!integers || layout.header.scaled()))
    throw DTypeError(str("nifti: ", s.path, " holds ", layout.header.scaled() ? "scaled " : "",
                         layout.header.type, ", which is not read as ", name(out.dtype),
                         ". Read it as f32 or f64."));
  const BoxRows rows("nifti", layout.header.shape, box, out);
  if (box.empty()) return;
  const std::unique_ptr<Stream> stream = s.stream();
  const std::int64_t most = kBlock / layout.element;
  std::vector<std::byte> block(
      static_cast<std::size_t>(std::min(most, rows.row_length()) * layout.element));
  std::int64_t last = 0;
  rows.for_each([&](std::int64_t array_offset, std::int64_t view_offset) {
    for (std::int64_t done = 0; done < rows.row_length();) {
      const std::int64_t count = std::min(most, rows.row_length() - done);
      const std::int64_t at = layout.offset + (array_offset + done) * layout.element;
      const std::int64_t got = stream->read(block.data(), at, count * layout.element);
      if (got != count * layout.element) s.too_short("fewer come out of it");
      s.store(block.data(), out, view_offset + done * rows.view_stride(), rows.view_stride(),
              count);
      done += count;
      last = array_offset + done;
    }
  });
  s.bytes_kept += box.volume() * layout.element;
  if (last == layout.elements) stream->finish();  // the checksum stands at the end
}

}  // namespace tessera::io
