#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <tessera/nn/io/safetensors.hpp>
#include <tessera/nn/io/suggest.hpp>
#include <unordered_map>
#include <utility>

#include "io/convert.hpp"
#include "io/part_file.hpp"
#include "io/safetensors_header.hpp"

namespace tessera::io {
namespace {

std::vector<SafetensorsReader::Entry> place(std::vector<TensorSpec> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return std::pair(size_of(b.dtype), std::string_view(a.name)) <
           std::pair(size_of(a.dtype), std::string_view(b.name));
  });
  for (const TensorSpec& spec : tensors)
    if (spec.name == "__metadata__")
      throw UsageError("safetensors: the name __metadata__ is reserved. Use another.");
  return lay_out(std::move(tensors));
}

}  // namespace

struct SafetensorsWriter::State {
  std::string path;
  Collective collective;
  std::vector<SafetensorsReader::Entry> entries;  // offsets from the start of the file
  std::unordered_map<std::string_view, const SafetensorsReader::Entry*> index;
  std::optional<PartFile> file;
  std::exception_ptr failure;  // the first that this rank met while writing
  std::int64_t elements_written = 0;
};

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     std::vector<TensorSpec> tensors,
                                     const Metadata& metadata,
                                     const Collective& collective)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path;
  s.collective = collective;
  s.entries = place(std::move(tensors));
  std::int64_t end = 0;
  for (const auto& entry : s.entries) {
    if (!s.index.emplace(entry.name, &entry).second)
      throw UsageError(
          str("safetensors: two tensors are named \"", entry.name, "\". Names must differ."));
    end = entry.offset + tensor_bytes(entry.shape, entry.dtype);
  }
  const std::string header = format_safetensors_header(s.entries, metadata);
  const auto start = static_cast<std::int64_t>(8 + header.size());
  for (auto& entry : s.entries) entry.offset += start;

  const std::uint64_t length = header.size();
  std::string head(8, '\0');
  std::memcpy(head.data(), &length, 8);
  s.file.emplace(path, head + header, start + end, collective);
}

void SafetensorsWriter::write_box(std::string_view name, const Box& box, const View& data) {
  State& s = *state_;
  const auto found = s.index.find(name);
  if (found == s.index.end()) {
    std::vector<std::string> names;
    for (const auto& entry : s.entries) names.push_back(entry.name);
    throw UsageError(
        str("safetensors: no tensor \"", name, "\" was declared.", did_you_mean(name, names)));
  }
  const SafetensorsReader::Entry& to = *found->second;
  check_convertible("safetensors", data.dtype, to.dtype);
  const BoxRows checked("safetensors", to.shape, box, data);
  if (s.failure) return;
  try {
    s.file->write_box("safetensors", {.offset = to.offset, .shape = to.shape, .dtype = to.dtype},
                      box, data);
    s.elements_written += box.volume();
  } catch (const IoError&) {
    s.failure = std::current_exception();
  }
}

void SafetensorsWriter::write(std::string_view name, const Tensor& tensor) {
  if (tensor.layout().partial_axes() != 0)
    throw LayoutError(str("safetensors: cannot write \"", name, "\" in layout ",
                          tensor.layout().str(),
                          " (Partial: its sum was not yet taken). Redistribute it first."));
  if (is_first_replica(tensor.layout())) write_box(name, tensor.local_box(), tensor.local());
}

void SafetensorsWriter::commit() {
  State& s = *state_;
  s.collective.together([&] {
    if (s.failure) std::rethrow_exception(s.failure);
    s.file->sync();
  });
  std::int64_t declared = 0;
  for (const auto& entry : s.entries) declared += entry.shape.product();
  const std::int64_t written = s.collective.total(s.elements_written);
  check_complete("safetensors", written, declared, "elements", s.path);
  s.file->commit();
}

bool is_first_replica(const Layout& layout) {
  const int rank = layout.mesh().rank();
  return rank >= 0 && is_first_replica(layout, rank);
}

bool is_first_replica(const Layout& layout, int rank) {
  const Mesh& mesh = layout.mesh();
  const AxisMask split = layout.split_axes();
  for (int axis = 0; axis < mesh.axis_count(); ++axis)
    if (!(split >> axis & 1u) && mesh.coordinate(rank, axis) != 0) return false;
  return true;
}

}  // namespace tessera::io
