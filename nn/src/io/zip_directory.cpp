#include "io/zip_directory.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <tessera/nn/io/data_error.hpp>

namespace tessera::io {
namespace {

constexpr std::int64_t kEndBytes = 22;
constexpr std::int64_t kLocatorBytes = 20;
constexpr std::int64_t kEnd64Bytes = 56;
constexpr std::int64_t kEntryBytes = 46;
constexpr std::int64_t kLocalBytes = 30;
constexpr std::int64_t kLongestComment = 65535;
constexpr std::int64_t kDeflateRatio = 1032;  // at best

/// Bytes of a record, read as little-endian numbers.
class Record {
 public:
  explicit Record(std::string_view bytes) : bytes_(bytes) {}
  std::uint64_t number(std::size_t at, int size) const {
    std::uint64_t value = 0;
    for (int i = size - 1; i >= 0; --i)
      value = value << 8 | static_cast<unsigned char>(bytes_[at + static_cast<std::size_t>(i)]);
    return value;
  }
  std::int64_t u16(std::size_t at) const { return static_cast<std::int64_t>(number(at, 2)); }
  std::int64_t u32(std::size_t at) const { return static_cast<std::int64_t>(number(at, 4)); }

 private:
  std::string_view bytes_;
};

class Directory {
 public:
  explicit Directory(const File& file) : file_(file), size_(file.size()) {}

  std::vector<ZipMember> members() {
    find();
    std::vector<ZipMember> result;
    std::set<std::string> names;
    const std::string text = take(offset_, bytes_);
    std::size_t at = 0;
    for (std::int64_t i = 0; i < count_; ++i) {
      if (text.size() - at < kEntryBytes) fail("its directory is cut off");
      const Record r(std::string_view(text).substr(at));
      if (r.u32(0) != 0x02014b50) fail("its directory holds something else");
      const auto name_bytes = static_cast<std::size_t>(r.u16(28));
      const auto extra_bytes = static_cast<std::size_t>(r.u16(30));
      const std::size_t all = static_cast<std::size_t>(kEntryBytes) + name_bytes + extra_bytes +
                              static_cast<std::size_t>(r.u16(32));
      if (text.size() - at < all) fail("its directory is cut off");
      const std::size_t name_at = at + static_cast<std::size_t>(kEntryBytes);
      ZipMember m;
      m.name = text.substr(name_at, name_bytes);
      check_name(m.name);
      if (!names.insert(m.name).second) fail("the name \"" + m.name + "\" is there twice");
      if ((r.u16(8) & 1) != 0) fail("\"" + m.name + "\" is encrypted");
      const std::int64_t method = r.u16(10);
      if (method != 0 && method != 8)
        fail(str("\"", m.name, "\" is packed by method ", method,
                 "; stored and deflated members "
                 "can be read"));
      m.deflated = method == 8;
      m.crc = static_cast<std::uint32_t>(r.u32(16));
      m.stored = r.u32(20);
      m.size = r.u32(24);
      std::int64_t local = r.u32(42);
      read_extra(std::string_view(text).substr(name_at + name_bytes, extra_bytes), m, local);
      place(m, local);
      result.push_back(std::move(m));
      at += all;
    }
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw DataError(str(file_.path(), ": not a usable ZIP archive (", problem, ")."));
  }
  std::string take(std::int64_t offset, std::int64_t bytes) const {
    if (offset < 0 || bytes < 0 || offset > size_ || bytes > size_ - offset)
      fail("it is cut off, or speaks of places outside");
    std::string text(static_cast<std::size_t>(bytes), '\0');
    if (bytes > 0) file_.read(text.data(), bytes, offset);
    return text;
  }
  std::int64_t number64(std::uint64_t value) const {
    if (value >> 63 != 0) fail("a size beyond 63 bits");
    return static_cast<std::int64_t>(value);
  }

