#pragma once

#include <map>
#include <string>
#include <tessera/nn/io/zarr_writer.hpp>

namespace tessera::io {

/// The files of metadata of a store, by their names in it, those of the root last; `arrays` hold
/// their chunks, and coordinates count as arrays. Throws UsageError for text that is not UTF-8.
std::vector<std::pair<std::string, std::string>> zarr_metadata(
    const std::vector<ZarrArraySpec>& arrays,
    const std::vector<Shape>& shapes,
    const NetcdfAttributes& attributes,
    const ZarrOptions& options);

}  // namespace tessera::io
