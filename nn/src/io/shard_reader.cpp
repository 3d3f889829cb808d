#include <algorithm>
#include <map>
#include <tessera/nn/io/shards.hpp>
#include <tessera/nn/io/suggest.hpp>
#include <unordered_map>

#include "io/posix_file.hpp"
#include "io/shard_index.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kBlock = 1 << 20;

/// `box` with `origin` as the origin.
Box relative(const Box& box, const Box& origin) {
  Box moved = box;
  for (int d = 0; d < box.dims(); ++d) {
    moved.lo[d] -= origin.lo[d];
    moved.hi[d] -= origin.lo[d];
  }
  return moved;
}

[[noreturn]] void damaged(const std::string& path, const std::string& why) {
  throw DataError(str(path, ": ", why, " (the file is damaged). Use another checkpoint."));
}

void verify_file(const std::string& path, const ShardFile& expected) {
  const File file = File::open(path);
  const std::int64_t size = file.size();
  if (size != expected.bytes)
    damaged(path, str("has ", size, " bytes, of ", expected.bytes, " that were written"));
  Checksum checksum;
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(size, kBlock)));
  for (std::int64_t at = 0; at < size; at += kBlock) {
    const std::int64_t bytes = std::min(kBlock, size - at);
    file.read(block.data(), bytes, at);
    checksum.add(block.data(), bytes);
  }
  if (checksum.value() != expected.checksum)
    damaged(path, "holds other bytes than were written; its checksum does not fit");
}

}  // namespace

struct ShardReader::State {
  std::string directory;
  ShardIndex index;
  std::vector<TensorSpec> specs;
  std::unordered_map<std::string_view, const ShardedTensor*> by_name;

  std::string file(int rank) const { return directory + "/" + shard_file_name(rank); }
  const ShardedTensor& find(const std::string& name) const {
    const auto found = by_name.find(name);
    if (found != by_name.end()) return *found->second;
    std::vector<std::string> names;
    for (const TensorSpec& spec : specs) names.push_back(spec.name);
    throw DataError(str(directory, ": holds no tensor \"", name, "\".", did_you_mean(name, names)));
  }
};

ShardReader::ShardReader(ShardReader&&) noexcept = default;
ShardReader::~ShardReader() = default;

ShardReader::ShardReader(const std::string& directory) : state_(std::make_unique<State>()) {
  state_->directory = directory;
  const std::string path = directory + "/" + kIndexFile;
  state_->index = parse_index(path, read_text_file(path));
  for (const ShardedTensor& tensor : state_->index.tensors) {
    state_->specs.push_back(tensor);
    state_->by_name.emplace(tensor.name, &tensor);
  }
}

const std::string& ShardReader::path() const { return state_->directory; }
const std::vector<TensorSpec>& ShardReader::tensors() const { return state_->specs; }
const Metadata& ShardReader::metadata() const { return state_->index.metadata; }

void ShardReader::verify(const Collective& collective) const {
  collective.together([&] {
    const auto& files = state_->index.files;
    for (std::size_t i = 0; i < files.size(); ++i)
      if (static_cast<int>(i) % collective.size == collective.rank)
        verify_file(state_->file(files[i].rank), files[i]);
  });
}

void ShardReader::read(const std::vector<Request>& requests) const {
  struct Piece {
    const ShardedTensor* tensor;
    Box part;
    Box box;
    const Request* request;
  };
  std::map<int, std::vector<Piece>> by_file;
  for (const Request& request : requests) {
    const ShardedTensor& tensor = state_->find(request.name);
    if (request.box.dims() != tensor.shape.size() || request.box.shape() != request.out.shape ||
        !Box::whole(tensor.shape).contains(request.box))
      throw ShapeError(str("checkpoint: box ", request.box.str(), " of \"", request.name, "\", ",
                           tensor.shape, ", into a view of shape ", request.out.shape, "."));
    for (const ShardPart& part : tensor.parts) {
      const Box common = intersect(part.box, request.box);
      if (!common.empty()) by_file[part.rank].push_back({&tensor, part.box, common, &request});
    }
  }
  for (const auto& [rank, pieces] : by_file) {
    const SafetensorsReader shard(state_->file(rank));
    for (const Piece& piece : pieces) {
      const auto& entry = shard.entry(piece.tensor->name);
      if (entry.shape != piece.part.shape() || entry.dtype != piece.tensor->dtype)
        damaged(shard.path(), str("holds another part of ", entry.name, " than the index says"));
      shard.read_box(entry.name, relative(piece.box, piece.part),
                     piece.request->out.slice(relative(piece.box, piece.request->box)));
    }
  }
}

}  // namespace tessera::io
