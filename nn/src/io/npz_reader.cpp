#include <algorithm>
#include <mutex>
#include <tessera/nn/io/npy.hpp>
#include <utility>

#include "io/inflate.hpp"
#include "io/npy_header.hpp"
#include "io/zip_directory.hpp"

namespace tessera::io {

struct NpzReader::State {
  struct Array {
    ZipMember member;
    NpyHeader header;
    std::unique_ptr<InflateStream> stream;
    std::mutex mutex;  // of the stream

    std::int64_t read(const File& file, void* to, std::int64_t bytes, std::int64_t offset) {
      if (!member.deflated) {
        file.read(to, bytes, member.offset + offset);
        return bytes;
      }
      if (!stream)
        stream = std::make_unique<InflateStream>(file, member.offset, member.stored, member.size,
                                                 member.crc);
      return stream->read(to, bytes, offset);
    }
  };

  File file;
  std::vector<std::unique_ptr<Array>> arrays = {};
};

NpzReader::~NpzReader() = default;

NpzReader::NpzReader(const std::string& path)
    : FieldReader(path), state_(new State{File::open(path)}) {
  for (ZipMember& member : read_zip_directory(state_->file)) {
    constexpr std::string_view kSuffix = ".npy";
    std::string name = member.name;
    if (!name.ends_with(kSuffix)) continue;  // NumPy reads others as bare bytes
    name.resize(name.size() - kSuffix.size());
    auto array = std::make_unique<State::Array>();
    array->member = std::move(member);
    array->header = read_npy_header(str(path, ": ", name), array->member.size,
                                    [&](void* to, std::int64_t bytes, std::int64_t offset) {
                                      array->read(state_->file, to, bytes, offset);
                                    });
    // Streams take memory; those of arrays that nobody reads are not kept.
    array->stream.reset();
    add(npy_variable(name, array->header),
        {.type = array->header.array.type, .column_major = array->header.column_major});
    state_->arrays.push_back(std::move(array));
  }
  if (variables().empty()) throw DataError(str(path, ": holds no NumPy array."));
}

void NpzReader::read_raw(std::size_t variable, const Box& box, void* values) const {
  State::Array& array = *state_->arrays[variable];
  std::unique_lock lock(array.mutex, std::defer_lock);
  if (array.member.deflated) lock.lock();
  std::int64_t taken = 0;
  read_dense(
      array.header.array, box,
      [&](void* to, std::int64_t bytes, std::int64_t offset) {
        taken += array.read(state_->file, to, bytes, offset);
      },
      values);
  count_bytes(taken);
}

}  // namespace tessera::io
