#include <algorithm>
#include <bit>
#include <cstring>
#include <tessera/nn/io/safetensors.hpp>
#include <tessera/nn/io/suggest.hpp>
#include <unordered_map>

#include "io/convert.hpp"
#include "io/posix_file.hpp"
#include "io/safetensors_header.hpp"
#include "io/stored_type.hpp"

static_assert(std::endian::native == std::endian::little, "safetensors files are little endian");

namespace tessera::io {
namespace {

constexpr std::int64_t kMaxHeader = 100'000'000;  // the limit of the reference implementation
constexpr std::int64_t kBlock = 1 << 20;          // bytes of one read
constexpr std::int64_t kGap = 4096;               // rows closer than this are read in one go

}  // namespace

struct SafetensorsReader::State {
  explicit State(const std::string& path) : file(File::open(path)) {}

  File file;
  SafetensorsHeader header;
  std::unordered_map<std::string_view, const Entry*> index;
  std::int64_t bytes_read = 0;

  void read(void* data, std::int64_t bytes, std::int64_t offset) {
    file.read(data, bytes, offset);
    bytes_read += bytes;
  }
};

SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader::~SafetensorsReader() = default;

SafetensorsReader::SafetensorsReader(const std::string& path)
    : state_(std::make_unique<State>(path)) {
  const std::int64_t size = state_->file.size();
  const auto invalid = [&](const std::string& why) {
    throw DataError(str(path, ": not a valid safetensors file (", why,
                        "). The file is damaged or of another kind."));
  };
  if (size < 8) invalid(str("only ", size, " bytes long"));
  std::uint64_t length = 0;
  state_->read(&length, 8, 0);
  if (length > static_cast<std::uint64_t>(size - 8))
    invalid(str("a header of ", length, " bytes in a file of ", size, " bytes"));
  if (length > static_cast<std::uint64_t>(kMaxHeader))
    invalid(str("a header of ", length, " bytes"));
  std::string json(static_cast<std::size_t>(length), '\0');
  const auto start = 8 + static_cast<std::int64_t>(length);
  state_->read(json.data(), start - 8, 8);
  state_->header = parse_safetensors_header(path, json, size - start);
  for (Entry& entry : state_->header.entries) {
    entry.offset += start;
    state_->index.emplace(entry.name, &entry);
  }
}

const std::string& SafetensorsReader::path() const { return state_->file.path(); }
const std::vector<SafetensorsReader::Entry>& SafetensorsReader::entries() const {
  return state_->header.entries;
}
const Metadata& SafetensorsReader::metadata() const { return state_->header.metadata; }
bool SafetensorsReader::contains(std::string_view name) const {
  return state_->index.count(name) > 0;
}
std::int64_t SafetensorsReader::bytes_read() const { return state_->bytes_read; }

const SafetensorsReader::Entry& SafetensorsReader::entry(std::string_view name) const {
  const auto found = state_->index.find(name);
  if (found != state_->index.end()) return *found->second;
  std::vector<std::string> names;
  for (const Entry& entry : entries()) names.push_back(entry.name);
  throw DataError(str(path(), ": holds no tensor \"", name, "\".", did_you_mean(name, names)));
}

void SafetensorsReader::read_box(std::string_view name, const Box& box, const View& out) const {
  const Entry& from = entry(name);
  check_convertible("safetensors", from.dtype, out.dtype);
  const BoxRows rows("safetensors", from.shape, box, out);
  const bool half = state_->header.halves.contains(name);
  const auto element = static_cast<std::int64_t>(size_of(half ? DType::kBFloat16 : from.dtype));
  const auto out_element = static_cast<std::int64_t>(size_of(out.dtype));
  auto* const target = static_cast<std::byte*>(out.data);

  struct Part {
    std::int64_t array_offset, view_offset, count;
  };
  std::vector<Part> parts;
  std::vector<std::byte> block;
  std::vector<double> values;
  const auto flush = [&] {
    if (parts.empty()) return;
    const std::int64_t begin = parts.front().array_offset;
    const std::int64_t bytes = (parts.back().array_offset + parts.back().count - begin) * element;
    block.resize(static_cast<std::size_t>(bytes));
    state_->read(block.data(), bytes, from.offset + begin * element);
    for (const Part& part : parts) {
      const std::byte* const stored = block.data() + (part.array_offset - begin) * element;
      std::byte* const to = target + part.view_offset * out_element;
      if (half) {
        values.resize(static_cast<std::size_t>(part.count));
        load_doubles(StoredType::kFloat16, stored, 1, part.count, values.data());
        convert(values.data(), DType::kFloat64, 1, to, out.dtype, rows.view_stride(), part.count);
      } else {
        convert(stored, from.dtype, 1, to, out.dtype, rows.view_stride(), part.count);
      }
    }
    parts.clear();
  };
  const std::int64_t most = kBlock / element;
  rows.for_each([&](std::int64_t array_offset, std::int64_t view_offset) {
    for (std::int64_t done = 0; done < rows.row_length();) {
      const std::int64_t count = std::min(rows.row_length() - done, most);
      const std::int64_t at = array_offset + done;
      if (!parts.empty() &&
          (at + count - parts.front().array_offset > most ||
           (at - parts.back().array_offset - parts.back().count) * element > kGap))
        flush();
      parts.push_back({at, view_offset + done * rows.view_stride(), count});
      done += count;
    }
  });
  flush();
}

Tensor SafetensorsReader::read(std::string_view name, const Layout& layout) const {
  return read(name, layout, entry(name).dtype);
}

Tensor SafetensorsReader::read(std::string_view name, const Layout& layout, DType dtype) const {
  if (layout.partial_axes() != 0)
    throw LayoutError(str("safetensors: cannot read \"", name, "\" into ", layout.str(),
                          " (a Partial value has no parts in a file). Read with layout.dual()."));
  const Entry& from = entry(name);
  if (from.shape != layout.shape())
    throw ShapeError(str("safetensors: \"", name, "\" has shape ", from.shape, " in ", path(),
                         ", but ", layout.shape(),
                         " is wanted. The file belongs to another model or setting."));
  Tensor tensor = Tensor::empty(layout, dtype);
  if (!tensor.local_box().empty()) read_box(name, tensor.local_box(), tensor.mutable_local());
  return tensor;
}

}  // namespace tessera::io
