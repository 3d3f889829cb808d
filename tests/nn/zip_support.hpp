#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::test {

/// `value` as `size` little-endian bytes.
inline std::string little(std::uint64_t value, int size) {
  std::string bytes;
  for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

/// Fields of a NumPy array's header.
inline std::string npy_header(const std::string& dictionary, int version = 1) {
  const std::string text = dictionary + "\n";
  return std::string("\x93NUMPY") + static_cast<char>(version) + '\0' +
         little(text.size(), version == 1 ? 2 : 4) + text;
}
inline std::string npy_header(const std::string& descr,
                              const std::string& shape,
                              const std::string& fortran = "False") {
  return npy_header("{'descr': '" + descr + "', 'fortran_order': " + fortran +
                    ", 'shape': " + shape + ", }");
}

/// A member of an archive; what is set beside name and content overrides what is right.
struct ZipEntry {
  std::string name = {};
  std::string content = {};
  bool deflate = false;
  std::string local_name = {};  ///< empty: the same
  std::int64_t stored = -1;
  std::int64_t size = -1;
  std::int64_t offset = -1;
  std::uint16_t flags = 0;
  int method = -1;
  std::string extra = {};  ///< of the directory
};

inline std::string raw_deflate(const std::string& content) {
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string packed(content.size() + 1024, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

/// A ZIP archive; `zip64`: with the 64-bit end of its directory alone.
inline std::string make_zip(const std::vector<ZipEntry>& entries, bool zip64 = false) {
  std::string file;
  std::string directory;
  for (const ZipEntry& e : entries) {
    const std::string data = e.deflate ? raw_deflate(e.content) : e.content;
    const auto crc = crc32(0, reinterpret_cast<const Bytef*>(e.content.data()),
                           static_cast<uInt>(e.content.size()));
    const std::uint64_t stored = e.stored >= 0 ? static_cast<std::uint64_t>(e.stored) : data.size();
    const std::uint64_t size = e.size >= 0 ? static_cast<std::uint64_t>(e.size) : e.content.size();
    const std::uint64_t offset = e.offset >= 0 ? static_cast<std::uint64_t>(e.offset) : file.size();
    const int method = e.method >= 0 ? e.method : e.deflate ? 8 : 0;
    const std::string& local = e.local_name.empty() ? e.name : e.local_name;
    const std::string common = little(20, 2) + little(e.flags, 2) +
                               little(static_cast<std::uint64_t>(method), 2) + little(0, 4) +
                               little(crc, 4) + little(stored, 4) + little(size, 4);
    file += "PK\3\4" + common + little(local.size(), 2) + little(0, 2) + local + data;
    directory += "PK\1\2" + little(20, 2) + common + little(e.name.size(), 2) +
                 little(e.extra.size(), 2) + little(0, 2) + little(0, 8) + little(offset, 4) +
                 e.name + e.extra;
  }
  const std::uint64_t at = file.size();
  file += directory;
  if (zip64) {
    const std::uint64_t end = file.size();
    file += "PK\6\6" + little(44, 8) + little(45, 2) + little(45, 2) + little(0, 8) +
            little(entries.size(), 8) + little(entries.size(), 8) + little(directory.size(), 8) +
            little(at, 8) + "PK\6\7" + little(0, 4) + little(end, 8) + little(1, 4);
    return file + "PK\5\6" + little(0, 4) + little(0xffff, 2) + little(0xffff, 2) +
           little(0xffffffff, 4) + little(0xffffffff, 4) + little(0, 2);
  }
  return file + "PK\5\6" + little(0, 4) + little(entries.size(), 2) + little(entries.size(), 2) +
         little(directory.size(), 4) + little(at, 4) + little(0, 2);
}

}  // namespace tessera::test
