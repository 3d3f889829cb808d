#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <tessera/nn/io/nifti.hpp>

#include "io/dense_array.hpp"

namespace tessera::io {

/// Bytes of the larger header.
inline constexpr std::size_t kNiftiHeaderBytes = 540;

/// A header with what only the reader needs.
struct NiftiLayout {
  NiftiHeader header;
  DenseArray array;      ///< the voxels, decompressed
  std::int64_t end = 0;  ///< behind the last of them
};

/// What the first bytes of a file say; `path` is for messages. Throws DataError. Numbers are in
/// range and their products do not overflow; whether the file is as long is left to the caller.
NiftiLayout parse_nifti(std::span<const std::byte> start, const std::string& path);

/// The header of a file to be written, up to the first voxel. Throws UsageError.
std::string format_nifti(const NiftiSpec& spec);

}  // namespace tessera::io
