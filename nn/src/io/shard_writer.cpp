#include <algorithm>
#include <exception>
#include <map>
#include <set>
#include <tessera/nn/io/shards.hpp>
#include <utility>

#include "io/convert.hpp"
#include "io/posix_file.hpp"
#include "io/safetensors_header.hpp"
#include "io/shard_index.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kBlock = 1 << 20;

struct Cancelled {};

/// Bytes on their way into a file, one after the other, and their checksum.
class Stream {
 public:
  Stream(const File& file, const std::function<bool()>& cancelled)
      : file_(file), cancelled_(cancelled) {
    block_.reserve(static_cast<std::size_t>(kBlock));
  }
  void append(const void* data, std::int64_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    while (bytes > 0) {
      if (block_.empty() && bytes >= kBlock) {
        put(from, kBlock);
        from += kBlock;
        bytes -= kBlock;
        continue;
      }
      const std::int64_t n = std::min(bytes, kBlock - std::ssize(block_));
      block_.insert(block_.end(), from, from + n);
      from += n;
      bytes -= n;
      if (std::ssize(block_) == kBlock) flush();
    }
  }
  void flush() {
    put(block_.data(), std::ssize(block_));
    block_.clear();
  }
  std::int64_t bytes() const { return at_; }
  std::uint64_t checksum() const { return checksum_.value(); }

 private:
  void put(const std::byte* data, std::int64_t bytes) {
    if (cancelled_ && cancelled_()) throw Cancelled();
    checksum_.add(data, bytes);
    file_.write(data, bytes, at_);
    at_ += bytes;
  }

  const File& file_;
  const std::function<bool()>& cancelled_;
  Checksum checksum_;
  std::vector<std::byte> block_;
  std::int64_t at_ = 0;
};

void append(Stream& stream, const View& view) {
  const auto element = static_cast<std::int64_t>(size_of(view.dtype));
  if (view.is_dense()) return stream.append(view.data, view.size() * element);
  const BoxRows rows("checkpoint", view.shape, Box::whole(view.shape), view);
  const auto* const source = static_cast<const std::byte*>(view.data);
  std::vector<std::byte> row(static_cast<std::size_t>(rows.row_length() * element));
  rows.for_each([&](std::int64_t, std::int64_t offset) {
    convert(source + offset * element, view.dtype, rows.view_stride(), row.data(), view.dtype, 1,
            rows.row_length());
    stream.append(row.data(), std::ssize(row));
  });
}

}  // namespace

ShardedTensor share_out(std::string name,
                        DType dtype,
                        const Layout& layout,
                        std::vector<std::int64_t>& load) {
  if (layout.partial_axes() != 0)
    throw LayoutError(str("checkpoint: cannot write \"", name, "\" in layout ", layout.str(),
                          " (Partial: its sum was not yet taken). Redistribute it first."));
  const Mesh& mesh = layout.mesh();
  load.resize(static_cast<std::size_t>(mesh.size()));
  ShardedTensor tensor;
  tensor.name = std::move(name);
  tensor.dtype = dtype;
  tensor.shape = layout.shape();
  const AxisMask replicas = mesh.all_axes() & ~layout.split_axes();
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const Box box = layout.owned(rank);
    if (!is_first_replica(layout, rank) || box.empty()) continue;
    const std::vector<int> holders = mesh.group(rank, replicas);
    const auto least = std::min_element(holders.begin(), holders.end(), [&](int a, int b) {
      return load[static_cast<std::size_t>(a)] < load[static_cast<std::size_t>(b)];
    });
    load[static_cast<std::size_t>(*least)] +=
        box.volume() * static_cast<std::int64_t>(size_of(dtype));
    tensor.parts.push_back({.rank = *least, .box = box});
  }
  return tensor;
}

struct ShardWriter::State {
  std::string directory;
  std::string temporary;
  Collective collective;
  ShardIndex index;
  std::vector<Part> parts;  // of this rank
  std::string header;
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;
  bool written = false;
  bool owns_temporary = false;  // nobody else writes there

  const ShardedTensor& of(const Part& part) const { return index.tensors[part.tensor]; }
  void plan();
};

