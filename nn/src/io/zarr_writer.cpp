#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <tessera/nn/io/suggest.hpp>
#include <tessera/nn/io/zarr_writer.hpp>

#include "io/blocks.hpp"
#include "io/box_exchange.hpp"
#include "io/compress.hpp"
#include "io/convert.hpp"
#include "io/part_file.hpp"
#include "io/system_calls.hpp"
#include "io/zarr_metadata.hpp"
#include "io/zarr_texts.hpp"

namespace tessera::io {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::int64_t kChunkPoints = 1 << 18;

/// A directory with one level of directories in it.
void remove_store_quietly(const std::string& path) noexcept {
  try {
    for (const auto& entry : std::filesystem::directory_iterator(path))
      if (entry.is_directory() && !entry.is_symlink())
        remove_directory_quietly(entry.path().string());
  } catch (const std::exception&) {
    // What stays only takes room.
  }
  remove_directory_quietly(path);
}

/// Throws unless there is nothing at `path`, or a Zarr store, which may be replaced.
void check_store(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::exists(path, ignored) || fs::exists(path + "/zarr.json", ignored) ||
      fs::exists(path + "/.zgroup", ignored))
    return;
  throw IoError(str(path, ": is there and no Zarr store. Choose another name, or remove it."));
}

Shape default_chunks(const Shape& shape) {
  Shape chunks = shape;
  for (std::int64_t& n : chunks) n = std::max<std::int64_t>(n, 1);
  while (chunks.product() > kChunkPoints) {
    std::int64_t& n = *std::max_element(chunks.begin(), chunks.end());
    n = (n + 1) / 2;
  }
  return chunks;
}

/// A chunk of which some pieces have been written.
struct Pending {
  int owner = 0;
  std::int64_t filled = 0;
};

struct Array {
  ZarrArraySpec spec;  // as it is stored
  Shape shape;
  Shape counts;                             // of chunks
  bool scalar = false;                      // with one row here, without dimensions in the store
  std::int64_t written = 0;                 // points, by all ranks
  std::map<std::int64_t, Pending> pending;  // the same on all ranks
  std::map<std::int64_t, Bytes> buffers;    // of pending chunks that this rank owns

  std::int64_t number(const Index& chunk) const {
    std::int64_t n = 0;
    for (int d = 0; d < counts.size(); ++d) n = n * counts[d] + chunk[d];
    return n;
  }
  Box box(const Index& chunk) const {
    Box box;
    for (int d = 0; d < shape.size(); ++d) {
      box.lo.push_back(chunk[d] * spec.chunks[d]);
      box.hi.push_back(std::min((chunk[d] + 1) * spec.chunks[d], shape[d]));
    }
    return box;
  }
  /// Calls f(chunk) for each that shares points with `part`.
  template <class F>
  void for_each_chunk(const Box& part, F&& f) const {
    if (!part.empty()) for_each_index(chunks_of(part, spec.chunks), f);
  }
  std::size_t element() const { return tessera::size_of(spec.dtype); }
  /// A whole chunk without values: what lies beyond the array stays so.
  Bytes blank() const {
    Bytes bytes(static_cast<std::size_t>(spec.chunks.product()) * element());
    if (is_floating(spec.dtype))
      for (std::int64_t i = 0; i < spec.chunks.product(); ++i)
        store_double(bytes.data(), spec.dtype, i, std::numeric_limits<double>::quiet_NaN());
    return bytes;
  }
  /// Puts the dense piece `part` into a chunk.
  void fill(Bytes& chunk, const Index& index, const Box& part, const std::byte* values) const {
    const View whole = View::dense(chunk.data(), spec.dtype, spec.chunks);
    Box in_chunk = part;
    for (int d = 0; d < shape.size(); ++d) {
      const std::int64_t lo = index[d] * spec.chunks[d];
      in_chunk.set(d, {part.lo[d] - lo, part.hi[d] - lo});
    }
    const View to = whole.slice(in_chunk);
    const BoxRows rows("zarr", to.shape, Box::whole(to.shape), to);
    rows.for_each([&](std::int64_t at, std::int64_t offset) {
      convert(values + static_cast<std::size_t>(at) * element(), spec.dtype, 1,
              to.as<std::byte>() + offset * static_cast<std::int64_t>(element()), spec.dtype,
              rows.view_stride(), rows.row_length());
    });
  }
};