  void find() {
    if (size_ < kEndBytes) fail("it is too short");
    const std::int64_t tail = std::min(size_, kEndBytes + kLongestComment);
    const std::string text = take(size_ - tail, tail);
    // The comment ends where the file does.
    std::int64_t end = -1;
    for (std::int64_t at = tail - kEndBytes; at >= 0 && end < 0; --at) {
      const Record r(std::string_view(text).substr(static_cast<std::size_t>(at)));
      if (r.u32(0) == 0x06054b50 && r.u16(20) == tail - kEndBytes - at) end = at;
    }
    if (end < 0) fail("it has no directory; it may be cut off");
    const Record r(std::string_view(text).substr(static_cast<std::size_t>(end)));
    if (r.u16(4) != 0 || r.u16(6) != 0) fail("it spans several files");
    count_ = r.u16(10);
    bytes_ = r.u32(12);
    offset_ = r.u32(16);
    const std::int64_t locator = size_ - tail + end - kLocatorBytes;
    if (count_ == 0xffff || bytes_ == 0xffffffff || offset_ == 0xffffffff) {
      if (locator < 0) fail("its 64-bit directory is missing");
      const std::string found = take(locator, kLocatorBytes);
      const Record l(found);
      if (l.u32(0) != 0x07064b50) fail("its 64-bit directory is missing");
      const std::string end64 = take(number64(l.number(8, 8)), kEnd64Bytes);
      const Record e(end64);
      if (e.u32(0) != 0x06064b50) fail("its 64-bit directory is missing");
      count_ = number64(e.number(32, 8));
      bytes_ = number64(e.number(40, 8));
      offset_ = number64(e.number(48, 8));
    }
    if (count_ > bytes_ / kEntryBytes) fail("its directory is too small for its members");
  }

  void check_name(const std::string& name) const {
    const bool control =
        std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < ' ' || c == 127; });
    if (name.empty() || control) fail("a member has no name, or one with control characters");
    std::string_view rest = name;
    bool outside = name.front() == '/' || name.find('\\') != std::string::npos;
    while (!outside && !rest.empty()) {
      const std::size_t slash = std::min(rest.find('/'), rest.size());
      outside = rest.substr(0, slash) == "..";
      rest.remove_prefix(std::min(slash + 1, rest.size()));
    }
    if (outside) fail("the name \"" + name + "\" leads out of the archive");
  }

  void read_extra(std::string_view extra, ZipMember& m, std::int64_t& local) const {
    while (extra.size() >= 4) {
      const Record r(extra);
      const std::int64_t id = r.u16(0);
      const auto bytes = static_cast<std::size_t>(r.u16(2));
      if (bytes > extra.size() - 4) fail("an extra field is cut off");
      if (id == 1) {
        std::size_t at = 4;
        for (std::int64_t* value : {&m.size, &m.stored, &local}) {
          if (*value != 0xffffffff) continue;
          if (at + 8 > 4 + bytes) fail("a 64-bit size is missing");
          *value = number64(r.number(at, 8));
          at += 8;
        }
      }
      extra.remove_prefix(4 + bytes);
    }
  }

  void place(ZipMember& m, std::int64_t local) const {
    const std::string header = take(local, kLocalBytes);
    const Record r(header);
    if (r.u32(0) != 0x04034b50) fail("\"" + m.name + "\" is not where the directory says");
    m.offset = local + kLocalBytes + r.u16(26) + r.u16(28);
    if (m.offset > size_ || m.stored > size_ - m.offset) fail("\"" + m.name + "\" is cut off");
    if (!m.deflated && m.size != m.stored) fail("\"" + m.name + "\" has two sizes");
    if (m.deflated && m.size / kDeflateRatio > m.stored)
      fail("\"" + m.name + "\" promises more than deflate can hold");
  }

  const File& file_;
  std::int64_t size_;
  std::int64_t count_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t offset_ = 0;
};

}  // namespace

std::vector<ZipMember> read_zip_directory(const File& file) { return Directory(file).members(); }

}  // namespace tessera::io
