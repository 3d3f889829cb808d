#pragma once

#include <functional>
#include <string>
#include <tessera/nn/io/collective.hpp>
#include <vector>

#include "io/part_file.hpp"

namespace tessera::io {

/// An array of a VTK file.
struct VtkSlot {
  enum class Section { kPointData, kCellData, kPoints, kCells };
  Section section = Section::kPointData;
  std::string name;
  DType dtype = DType::kFloat32;  ///< in the file: a common_type()
  std::int64_t tuples = 0;
  std::int64_t components = 1;

  std::int64_t bytes() const {
    return tuples * components * static_cast<std::int64_t>(size_of(dtype));
  }
};

/// What a file says of itself: `<kind attributes><Piece piece>`.
struct VtkHeader {
  std::string kind;  ///< ImageData or UnstructuredGrid
  std::string attributes = {};
  std::string piece;
};

/// A file with one piece: its text, and its arrays as raw binary behind it.
class VtkFile {
 public:
  /// Collective over those that write into it.
  VtkFile(const std::string& path,
          const VtkHeader& header,
          const std::vector<VtkSlot>& slots,
          const Collective& ranks);
  /// The i-th array as [shape...], which has as many elements as its slot.
  FileArray array(std::size_t i, const Shape& shape) const;
  PartFile& file() { return *file_; }

 private:
  std::vector<VtkSlot> slots_;
  std::vector<std::int64_t> offsets_;
  std::optional<PartFile> file_;
};

/// Values of an array of a piece, dense.
struct VtkValues {
  VtkSlot slot;
  std::vector<std::byte> values;
};

/// A piece, and what the index says of it beside its file.
struct VtkPiece {
  bool empty = true;
  VtkHeader header;
  std::vector<VtkValues> arrays;
};

/// Collective: writes each rank's piece as a file and, when all are there, the index. `places` are
/// the attributes of the pieces of all ranks in the index; empty for those that have none.
void write_vtk_pieces(const std::string& path,
                      const VtkPiece& mine,
                      const std::vector<VtkSlot>& slots,
                      const std::vector<std::optional<std::string>>& places,
                      const Collective& ranks);

/// Whether `path` ends in `.p` + ending rather than `.` + ending; UsageError when in neither.
bool in_pieces(const std::string& path, const std::string& ending);

}  // namespace tessera::io
