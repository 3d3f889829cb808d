#include <tessera/nn/io/npy.hpp>

#include "io/npy_header.hpp"
#include "io/posix_file.hpp"

namespace tessera::io {

struct NpyReader::State {
  File file;
  NpyHeader header;
};

NpyReader::~NpyReader() = default;

NpyReader::NpyReader(const std::string& path) : FieldReader(path) {
  File file = File::open(path);
  NpyHeader header = read_npy_header(
      path, file.size(),
      [&](void* to, std::int64_t bytes, std::int64_t offset) { file.read(to, bytes, offset); });
  if (!header.numeric)
    throw DataError(str(path, ": holds \"", header.descr.substr(0, 60), "\" (numbers in at most ",
                        kMaxDims, " dimensions can be read; objects are never unpickled)."));
  add(npy_variable("array", header),
      {.type = header.array.type, .column_major = header.column_major});
  state_.reset(new State{std::move(file), std::move(header)});
}

void NpyReader::read_raw(std::size_t, const Box& box, void* values) const {
  count_bytes(read_dense(
      state_->header.array, box,
      [&](void* to, std::int64_t bytes, std::int64_t offset) {
        state_->file.read(to, bytes, offset);
      },
      values));
}

}  // namespace tessera::io
