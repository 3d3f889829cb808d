#pragma once

#include <cstddef>
#include <tessera/nn/io/zarr_writer.hpp>
#include <vector>

namespace tessera::io {

/// `bytes` as a gzip member or a zstd frame; kNone: as they are. Throws OutOfMemory.
std::vector<std::byte> compressed(std::vector<std::byte> bytes,
                                  ZarrOptions::Codec codec,
                                  int level);

}  // namespace tessera::io
