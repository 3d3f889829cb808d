#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tessera/nn/io/safetensors.hpp>
#include <vector>

namespace tessera::io {

struct SafetensorsHeader {
  std::vector<SafetensorsReader::Entry>
      entries;  // by offset, here counted from the end of the header
  Metadata metadata;
  std::set<std::string, std::less<>> halves;  // names of those stored as F16, which count as f32
};

/// Parses and checks the JSON header; `data_bytes` is what follows it in the file. Throws IoError
/// naming `path`.
SafetensorsHeader parse_safetensors_header(const std::string& path,
                                           std::string_view json,
                                           std::int64_t data_bytes);

/// The header for `entries` (offsets counted from the end of the header), padded to a multiple of 8
/// bytes.
std::string format_safetensors_header(const std::vector<SafetensorsReader::Entry>& entries,
                                      const Metadata& metadata);

/// Entries for these tensors, one after the other; offsets counted from the end of the header.
/// Throws UsageError for a tensor that is too large.
std::vector<SafetensorsReader::Entry> lay_out(std::vector<TensorSpec> tensors);

/// The element type that safetensors_name() calls so; empty: none.
std::optional<DType> dtype_of_safetensors(std::string_view name);

/// Whether mesh rank `rank` is the first of those that hold its part.
bool is_first_replica(const Layout& layout, int rank);

/// Bytes of a tensor; -1 when the number does not fit into 63 bits.
std::int64_t tensor_bytes(const Shape& shape, DType dtype);

}  // namespace tessera::io
