#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <tessera/nn/graph/graph.hpp>
#include <vector>

namespace tessera::nn {

/// Kinds of cells of a mesh, whose sides become edges.
enum class CellShape : std::uint8_t { kLine, kTriangle, kQuad, kTetrahedron, kHexahedron };

/// A mesh, or any graph that every rank has in memory.
struct MeshTopology {
  std::int64_t nodes = 0;
  /// Pairs of nodes; each makes an edge in both directions. Repeats count once.
  std::vector<std::array<std::int64_t, 2>> pairs = {};
  std::vector<double> positions = {};    ///< 3 per node (flat meshes: z = 0); empty: zeros
  std::vector<std::int64_t> kinds = {};  ///< of nodes; empty: 0
};

/// The sides of cells, each once, ascending; `cells` holds the corners of one cell after another
/// (quads and hexahedra in the usual order: around the bottom, then around the top). Throws
/// ShapeError for a number of corners that is no multiple.
std::vector<std::array<std::int64_t, 2>> sides_of_cells(std::span<const std::int64_t> cells,
                                                        CellShape shape);

/// A part for each node, so that parts have about equal numbers of edges and few edges between
/// them: METIS (Karypis and Kumar, SIAM J. Sci. Comput. 20, 359, 1998). The same for equal
/// arguments.
std::vector<std::int64_t> partition_graph(const MeshTopology& topology, std::int64_t parts);

/// The graph of a mesh whose nodes are split over `axes` (empty: all axes of the mesh). Nodes are
/// in the order of (part, number in the topology); `ids` are those numbers. Throws ShapeError for
/// nodes that do not exist and for pairs of a node with itself.
Graph mesh_graph(const MeshTopology& topology,
                 const Mesh& mesh,
                 const std::vector<std::string>& axes = {},
                 DType dtype = DType::kFloat32);

/// x[n, c] = f(id of node n, c), [N, width]: how values that are known by id become values of
/// nodes.
Tensor node_values(const Graph& graph,
                   std::int64_t width,
                   const std::function<double(std::int64_t id, std::int64_t c)>& f,
                   DType dtype = DType::kFloat32);

/// v and |v| of each edge: [E, 4]. Differentiable in the positions.
Tensor edge_features(const Tensor& positions, const Graph& graph);

}  // namespace tessera::nn
