#pragma once

#include <xxhash.h>

#include <memory>
#include <string>
#include <tessera/nn/io/shards.hpp>
#include <vector>

namespace tessera::io {

inline constexpr const char* kIndexFile = "index.json";

/// XXH3 of bytes that come one block after the other.
class Checksum {
 public:
  /// Throws OutOfMemory.
  Checksum();
  void add(const void* data, std::int64_t bytes);
  std::uint64_t value() const;

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

/// A file of a sharded directory.
struct ShardFile {
  int rank = 0;
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;
};

/// What `index.json` says.
struct ShardIndex {
  std::vector<ShardedTensor> tensors;  ///< ranks are those that wrote
  std::vector<ShardFile> files;        ///< by rank
  Metadata metadata;
};

/// `rank-00003.safetensors`
std::string shard_file_name(int rank);
/// The text; its first line is the checksum of all that follows.
std::string format_index(const ShardIndex& index);
/// Throws DataError naming `path` when the text is not what format_index() makes.
ShardIndex parse_index(const std::string& path, const std::string& text);
/// Whether the parts lie in the tensor and have as many elements as it has.
bool parts_cover(const ShardedTensor& tensor);

}  // namespace tessera::io
