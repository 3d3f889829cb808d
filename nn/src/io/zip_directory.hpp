#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/posix_file.hpp"

namespace tessera::io {

/// A member of a ZIP archive.
struct ZipMember {
  std::string name;
  std::int64_t offset = 0;  ///< of its data in the file
  std::int64_t stored = 0;  ///< bytes in the file
  std::int64_t size = 0;    ///< bytes when unpacked
  std::uint32_t crc = 0;
  bool deflated = false;
};

/// The members of an archive (https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT), ZIP64
/// included, in the order of its directory. Throws DataError when it is damaged, encrypted, packed
/// otherwise than by deflate, spans several files, or has a name twice or one that could be a path
/// out of a directory.
std::vector<ZipMember> read_zip_directory(const File& file);

}  // namespace tessera::io