/// The part of a chunk that a rank was given.
struct Piece {
  Index chunk;
  Box box;
  int from = 0;
};

}  // namespace

struct ZarrWriter::State {
  std::string path;
  std::string temporary;
  ZarrOptions options;
  MeshRanks ranks;

  explicit State(const Mesh& mesh) : ranks(mesh) {}
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<Array> arrays;
  std::vector<std::string> files;  // that this rank wrote
  bool owns_temporary = false;

  ~State() {
    if (owns_temporary) remove_store_quietly(temporary);
  }

  Array& array(std::string_view name) {
    std::vector<std::string> names;
    for (Array& a : arrays) {
      if (a.spec.name == name) return a;
      names.push_back(a.spec.name);
    }
    throw UsageError(str("zarr: no array \"", name, "\" was declared.", did_you_mean(name, names)));
  }

  void put(const Array& a, const Index& chunk, Bytes bytes) {
    const Bytes stored = compressed(std::move(bytes), options.codec, options.level);
    const std::string name =
        str(temporary, "/", a.spec.name, "/",
            zarr_key(options.format == 3 ? "c" : "", '.', a.scalar ? Index{} : chunk));
    files.push_back(name);
    File::create(name).write(stored.data(), std::ssize(stored), 0);
  }

  /// Writes the chunks that lie in this rank's part.
  void put_whole(const Array& a, const Box& part, const View& data) {
    a.for_each_chunk(part, [&](const Index& chunk) {
      const Box box = a.box(chunk);
      if (!part.contains(box)) return;
      Bytes bytes = dense_part("zarr", part, data, box, a.spec.dtype);
      if (box.shape() != a.spec.chunks) {
        Bytes full = a.blank();
        a.fill(full, chunk, box, bytes.data());
        bytes = std::move(full);
      }
      put(a, chunk, std::move(bytes));
    });
  }

  /// The pieces of all ranks that are less than a chunk, and their chunks as pending: the same on
  /// all ranks.
  std::vector<Piece> plan(Array& a, const std::vector<Box>& parts) {
    std::vector<Piece> pieces;
    std::map<std::int64_t, std::pair<std::int64_t, int>> largest;  // points, rank
    for (std::size_t r = 0; r < parts.size(); ++r) {
      a.written += parts[r].volume();
      a.for_each_chunk(parts[r], [&](const Index& chunk) {
        const Box box = a.box(chunk);
        if (parts[r].contains(box)) return;
        pieces.push_back({chunk, intersect(box, parts[r]), static_cast<int>(r)});
        const std::int64_t points = pieces.back().box.volume();
        auto& most = largest[a.number(chunk)];
        if (points > most.first) most = {points, static_cast<int>(r)};
      });
    }
    for (const auto& [number, most] : largest)
      a.pending.try_emplace(number, Pending{.owner = most.second});
    return pieces;
  }

