#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <tessera/nn/io/netcdf.hpp>
#include <vector>

namespace tessera::io {

/// An array to be written.
struct ZarrArraySpec {
  std::string name;
  std::vector<std::string> dims;
  DType dtype = DType::kFloat32;  ///< bf16 is stored as f32
  NetcdfAttributes attributes = {};
  /// Points of a chunk in each dimension; empty: the largest is halved until they are at most 2^18.
  Shape chunks = {};
};

struct ZarrOptions {
  enum class Codec : std::uint8_t { kNone, kGzip, kZstd };
  int format = 3;  ///< version of the format: 2 or 3
  Codec codec = Codec::kZstd;
  int level = 3;  ///< of the compression, 1 (fast) to 9
};

/// Writes a Zarr store (a directory; zarr-specs.readthedocs.io) together with the other
/// ranks of a mesh. A chunk
/// that lies in one rank's part is compressed and written by it; of a chunk that several parts
/// share, one of the ranks receives the pieces, and writes it when it is complete. No rank holds
/// more than its part and the chunks at its edges.
///
/// The store is made under a temporary name, metadata last, and renamed by commit(). Dimension
/// names and coordinates are those that xarray reads.
class ZarrWriter {
 public:
  /// Collective, with the same arguments on every rank. Throws UsageError when an array names an
  /// unknown dimension or chunks do not fit, IoError when the store cannot be created or there is
  /// something else at `path`.
  ZarrWriter(const Mesh& mesh,
             const std::string& path,
             const std::vector<NetcdfDimension>& dimensions,
             const std::vector<ZarrArraySpec>& arrays,
             const NetcdfAttributes& attributes = {},
             const ZarrOptions& options = {});
  ZarrWriter(ZarrWriter&&) noexcept;
  /// Removes the temporary directory unless committed. Not collective.
  ~ZarrWriter();

  /// Collective: each rank writes its part (possibly empty) of the array, in global indices,
  /// disjoint from those of the others and of other calls. Throws on every rank when one fails.
  void write_box(std::string_view array, const Box& box, const View& data);
  /// Collective: the tensor at index `at` of the array (empty: it is all of it); samples and
  /// channels of size 1 may stand around its dimensions. Throws ShapeError, LayoutError when
  /// Partial.
  void write(std::string_view array, const Tensor& tensor, const Index& at = {});
  /// Collective. Checks that the parts cover every array, syncs, renames; what was there before is
  /// then removed. Throws on every rank.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::io
