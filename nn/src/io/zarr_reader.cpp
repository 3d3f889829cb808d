#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <tessera/nn/io/zarr.hpp>
#include <utility>

#include "io/blocks.hpp"
#include "io/convert.hpp"
#include "io/decoding.hpp"
#include "io/json_attributes.hpp"
#include "io/posix_file.hpp"
#include "io/zarr_metadata.hpp"

namespace tessera::io {
namespace {

constexpr int kDepth = 8;
constexpr std::size_t kArrays = 10'000;
constexpr std::size_t kCacheBytes = 32 << 20;
constexpr std::uint64_t kAbsent = ~std::uint64_t{0};

using Bytes = std::vector<std::byte>;

/// The last chunks that were unpacked.
class ChunkCache {
 public:
  using Key = std::pair<std::size_t, std::vector<std::int64_t>>;

  std::shared_ptr<const Bytes> find(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(chunks_.begin(), chunks_.end(), [&](const auto& c) { return c.first == key; });
    if (found == chunks_.end()) return nullptr;
    chunks_.splice(chunks_.begin(), chunks_, found);
    return chunks_.front().second;
  }
  void put(const Key& key, std::shared_ptr<const Bytes> chunk) {
    const std::lock_guard lock(mutex_);
    bytes_ += chunk->size();
    chunks_.emplace_front(key, std::move(chunk));
    while (chunks_.size() > 1 && bytes_ > kCacheBytes) {
      bytes_ -= chunks_.back().second->size();
      chunks_.pop_back();
    }
  }

 private:
  std::mutex mutex_;
  std::list<std::pair<Key, std::shared_ptr<const Bytes>>> chunks_;
  std::size_t bytes_ = 0;
};

/// Where a chunk lies in its file.
struct Place {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

}  // namespace

struct ZarrReader::State {
  std::string root;
  int directory = -1;
  std::vector<std::pair<std::string, ZarrArray>> arrays;  // with their paths below the root
  mutable ChunkCache cache;

  ~State() {
    if (directory >= 0) ::close(directory);
  }

  std::optional<nlohmann::json> json(const std::string& name) const {
    const auto file = File::open_below(directory, name, root);
    if (!file) return std::nullopt;
    return parse_json_file(*file);
  }

  /// Adds the array at `path` ("" or "a/b/"), or those below it. Whether there is anything.
  bool scan(const std::string& path, int depth) {
    const std::string shown = str(root, "/", path);
    const auto add_array = [&](ZarrArray array) {
      if (arrays.size() >= kArrays)
        throw DataError(str(root, ": holds more than ", kArrays, " arrays."));
      array.variable.name = path.empty() ? std::string("array") : path.substr(0, path.size() - 1);
      arrays.emplace_back(path, std::move(array));
    };
    if (const auto found = json(path + "zarr.json")) {
      const nlohmann::json& node = *found;
      if (node.is_object() && node.contains("node_type") && node["node_type"] == "array") {
        add_array(parse_zarr3(shown, node));
        return true;
      }
    } else if (const auto old = json(path + ".zarray")) {
      const auto attributes = json(path + ".zattrs");
      add_array(parse_zarr2(shown, *old, attributes ? *attributes : nlohmann::json::object()));
      return true;
    } else if (!json(path + ".zgroup")) {
      return false;
    }
    if (depth == kDepth) throw DataError(str(shown, ": groups deeper than ", kDepth, " levels."));
    std::vector<std::string> names;
    std::error_code error;
    std::filesystem::directory_iterator entry(str(root, "/", path), error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
      if (entry->symlink_status(error).type() == std::filesystem::file_type::directory)
        names.push_back(entry->path().filename().string());
    if (error) throw IoError(str(shown, ": cannot be listed (", error.message(), ")."));
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) scan(str(path, name, "/"), depth + 1);
    return true;
  }

  Attributes group_attributes() const {
    if (const auto found = json("zarr.json"))
      return found->is_object() && found->contains("attributes")
                 ? json_attributes((*found)["attributes"])
                 : Attributes();
    const auto old = json(".zattrs");
    return old ? json_attributes(*old) : Attributes();
  }

