#pragma once

#include <cstdint>
#include <string>
#include <tessera/core/tensor.hpp>
#include <vector>

// Files of the Visualization Toolkit, for ParaView and others: XML with the values as raw binary
// behind it ("VTK XML Formats", docs.vtk.org). A name that ends in .vti or .vtu makes one file that
// all ranks write into; .pvti or .pvtu makes a small index and, in a directory of its name beside
// it, a file per rank that holds a part, which a parallel viewer reads part by part.
//
// bf16 is stored as f32, bool as u8. All calls are collective over the mesh of the tensors; files
// appear whole or not at all, the index last. Throws UsageError, ShapeError, LayoutError (Partial)
// and IoError on every rank alike.
namespace tessera::io {

/// Values with the name under which a viewer lists them.
struct VtkArray {
  std::string name;
  Tensor values;
};

/// Where the points of a grid lie.
struct VtkGrid {
  std::vector<double> origin = {};   ///< of the first point, per domain dimension; default 0
  std::vector<double> spacing = {};  ///< of neighbours, per domain dimension; default 1
  /// Values belong to cells, `origin` is the corner of the first one; by default to points.
  bool cells = false;
  std::int64_t sample = 0;  ///< which one is written
};

/// Writes fields [N, domain..., C] of one domain of 1 to 3 dimensions as image data (`.vti`,
/// `.pvti`); the last domain dimension is x. In pieces, values at points are written up to the
/// first ones of the next piece, so that no gap shows between pieces.
void write_vtk_image(const std::string& path,
                     const std::vector<VtkArray>& fields,
                     const VtkGrid& grid = {});

/// What the rows of VtkMesh::cells are; the values are VTK's.
enum class VtkCell : std::uint8_t {
  kVertex = 1,
  kLine = 3,  ///< edges of a graph
  kTriangle = 5,
  kQuad = 9,
  kTetrahedron = 10,
  kHexahedron = 12,
};

/// Points and what lies between them.
struct VtkMesh {
  Tensor points;  ///< [points, 1 to 3], floating; dimension 0 may be split
  VtkCell kind = VtkCell::kVertex;
  /// [cells, corners] of i64 or i32, the numbers of points (row of `points`, whatever rank has it);
  /// dimension 0 may be split. Undefined: each point is a vertex.
  Tensor cells = {};
};

/// Writes values [points] or [points, C] and [cells] or [cells, C] on an unstructured mesh (`.vtu`,
/// `.pvtu`). In pieces, points that cells of several pieces share are in each of them.
void write_vtk_mesh(const std::string& path,
                    const VtkMesh& mesh,
                    const std::vector<VtkArray>& point_values,
                    const std::vector<VtkArray>& cell_values = {});

}  // namespace tessera::io
