#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <tessera/nn/io/nifti.hpp>

namespace tessera::io {

/// How voxels lie in a file.
enum class NiftiType : std::uint8_t {
  kUInt8,
  kInt8,
  kInt16,
  kUInt16,
  kInt32,
  kUInt32,
  kInt64,
  kUInt64,
  kFloat32,
  kFloat64
};

/// Calls `f.template operator()<T>()` with the C++ type of `type`.
template <class F>
decltype(auto) visit_nifti(NiftiType type, F&& f) {
  switch (type) {
    case NiftiType::kUInt8:
      return f.template operator()<std::uint8_t>();
    case NiftiType::kInt8:
      return f.template operator()<std::int8_t>();
    case NiftiType::kInt16:
      return f.template operator()<std::int16_t>();
    case NiftiType::kUInt16:
      return f.template operator()<std::uint16_t>();
    case NiftiType::kInt32:
      return f.template operator()<std::int32_t>();
    case NiftiType::kUInt32:
      return f.template operator()<std::uint32_t>();
    case NiftiType::kInt64:
      return f.template operator()<std::int64_t>();
    case NiftiType::kUInt64:
      return f.template operator()<std::uint64_t>();
    case NiftiType::kFloat32:
      return f.template operator()<float>();
    case NiftiType::kFloat64:
      return f.template operator()<double>();
  }
  throw DTypeError("nifti: unknown element type");
}

/// Bytes of the larger header.
inline constexpr std::size_t kNiftiHeaderBytes = 540;

/// A header with what only the reader needs.
struct NiftiLayout {
  NiftiHeader header;
  NiftiType type = NiftiType::kUInt8;
  bool swapped = false;       ///< bytes lie in the other order than this machine's
  std::int64_t offset = 0;    ///< of the first voxel
  std::int64_t elements = 0;  ///< of the volume
  std::int64_t element = 1;   ///< bytes of one voxel
  std::int64_t end() const { return offset + elements * element; }
};

/// What the first bytes of a file say; `path` is for messages. Throws DataError. Numbers are in
/// range and their products do not overflow; whether the file is as long is left to the caller.
NiftiLayout parse_nifti(std::span<const std::byte> start, const std::string& path);

/// The header of a file to be written, up to the first voxel. Throws UsageError.
std::string format_nifti(const NiftiSpec& spec);

}  // namespace tessera::io
