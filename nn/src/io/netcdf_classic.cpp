#include "io/netcdf_classic.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <tessera/nn/io/data_error.hpp>
#include <vector>

#include "io/netcdf_header.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kBuffer = 8192;

[[noreturn]] void damaged(const File& file) {
  throw DataError(str(file.path(),
                      ": cannot be read as NetCDF (its header is damaged). Get the "
                      "file again."));
}

/// Walks through a header, whose numbers are big endian.
class Cursor {
 public:
  explicit Cursor(const File& file) : file_(file), size_(file.size()) {}

  std::int64_t number(int bytes) {
    std::uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | byte();
    if (value > std::uint64_t{1} << 62) damaged(file_);
    return static_cast<std::int64_t>(value);
  }
  void skip(std::int64_t bytes) {
    if (bytes < 0 || bytes > size_ - at_) damaged(file_);
    at_ += bytes;
  }
  /// A count of things that take at least `each` bytes of the header.
  std::int64_t count(int bytes, std::int64_t each) {
    const std::int64_t n = number(bytes);
    if (n > (size_ - at_) / each) damaged(file_);
    return n;
  }

 private:
  std::uint8_t byte() {
    if (at_ >= size_) damaged(file_);
    if (at_ < start_ || at_ >= start_ + static_cast<std::int64_t>(buffer_.size())) {
      start_ = at_;
      buffer_.resize(static_cast<std::size_t>(std::min(kBuffer, size_ - at_)));
      file_.read(buffer_.data(), static_cast<std::int64_t>(buffer_.size()), at_);
    }
    return buffer_[static_cast<std::size_t>(at_++ - start_)];
  }

  const File& file_;
  std::int64_t size_;
  std::int64_t at_ = 4;
  std::int64_t start_ = 0;
  std::vector<std::uint8_t> buffer_;
};

/// Bytes of an nc_type of the classic formats.
std::int64_t size_of_type(const File& file, std::int64_t type) {
  constexpr std::int64_t kSizes[] = {0, 1, 1, 2, 4, 4, 8, 1, 2, 4, 8, 8};
  if (type < 1 || type >= std::ssize(kSizes)) damaged(file);
  return kSizes[type];
}

}  // namespace

// "The NetCDF Classic Format Specification" (docs.unidata.ucar.edu/netcdf-c), and its 64-bit forms.
std::int64_t classic_netcdf_bytes(const File& file) {
  char magic[4] = {};
  if (file.size() < 4) return 0;
  file.read(magic, 4, 0);
  if (std::string_view(magic, 3) != "CDF" ||
      std::string_view("\1\2\5").find(magic[3]) == std::string_view::npos) {
    return 0;
  }
  const int wide = magic[3] == 5 ? 8 : 4;  // of counts and sizes
  const int offset_bytes = magic[3] == 1 ? 4 : 8;
  Cursor in(file);
  const auto skip_name = [&] { in.skip(netcdf_padded(in.number(wide))); };
  const auto list_length = [&](std::int64_t each) {
    in.number(4);  // which list, or zero
    return in.count(wide, each);
  };
  const auto skip_attributes = [&] {
    for (std::int64_t n = list_length(2 * wide + 4); n > 0; --n) {
      skip_name();
      const std::int64_t size = size_of_type(file, in.number(4));
      in.skip(netcdf_padded(in.count(wide, size) * size));
    }
  };

  const std::int64_t records = in.number(wide);
  const bool streaming = wide == 4 && records == 0xffffffff;
  std::vector<std::int64_t> dimensions(static_cast<std::size_t>(list_length(2 * wide)));
  for (std::int64_t& size : dimensions) {
    skip_name();
    size = in.number(wide);
  }
  skip_attributes();

  std::int64_t end = 0;
  struct Record {
    std::int64_t begin;
    std::int64_t bytes;
  };
  std::vector<Record> record_variables;
  for (std::int64_t n = list_length(4 * wide); n > 0; --n) {
    skip_name();
    bool by_record = false;
    std::int64_t points = 1;
    const std::int64_t dims = in.count(wide, wide);
    for (std::int64_t d = 0; d < dims; ++d) {
      const std::int64_t id = in.number(wide);
      if (id >= std::ssize(dimensions)) damaged(file);
      const std::int64_t size = dimensions[static_cast<std::size_t>(id)];
      if (d == 0 && size == 0) {
        by_record = true;
      } else if (__builtin_mul_overflow(points, size, &points)) {
        damaged(file);
      }
    }
    skip_attributes();
    std::int64_t bytes = size_of_type(file, in.number(4));
    if (__builtin_mul_overflow(points, bytes, &bytes)) damaged(file);
    in.skip(wide);  // the size again
    const std::int64_t begin = in.number(offset_bytes);
    std::int64_t last = 0;
    if (__builtin_add_overflow(begin, bytes, &last)) damaged(file);
    if (by_record) {
      record_variables.push_back({begin, bytes});
    } else if (bytes > 0) {
      end = std::max(end, last);
    }
  }
  if (streaming || records == 0) return end;
  std::int64_t record = 0;
  for (const Record& v : record_variables) {
    const std::int64_t bytes = record_variables.size() == 1 ? v.bytes : netcdf_padded(v.bytes);
    if (__builtin_add_overflow(record, bytes, &record)) damaged(file);
  }
  std::int64_t before = 0;
  if (__builtin_mul_overflow(record, records - 1, &before)) damaged(file);
  for (const Record& v : record_variables) {
    std::int64_t last = 0;
    if (__builtin_add_overflow(before, v.begin + v.bytes, &last)) damaged(file);
    end = std::max(end, last);
  }
  return end;
}

}  // namespace tessera::io
