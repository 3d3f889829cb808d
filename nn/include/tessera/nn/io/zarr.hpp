#pragma once

#include <memory>
#include <string>
#include <tessera/nn/io/field_reader.hpp>

namespace tessera::io {

/// Reads a Zarr store in a directory, format 2 or 3
/// (https://zarr-specs.readthedocs.io/en/latest/specs.html): an array, or a group with all arrays
/// below it, named by their paths.
///
/// Codecs: bytes, transpose, gzip, zlib, blosc, zstd, lz4, crc32c, sharding_indexed; of format 2
/// the same compressors, and the filter shuffle. Chunks that are not there hold the fill value.
/// What xarray wrote in format 2
/// (`_ARRAY_DIMENSIONS`) takes the fill value as `_FillValue`, as xarray does. Of a compressed
/// chunk a rank reads and unpacks the whole; the last few stay unpacked. Of others it reads its
/// part.
///
/// Safe on damaged and hostile stores: sizes are compared with the files before use, chunks of more
/// than 2 GiB are refused, links inside the store are not followed.
class ZarrReader : public FieldReader {
 public:
  /// Throws IoError when the directory cannot be opened, DataError when it is no Zarr store.
  explicit ZarrReader(const std::string& path);
  ~ZarrReader() override;

 private:
  void read_raw(std::size_t variable, const Box& box, void* values) const override;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::io