void ShardWriter::State::plan() {
  std::set<std::string_view> names;
  std::map<int, std::int64_t> ranks;  // that write, and their tensors
  for (std::size_t t = 0; t < index.tensors.size(); ++t) {
    const ShardedTensor& tensor = index.tensors[t];
    if (!names.insert(tensor.name).second || !parts_cover(tensor))
      throw UsageError(str("checkpoint: the parts of \"", tensor.name, "\", ", tensor.shape,
                           ", do not make one tensor. Give each name and each part once."));
    std::set<int> once;
    for (const ShardPart& part : tensor.parts) {
      if (part.rank < 0 || part.rank >= collective.size || !once.insert(part.rank).second)
        throw UsageError(str("checkpoint: \"", tensor.name, "\" has two parts on rank ", part.rank,
                             ", or there is no such rank. Give one part per rank."));
      ++ranks[part.rank];
      if (part.rank == collective.rank) parts.push_back({.tensor = t, .box = part.box});
    }
  }
  for (const auto& [rank, tensors] : ranks) index.files.push_back({.rank = rank});
  // Large elements first, so that all are aligned.
  std::stable_sort(parts.begin(), parts.end(), [this](const Part& a, const Part& b) {
    return size_of(of(a).dtype) > size_of(of(b).dtype);
  });
  std::vector<TensorSpec> specs;
  for (const Part& part : parts) specs.push_back({of(part).name, of(part).dtype, part.box.shape()});
  header = format_safetensors_header(lay_out(std::move(specs)), {});
}

ShardWriter::ShardWriter(std::string directory,
                         std::vector<ShardedTensor> tensors,
                         Metadata metadata,
                         const Collective& collective)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.directory = std::move(directory);
  s.collective = collective;
  s.index.tensors = std::move(tensors);
  s.index.metadata = std::move(metadata);
  s.plan();
  s.temporary = temporary_name(s.directory, collective.broadcast(unique_id()));
  collective.together([&] {
    if (collective.rank != 0) return;
    make_directory(s.temporary);
    s.owns_temporary = collective.size == 1;
  });
}

ShardWriter::~ShardWriter() {
  if (state_->owns_temporary) remove_directory_quietly(state_->temporary);
}

const std::vector<ShardWriter::Part>& ShardWriter::local_parts() const { return state_->parts; }

void ShardWriter::write(const std::vector<View>& views, const std::function<bool()>& cancelled) {
  State& s = *state_;
  if (views.size() != s.parts.size())
    throw UsageError(str("checkpoint: ", views.size(), " views for ", s.parts.size(), " parts."));
  for (std::size_t i = 0; i < views.size(); ++i) {
    check_view("checkpoint", views[i], s.parts[i].box.shape());
    const ShardedTensor& tensor = s.of(s.parts[i]);
    if (views[i].dtype != tensor.dtype)
      throw DTypeError(str("checkpoint: \"", tensor.name, "\" is of another type."));
  }
  if (!views.empty()) {
    const File file = File::create(s.temporary + "/" + shard_file_name(s.collective.rank));
    Stream stream(file, cancelled);
    try {
      const std::uint64_t length = s.header.size();
      stream.append(&length, 8);
      stream.append(s.header.data(), std::ssize(s.header));
      for (const View& view : views) append(stream, view);
      stream.flush();
    } catch (const Cancelled&) {
      return;
    }
    file.sync();
    s.bytes = stream.bytes();
    s.checksum = stream.checksum();
  }
  s.written = true;
}

void ShardWriter::commit(const std::exception_ptr& failure) {
  State& s = *state_;
  try {
    s.collective.together([&] {
      if (failure) std::rethrow_exception(failure);
      if (!s.written) throw UsageError("checkpoint: commit before the files were written.");
    });
  } catch (const CommError&) {
    throw;
  } catch (...) {
    s.owns_temporary = s.collective.rank == 0;
    throw;
  }
  s.owns_temporary = s.collective.rank == 0;
  std::vector<std::int64_t> sums(2 * s.index.files.size(), 0);
  for (std::size_t i = 0; i < s.index.files.size(); ++i) {
    if (s.index.files[i].rank != s.collective.rank) continue;
    sums[2 * i] = s.bytes;
    sums[2 * i + 1] = static_cast<std::int64_t>(s.checksum);
  }
  if (s.collective.size > 1) s.collective.sum(sums);
  for (std::size_t i = 0; i < s.index.files.size(); ++i) {
    s.index.files[i].bytes = sums[2 * i];
    s.index.files[i].checksum = static_cast<std::uint64_t>(sums[2 * i + 1]);
  }
  s.collective.together([&] {
    if (s.collective.rank != 0) return;
    const std::string text = format_index(s.index);
    {
      const File file = File::create(s.temporary + "/" + kIndexFile);
      file.write(text.data(), std::ssize(text), 0);
      file.sync();
    }
    sync_directory(s.temporary);
    commit_file(s.temporary, s.directory);
    s.owns_temporary = false;
  });
}

}  // namespace tessera::io
