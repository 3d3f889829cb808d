#pragma once

#include <span>
#include <string>
#include <tessera/core/mesh.hpp>
#include <tessera/core/shape.hpp>
#include <vector>

namespace tessera::app {

/// "64x64x32" or "64,64,32" -> {64, 64, 32}; throws UsageError.
Dims parse_size(const std::string& text);
/// {64, 64, 32} -> "64x64x32"
std::string size_text(std::span<const std::int64_t> size);

/// The axes d, h, w (the last ones for fewer dimensions) over `ranks` ranks that cut a domain of
/// this size with the smallest surface per rank; of equal ones the one that leaves the inner
/// dimensions whole.
std::vector<MeshAxis> choose_axes(const Dims& size, int ranks);

}  // namespace tessera::app