  void share(Array& a, const Box& part, const View& data, const std::vector<Piece>& pieces) {
    std::vector<Bytes> to(static_cast<std::size_t>(ranks.size));
    bool any_moves = false;
    for (const Piece& p : pieces) {
      const int owner = a.pending.at(a.number(p.chunk)).owner;
      any_moves = any_moves || owner != p.from;
      if (p.from != ranks.rank) continue;
      const Bytes bytes = dense_part("zarr", part, data, p.box, a.spec.dtype);
      Bytes& out = to[static_cast<std::size_t>(owner)];
      out.insert(out.end(), bytes.begin(), bytes.end());
    }
    const std::vector<Bytes> from = any_moves ? ranks.exchange(to) : to;
    std::vector<std::size_t> next(to.size(), 0);
    ranks.together([&] {
      for (const Piece& p : pieces) {
        const std::int64_t number = a.number(p.chunk);
        const auto found = a.pending.find(number);
        const std::int64_t points = a.box(p.chunk).volume();
        if (found == a.pending.end() || found->second.filled + p.box.volume() > points)
          throw UsageError(str("zarr: chunk ", p.chunk, " of \"", a.spec.name,
                               "\" is given more points than it has (parts overlap). Write each "
                               "part once."));
        Pending& pending = found->second;
        pending.filled += p.box.volume();
        if (pending.owner == ranks.rank) {
          Bytes& chunk = a.buffers[number];
          if (chunk.empty()) chunk = a.blank();
          const auto r = static_cast<std::size_t>(p.from);
          a.fill(chunk, p.chunk, p.box, from[r].data() + next[r]);
          next[r] += static_cast<std::size_t>(p.box.volume()) * a.element();
        }
        if (pending.filled < points) continue;
        if (pending.owner == ranks.rank) {
          put(a, p.chunk, std::move(a.buffers.at(number)));
          a.buffers.erase(number);
        }
        a.pending.erase(found);
      }
    });
  }

  void write_text(const std::string& name, const std::string& text) const {
    const File file = File::create(temporary + "/" + name);
    file.write(text.data(), std::ssize(text), 0);
    file.sync();
  }
};

ZarrWriter::ZarrWriter(ZarrWriter&&) noexcept = default;
ZarrWriter::~ZarrWriter() = default;

ZarrWriter::ZarrWriter(const Mesh& mesh,
                       const std::string& path,
                       const std::vector<NetcdfDimension>& dimensions,
                       const std::vector<ZarrArraySpec>& arrays,
                       const NetcdfAttributes& attributes,
                       const ZarrOptions& options)
    : state_(std::make_unique<State>(mesh)) {
  State& s = *state_;
  s.path = path;
  while (s.path.size() > 1 && s.path.back() == '/') s.path.pop_back();
  s.options = options;
  const MeshRanks& ranks = s.ranks;
  if ((options.format != 2 && options.format != 3) || options.level < 1 || options.level > 9)
    throw UsageError(str("zarr: format ", options.format, ", level ", options.level,
                         " (the format is 2 or 3, the level 1 to 9)."));
  const auto add = [&](ZarrArraySpec spec, const char* what) {
    if (spec.name.empty() || spec.name[0] == '.' || spec.name == "zarr.json" ||
        spec.name.find('/') != std::string::npos)
      throw UsageError(str("zarr: \"", spec.name, "\" cannot be the name of ", what,
                           " (it is a directory: no /, no dot in front)."));
    for (const Array& other : s.arrays)
      if (other.spec.name == spec.name)
        throw UsageError(str("zarr: two arrays are named \"", spec.name, "\". Names must differ."));
    Array a;
    for (const std::string& name : spec.dims) {
      const auto d = std::find_if(dimensions.begin(), dimensions.end(),
                                  [&](const auto& x) { return x.name == name; });
      if (d == dimensions.end())
        throw UsageError(str("zarr: array \"", spec.name, "\" names the dimension \"", name,
                             "\", which is not declared."));
      a.shape.push_back(d->size);
    }
    if (spec.dtype == DType::kBFloat16) spec.dtype = DType::kFloat32;
    if (spec.chunks.empty()) spec.chunks = default_chunks(a.shape);
    if (spec.chunks.size() != a.shape.size() ||
        std::any_of(spec.chunks.begin(), spec.chunks.end(), [](std::int64_t n) { return n < 1; }))
      throw UsageError(str("zarr: chunks ", spec.chunks, " of \"", spec.name, "\" of shape ",
                           a.shape, " (one size of at least 1 for each dimension)."));
    for (int d = 0; d < a.shape.size(); ++d)
      a.counts.push_back((a.shape[d] + spec.chunks[d] - 1) / spec.chunks[d]);
    a.spec = std::move(spec);
    s.arrays.push_back(std::move(a));
  };
  for (const ZarrArraySpec& spec : arrays) add(spec, "an array");
  std::vector<const NetcdfDimension*> coordinates;
  for (const NetcdfDimension& d : dimensions) {
    if (d.coordinates.empty()) continue;
    if (static_cast<std::int64_t>(d.coordinates.size()) != d.size)
      throw UsageError(str("zarr: dimension \"", d.name, "\" of size ", d.size, " has ",
                           d.coordinates.size(),
                           " coordinates. Give one for each point, or none."));
    add({.name = d.name,
         .dims = {d.name},
         .dtype = DType::kFloat64,
         .attributes = d.attributes,
         .chunks = {d.size}},
        "a dimension with coordinates");
    coordinates.push_back(&d);
  }
  std::vector<ZarrArraySpec> specs;
  std::vector<Shape> shapes;
  for (const Array& a : s.arrays) {
    specs.push_back(a.spec);
    shapes.push_back(a.shape);
  }
  for (Array& a : s.arrays) {
    a.scalar = a.shape.empty();
    a.shape = with_rows(a.shape);
    a.counts = with_rows(a.counts);
    a.spec.chunks = with_rows(a.spec.chunks);
  }
  s.metadata = zarr_metadata(specs, shapes, attributes, options);
  s.temporary = temporary_name(s.path, ranks.broadcast(unique_id()));
  ranks.together([&] {
    if (ranks.rank != 0) return;
    check_store(s.path);
    remove_stale_temporaries(s.path, remove_store_quietly);
    s.owns_temporary = true;
    make_directory(s.temporary);
    for (const Array& a : s.arrays) make_directory(s.temporary + "/" + a.spec.name);
  });
  for (const NetcdfDimension* d : coordinates) {
    const bool first = ranks.rank == 0;
    const Box box({0}, {first ? d->size : 0});
    write_box(
        d->name, box,
        View::dense(const_cast<double*>(d->coordinates.data()), DType::kFloat64, box.shape()));
  }
}

