#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <tessera/nn/io/field_reader.hpp>
#include <vector>

#include "io/codecs.hpp"
#include "io/dense_array.hpp"

namespace tessera::io {

/// How the numbers of a chunk become bytes.
struct ZarrCodecs {
  bool swapped = false;
  Dims order = {};  ///< as in DenseArray; empty: row-major
  std::vector<BytesCodec> bytes = {};
};

/// Chunks that lie in one file (sharding_indexed): `inner` of them per dimension.
struct ZarrShard {
  Shape inner;
  bool index_first = false;
  bool index_checksum = false;

  std::int64_t index_bytes() const { return inner.product() * 16 + (index_checksum ? 4 : 0); }
};

/// An array of a Zarr store.
struct ZarrArray {
  FieldVariable variable;
  StoredType type = StoredType::kFloat32;
  Shape chunk;  ///< of the smallest unit that is packed by itself
  ZarrCodecs codecs;
  std::optional<ZarrShard> shard;
  std::vector<std::byte> fill;                   ///< of one number
  std::vector<std::string> floating_attributes;  ///< see make_decoding
  std::string key_prefix;                        ///< "c" and so on, as chunk files are named
  char separator = '.';

  std::int64_t chunk_bytes() const;
  /// The name of the file of the chunk (or shard) with these indices.
  std::string key(const Index& index) const;
};

/// The name of a chunk's file: the prefix and the indices, `separator` between them.
std::string zarr_key(const std::string& prefix,
                     char separator,
                     std::span<const std::int64_t> index);

/// From the text of `.zarray` and `.zattrs` (an empty object when there is none). Throws DataError
/// beginning with `where`.
ZarrArray parse_zarr2(const std::string& where,
                      const nlohmann::json& array,
                      const nlohmann::json& attributes);
/// From `zarr.json`.
ZarrArray parse_zarr3(const std::string& where, const nlohmann::json& array);

}  // namespace tessera::io
