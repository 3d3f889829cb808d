#include <metis.h>

#include <algorithm>
#include <numeric>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/nn/graph/mesh_graph.hpp>
#include <tessera/parallel/communicator.hpp>

namespace tessera::nn {

namespace {

using Pair = std::array<std::int64_t, 2>;

struct Shape3 {
  int corners;
  std::vector<std::array<int, 2>> sides;
};

Shape3 sides(CellShape shape) {
  switch (shape) {
    case CellShape::kLine:
      return {2, {{0, 1}}};
    case CellShape::kTriangle:
      return {3, {{0, 1}, {1, 2}, {2, 0}}};
    case CellShape::kQuad:
      return {4, {{0, 1}, {1, 2}, {2, 3}, {3, 0}}};
    case CellShape::kTetrahedron:
      return {4, {{0, 1}, {1, 2}, {2, 0}, {0, 3}, {1, 3}, {2, 3}}};
    default:
      return {8,
              {{0, 1},
               {1, 2},
               {2, 3},
               {3, 0},
               {4, 5},
               {5, 6},
               {6, 7},
               {7, 4},
               {0, 4},
               {1, 5},
               {2, 6},
               {3, 7}}};
  }
}

/// Senders of each receiver, ascending, without repeats.
struct Neighbours {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> of;
};

Neighbours neighbours(const MeshTopology& t) {
  std::vector<Pair> edges;
  edges.reserve(2 * t.pairs.size());
  for (const auto& [a, b] : t.pairs) {
    if (a < 0 || b < 0 || a >= t.nodes || b >= t.nodes) {
      throw ShapeError(str("mesh_graph: pair (", a, ", ", b, ") names a node that is none of ",
                           t.nodes, ". Check the cells."));
    }
    if (a == b)
      throw ShapeError(
          str("mesh_graph: node ", a, " is paired with itself. Leave such pairs out."));
    edges.push_back({a, b});
    edges.push_back({b, a});
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  Neighbours n{std::vector<std::int64_t>(static_cast<std::size_t>(t.nodes) + 1, 0), {}};
  for (const Pair& e : edges) {
    ++n.begin[static_cast<std::size_t>(e[0]) + 1];
    n.of.push_back(e[1]);
  }
  std::partial_sum(n.begin.begin(), n.begin.end(), n.begin.begin());
  return n;
}

std::vector<std::int64_t> partition(const Neighbours& graph, std::int64_t parts) {
  const auto n = static_cast<std::int64_t>(graph.begin.size()) - 1;
  std::vector<std::int64_t> part(static_cast<std::size_t>(n), 0);
  if (parts <= 1 || n == 0) return part;
  if (parts >= n || graph.of.empty()) {
    for (std::int64_t i = 0; i < n; ++i)
      part[static_cast<std::size_t>(i)] = parts >= n ? i : i * parts / n;
    return part;
  }
  constexpr std::int64_t kMost = std::numeric_limits<idx_t>::max();
  if (n >= kMost || static_cast<std::int64_t>(graph.of.size()) >= kMost) {
    throw NotSupported(str("partition_graph: ", n, " nodes with ", graph.of.size(),
                           " edges are more than METIS counts here. Split the mesh before."));
  }
  std::vector<idx_t> begin(graph.begin.begin(), graph.begin.end());
  std::vector<idx_t> of(graph.of.begin(), graph.of.end());
  // A node's work is its own row and the edges that it receives.
  std::vector<idx_t> weight;
  for (std::size_t i = 0; i + 1 < begin.size(); ++i) weight.push_back(1 + begin[i + 1] - begin[i]);
  idx_t count = static_cast<idx_t>(n);
  idx_t constraints = 1;
  idx_t wanted = static_cast<idx_t>(parts);
  idx_t cut = 0;
  std::vector<idx_t> result(static_cast<std::size_t>(n), 0);
  idx_t options[METIS_NOPTIONS];
  METIS_SetDefaultOptions(options);
  options[METIS_OPTION_SEED] = 1;
  const auto run = parts <= 8 ? METIS_PartGraphRecursive : METIS_PartGraphKway;
  const int code = run(&count, &constraints, begin.data(), of.data(), weight.data(), nullptr,
                       nullptr, &wanted, nullptr, nullptr, options, &cut, result.data());
  if (code != METIS_OK)
    throw Error(str("partition_graph: METIS failed with code ", code, ". Check memory."));
  for (std::size_t i = 0; i < part.size(); ++i) part[i] = result[i];
  return part;
}

/// What part `mine` of a mesh has, where node i belongs to part[i].
LocalGraph part_of_mesh(const MeshTopology& t,
                        const Neighbours& graph,
                        const std::vector<std::int64_t>& part,
                        std::int64_t mine,
                        std::int64_t parts) {
  const auto n = static_cast<std::size_t>(t.nodes);
  LocalGraph local;
  local.cells.assign(9, 0.0);
  local.graph_sizes = {t.nodes};
  std::vector<std::int64_t> place(n);  // among the nodes of the part
  std::vector<std::int64_t> count(static_cast<std::size_t>(parts), 0);
  for (std::size_t i = 0; i < n; ++i) place[i] = count[static_cast<std::size_t>(part[i])]++;
  const auto kind = [&](std::size_t i) { return t.kinds.empty() ? 0 : t.kinds[i]; };
  std::vector<std::size_t> ghosts;
  for (std::size_t i = 0; i < n; ++i) {
    if (part[i] != mine) continue;
    local.ids.push_back(static_cast<std::int64_t>(i));
    local.species.push_back(kind(i));
    local.graph_of_node.push_back(0);
    for (std::size_t c = 0; c < 3; ++c)
      local.positions.push_back(t.positions.empty() ? 0.0 : t.positions[3 * i + c]);
    for (auto e = graph.begin[i]; e < graph.begin[i + 1]; ++e) {
      const auto from = static_cast<std::size_t>(graph.of[static_cast<std::size_t>(e)]);
      local.receivers.push_back(place[i]);
      local.senders.push_back(static_cast<std::int64_t>(from));
      if (part[from] != mine) ghosts.push_back(from);
    }
  }
  std::sort(ghosts.begin(), ghosts.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(part[a], place[a]) < std::pair(part[b], place[b]);
  });
  ghosts.erase(std::unique(ghosts.begin(), ghosts.end()), ghosts.end());
  std::vector<std::int64_t> row = place;  // of own nodes; then of ghosts
  for (std::size_t g = 0; g < ghosts.size(); ++g) {
    row[ghosts[g]] = static_cast<std::int64_t>(local.ids.size() + g);
    local.ghost_part.push_back(part[ghosts[g]]);
    local.ghost_node.push_back(place[ghosts[g]]);
    local.ghost_species.push_back(kind(ghosts[g]));
  }
  for (std::int64_t& s : local.senders) s = row[static_cast<std::size_t>(s)];
  local.shifts.assign(3 * local.receivers.size(), 0);
  return local;
}

}  // namespace

std::vector<Pair> sides_of_cells(std::span<const std::int64_t> cells, CellShape shape) {
  const Shape3 s = sides(shape);
  const auto corners = static_cast<std::size_t>(s.corners);
  if (cells.size() % corners != 0) {
    throw ShapeError(str("sides_of_cells: ", cells.size(), " corners are not ", s.corners,
                         " for each cell. Check the cells."));
  }
  std::vector<Pair> pairs;
  for (std::size_t c = 0; c < cells.size(); c += corners) {
    for (const auto& [a, b] : s.sides) {
      const std::int64_t p = cells[c + static_cast<std::size_t>(a)];
      const std::int64_t q = cells[c + static_cast<std::size_t>(b)];
      pairs.push_back({std::min(p, q), std::max(p, q)});
    }
  }
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  return pairs;
}

std::vector<std::int64_t> partition_graph(const MeshTopology& topology, std::int64_t parts) {
  return partition(neighbours(topology), parts);
}

Graph mesh_graph(const MeshTopology& topology,
                 const Mesh& mesh,
                 const std::vector<std::string>& axes,
                 DType dtype) {
  const MeshTopology& t = topology;
  const auto n = static_cast<std::size_t>(t.nodes);
  if (t.nodes < 0 || (!t.positions.empty() && t.positions.size() != 3 * n) ||
      (!t.kinds.empty() && t.kinds.size() != n)) {
    throw ShapeError(str("mesh_graph: ", t.positions.size(), " coordinates and ", t.kinds.size(),
                         " kinds of ", t.nodes, " nodes. Give 3 and 1 for each, or none."));
  }
  std::vector<int> cut;
  AxisMask mask = 0;
  if (axes.empty())
    for (int a = 0; a < mesh.axis_count(); ++a) cut.push_back(a);
  for (const std::string& name : axes) cut.push_back(mesh.axis(name));
  for (const int a : cut) mask |= AxisMask{1} << a;
  const PartNumber number = part_number(mesh, cut);
  const Neighbours graph = neighbours(t);
  // One rank cuts for all: they must agree, whatever METIS they have.
  std::vector<std::int64_t> part(n, 0);
  if (dry_run()) {
    part = partition(graph, number.parts);
  } else if (number.parts > 1) {
    const auto group = parallel::Group::of(mesh, mask);
    if (group.rank() == 0) part = partition(graph, number.parts);
    parallel::broadcast(group, part.data(), 8 * t.nodes, 0, {"mesh_graph", {}, {}}).wait();
  }

  if (!dry_run())
    return make_graph(part_of_mesh(t, graph, part, number.part, number.parts), mesh, cut, dtype);
  std::vector<LocalGraph> all;
  for (std::int64_t p = 0; p < number.parts; ++p)
    all.push_back(part_of_mesh(t, graph, part, p, number.parts));
  return make_graph_of_all(all, mesh, cut, dtype);
}

Tensor node_values(const Graph& graph,
                   std::int64_t width,
                   const std::function<double(std::int64_t, std::int64_t)>& f,
                   DType dtype) {
  Tensor x = Tensor::empty(graph.nodes().with_inserted_dim(1, width), dtype);
  if (dry_run()) return x;
  const View ids = graph.ids.local();
  const View out = x.mutable_local();
  for (std::int64_t i = 0; i < ids.size(); ++i)
    for (std::int64_t c = 0; c < width; ++c)
      store_double(out.data, dtype, i * width + c, f(ids.as<std::int64_t>()[i], c));
  return x;
}

Tensor edge_features(const Tensor& positions, const Graph& graph) {
  const Tensor v = edge_vectors(positions, graph);
  return concat({v, sqrt(sum(square(v), {1}, true))}, 1);
}

}  // namespace tessera::nn