void ZarrWriter::write_box(std::string_view array, const Box& box, const View& data) {
  if (box.dims() == 0)
    return write_box(array, Box::whole({1}), View::dense(data.data, data.dtype, {1}, data.device));
  State& s = *state_;
  Array& a = s.array(array);
  s.ranks.together([&] {
    check_convertible("zarr", data.dtype, a.spec.dtype);
    const BoxRows checked("zarr", a.shape, box, data);
  });
  const std::vector<Piece> pieces = s.plan(a, all_boxes(s.ranks, box));
  s.ranks.together([&] { s.put_whole(a, box, data); });
  if (!pieces.empty()) s.share(a, box, data, pieces);
}

void ZarrWriter::write(std::string_view array, const Tensor& tensor, const Index& at) {
  const TensorPart part = part_in("zarr", tensor, state_->array(array).shape, at);
  write_box(array, part.box, part.view);
}

void ZarrWriter::commit() {
  State& s = *state_;
  for (const Array& a : s.arrays)
    check_complete("zarr", a.written, a.shape.product(), str("points of \"", a.spec.name, "\""),
                   s.path);
  s.ranks.together([&] {
    for (const std::string& name : s.files) File::modify(name).sync();
  });
  s.ranks.together([&] {
    if (s.ranks.rank != 0) return;
    for (const auto& [name, text] : s.metadata) s.write_text(name, text);
    for (const Array& a : s.arrays) sync_directory(s.temporary + "/" + a.spec.name);
    sync_directory(s.temporary);
    check_store(s.path);
    std::error_code ignored;
    std::string old;
    if (std::filesystem::exists(s.path, ignored)) {
      old = temporary_name(s.path, unique_id());
      commit_file(s.path, old);
    }
    try {
      commit_file(s.temporary, s.path);
    } catch (const IoError&) {
      if (!old.empty()) system_calls().rename(old.c_str(), s.path.c_str());
      throw;
    }
    if (!old.empty()) remove_store_quietly(old);
  });
  s.owns_temporary = false;
}

}  // namespace tessera::io