  /// Where the chunks of a shard lie; the index is read as a whole.
  std::vector<std::uint64_t> shard_index(const File& file,
                                         const ZarrShard& shard,
                                         std::int64_t& taken) const {
    const std::int64_t bytes = shard.index_bytes();
    if (bytes > file.size())
      throw DataError(str(file.path(), ": too short for the index of its chunks."));
    Bytes raw(static_cast<std::size_t>(bytes));
    file.read(raw.data(), bytes, shard.index_first ? 0 : file.size() - bytes);
    taken += bytes;
    if (shard.index_checksum)
      raw = decode(file.path(), {{BytesCodec::Kind::kCrc32c}}, std::move(raw), bytes - 4);
    std::vector<std::uint64_t> index(raw.size() / 8);
    std::memcpy(index.data(), raw.data(), raw.size());
    return index;
  }
};

ZarrReader::~ZarrReader() = default;

ZarrReader::ZarrReader(const std::string& path)
    : FieldReader(path), state_(std::make_unique<State>()) {
  State& s = *state_;
  s.root = path;
  s.directory = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (s.directory < 0)
    throw IoError(str(path, ": cannot be opened as a directory (", std::strerror(errno),
                      "). A Zarr store is a directory."));
  if (!s.scan("", 0))
    throw DataError(str(path,
                        ": not a Zarr store (no zarr.json, .zarray or .zgroup). Give the path of a "
                        "file or of a store."));
  for (auto& [name, array] : s.arrays) {
    Storage storage;
    storage.type = array.type;
    if (array.variable.numeric) {
      storage.chunk = array.chunk;
      const auto& floating = array.floating_attributes;
      storage.decoding =
          make_decoding(array.type, array.variable.attributes, [&](const char* attribute) {
            return std::find(floating.begin(), floating.end(), attribute) != floating.end();
          });
    }
    add(array.variable, std::move(storage));
  }
  set_attributes(s.group_attributes());
}

void ZarrReader::read_raw(std::size_t variable, const Box& box, void* values) const {
  const auto& [path, array] = state_->arrays[variable];
  const std::int64_t element = size_of(array.type);
  const std::int64_t chunk_bytes = array.chunk_bytes();
  const int dims = box.dims();
  const bool packed = !array.codecs.bytes.empty();
  const bool pairs = std::ssize(array.fill) > element;
  const Shape shape = box.shape();

  // The last file stays open for the next chunk in it, with its index.
  std::string open_name;
  std::optional<File> file;
  std::vector<std::uint64_t> index;
  std::int64_t taken = 0;
  const auto open_file = [&](const std::string& name) {
    if (name == open_name) return;
    open_name = name;
    file.reset();
    index.clear();
    if (auto found = File::open_below(state_->directory, name, state_->root))
      file.emplace(std::move(*found));
    if (file && array.shard) index = state_->shard_index(*file, *array.shard, taken);
  };
  const auto place_of = [&](const Index& chunk) -> std::optional<Place> {
    if (!file) return std::nullopt;
    if (!array.shard) return Place{0, file->size()};
    std::int64_t at = 0;
    for (int d = 0; d < dims; ++d)
      at = at * array.shard->inner[d] + chunk[d] % array.shard->inner[d];
    const std::uint64_t offset = index[static_cast<std::size_t>(2 * at)];
    const std::uint64_t bytes = index[static_cast<std::size_t>(2 * at) + 1];
    if (offset == kAbsent && bytes == kAbsent) return std::nullopt;
    const auto size = static_cast<std::uint64_t>(file->size());
    if (offset > size || bytes > size - offset)
      throw DataError(str(file->path(), ": damaged (a chunk lies beyond its end)."));
    return Place{static_cast<std::int64_t>(offset), static_cast<std::int64_t>(bytes)};
  };
  Bytes part;
  const auto copy_part = [&](const Box& within) {  // `part` into the result
    const BoxRows rows("zarr", shape, within,
                       View::dense(part.data(), DType::kUInt8, within.shape()));
    rows.for_each([&](std::int64_t array_offset, std::int64_t part_offset) {
      std::copy_n(part.data() + part_offset * element, rows.row_length() * element,
                  static_cast<std::byte*>(values) + array_offset * element);
    });
  };

  for_each_index(chunks_of(box, array.chunk), [&](const Index& chunk) {
    Box own = box;     // of this chunk, in the chunk
    Box within = box;  // the same, in the result
    Index in_file = chunk;
    for (int d = 0; d < dims; ++d) {
      const std::int64_t start = chunk[d] * array.chunk[d];
      // In the last chunk the end may not be a number of 64 bits.
      const std::int64_t end = start + std::min(array.chunk[d], box.hi[d] - start);
      own.set(d, {std::max(box.lo[d], start) - start, end - start});
      within.set(d, {std::max(box.lo[d], start) - box.lo[d], end - box.lo[d]});
      if (array.shard) in_file[d] /= array.shard->inner[d];
    }
    DenseArray dense = {array.chunk, array.type, 0, array.codecs.swapped, array.codecs.order};
    part.resize(static_cast<std::size_t>(own.volume() * element));

    const ChunkCache::Key key{variable, {chunk.begin(), chunk.end()}};
    std::shared_ptr<const Bytes> unpacked = packed ? state_->cache.find(key) : nullptr;
    if (!unpacked) {
      open_file(path + array.key(in_file));
      const auto place = place_of(chunk);
      if (!place) {
        const auto from = array.fill.begin();
        for (std::size_t i = 0; i < part.size(); i += static_cast<std::size_t>(element)) {
          // Of the pairs of complex numbers the box may hold one half.
          const std::int64_t half = pairs ? own.lo[dims - 1] + static_cast<std::int64_t>(i) /
                                                                   element % own[dims - 1].size()
                                          : 0;
          std::copy_n(from + half * element, element,
                      part.begin() + static_cast<std::ptrdiff_t>(i));
        }
        copy_part(within);
        return;
      }
      if (!packed) {
        if (place->bytes != chunk_bytes)
          throw DataError(str(file->path(), ": damaged (a chunk of ", place->bytes, " bytes, not ",
                              chunk_bytes, ")."));
        dense.offset = place->offset;
        taken += read_dense(
            dense, own,
            [&](void* to, std::int64_t bytes, std::int64_t offset) {
              file->read(to, bytes, offset);
            },
            part.data());
        copy_part(within);
        return;
      }
      Bytes bytes(static_cast<std::size_t>(place->bytes));
      file->read(bytes.data(), place->bytes, place->offset);
      taken += place->bytes;
      unpacked = std::make_shared<const Bytes>(
          decode(file->path(), array.codecs.bytes, std::move(bytes), chunk_bytes));
      state_->cache.put(key, unpacked);
    }
    read_dense(
        dense, own,
        [&](void* to, std::int64_t bytes, std::int64_t offset) {
          std::memcpy(to, unpacked->data() + offset, static_cast<std::size_t>(bytes));
        },
        part.data());
    copy_part(within);
  });
  count_bytes(taken);
}

}  // namespace tessera::io
