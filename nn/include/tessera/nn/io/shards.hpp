#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tessera/core/layout.hpp>
#include <tessera/nn/io/collective.hpp>
#include <tessera/nn/io/safetensors.hpp>
#include <vector>

namespace tessera::io {

/// A box of a tensor (global coordinates) and the rank that writes it.
struct ShardPart {
  int rank = 0;
  Box box;
};

/// A tensor that several ranks write; the parts cover it once.
struct ShardedTensor : TensorSpec {
  std::vector<ShardPart> parts;
};

/// Who writes what of a tensor in `layout`: of the ranks that hold a part the one with the fewest
/// bytes so far (`load`, by mesh rank; grows). The same on every rank. Throws LayoutError when
/// Partial.
ShardedTensor share_out(std::string name,
                        DType dtype,
                        const Layout& layout,
                        std::vector<std::int64_t>& load);

/// Writes a directory of safetensors files, one per rank that has a part, and `index.json`: which
/// box of which tensor is where, the metadata, the size and XXH3 checksum of each file, and one of
/// its own.
///
/// All of it is written under a temporary name (`directory.tmp-<id>`), brought to disk and renamed:
/// the directory is there complete, or not at all. An existing one is never touched.
class ShardWriter {
 public:
  /// Collective, with the same arguments on every rank; makes the temporary directory. Throws
  /// UsageError when parts do not cover a tensor or names repeat, IoError when the directory cannot
  /// be made; both on every rank.
  ShardWriter(std::string directory,
              std::vector<ShardedTensor> tensors,
              Metadata metadata,
              const Collective& collective);
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;
  /// Removes what failed to be committed. What never came to commit() stays where others may still
  /// write to it; Snapshots removes it before its first save. Not collective.
  ~ShardWriter();

  /// The parts of this rank, in the order in which they lie in its file.
  struct Part {
    std::size_t tensor;  ///< its place among the tensors given
    Box box;
  };
  const std::vector<Part>& local_parts() const;

  /// Writes this rank's file and brings it to disk: `views` in the order of local_parts(), each of
  /// its box's shape and the tensor's type. Local, so a thread of its own may do it; returns early,
  /// without a file, when `cancelled()` says so. Throws IoError.
  void write(const std::vector<View>& views, const std::function<bool()>& cancelled = {});
  /// Collective, after write() on every rank. `failure`: what this rank met in write(), if
  /// anything. Throws on every rank when anything failed on one; the directory is then not there.
  void commit(const std::exception_ptr& failure = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Reads what ShardWriter wrote, with any number of ranks.
class ShardReader {
 public:
  /// Reads the index. Throws IoError when it cannot be read, DataError when it is damaged.
  explicit ShardReader(const std::string& directory);
  ShardReader(ShardReader&&) noexcept;
  ~ShardReader();

  const std::string& path() const;
  const std::vector<TensorSpec>& tensors() const;
  const Metadata& metadata() const;

  /// Collective: compares each file, every byte of it, with its checksum; the ranks share the files
  /// out. Throws DataError naming the file, on every rank, when one is missing, cut or changed.
  void verify(const Collective& collective) const;

  struct Request {
    std::string name;
    Box box;  ///< global coordinates
    View out;
  };
  /// Reads boxes, with conversion (see SafetensorsReader::read_box); opens only the files that hold
  /// something of them, one after the other. Throws DataError when a file is not as the index says.
  void read(const std::vector<Request>& requests) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::io
