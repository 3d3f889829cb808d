#include <algorithm>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/gather.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/nn/graph/graph.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/redistribute.hpp>

namespace tessera::nn {

namespace {

std::int64_t count(const std::vector<std::int64_t>& v) {
  return static_cast<std::int64_t>(v.size());
}

/// What is wrong with a part, or nothing.
std::string fault(const LocalGraph& part) {
  const std::size_t n = part.ids.size();
  const std::size_t e = part.receivers.size();
  const std::size_t g = part.graph_sizes.size();
  if (part.species.size() != n || part.graph_of_node.size() != n || part.positions.size() != 3 * n)
    return "its lists of nodes differ in length";
  if (part.senders.size() != e || part.shifts.size() != 3 * e)
    return "its lists of edges differ in length";
  if (part.ghost_part.size() != part.ghost_node.size() ||
      part.ghost_part.size() != part.ghost_species.size())
    return "its lists of ghosts differ in length";
  if (part.cells.size() != 9 * g) return "cells are not 9 numbers for each graph";
  if (!std::is_sorted(part.receivers.begin(), part.receivers.end()))
    return "edges are not sorted by receiver";
  const auto rows = static_cast<std::int64_t>(n + part.ghost_part.size());
  for (std::size_t i = 0; i < e; ++i) {
    if (part.receivers[i] < 0 || part.receivers[i] >= static_cast<std::int64_t>(n))
      return str("edge ", i, " has receiver ", part.receivers[i], ", which is no node of its own");
    if (part.senders[i] < 0 || part.senders[i] >= rows)
      return str("edge ", i, " has sender ", part.senders[i], ", which is neither node nor ghost");
  }
  for (const std::int64_t graph : part.graph_of_node)
    if (graph < 0 || graph >= static_cast<std::int64_t>(g)) return "a node is in no graph";
  return {};
}

Tensor integers(const std::vector<std::int64_t>& values, const Layout& layout) {
  return Tensor::from_local(
      View::dense(const_cast<std::int64_t*>(values.data()), DType::kInt64, {count(values)}),
      layout);
}

template <class T>
Tensor floats(const std::vector<T>& values, const Layout& layout, DType dtype) {
  Tensor x = Tensor::empty(layout, dtype);
  if (dry_run()) return x;
  const View view = x.mutable_local();
  for (std::size_t i = 0; i < values.size(); ++i)
    store_double(view.data, dtype, static_cast<std::int64_t>(i), static_cast<double>(values[i]));
  return x;
}

Layout list(const Mesh& mesh, const std::vector<int>& axes, const Bounds& bounds) {
  return Layout::make(mesh, {bounds.back()},
                      {axes.empty() ? DimSplit{} : DimSplit{.axes = axes, .bounds = bounds}});
}

/// The number of the first edge of each of `nodes` nodes from `first_node` on.
std::vector<std::int64_t> starts(const std::vector<std::int64_t>& receivers,
                                 std::int64_t first_node,
                                 std::int64_t nodes,
                                 std::int64_t first_edge) {
  std::vector<std::int64_t> list(static_cast<std::size_t>(nodes));
  std::size_t at = 0;
  for (std::int64_t i = 0; i < nodes; ++i) {
    while (at < receivers.size() && receivers[at] < first_node + i) ++at;
    list[static_cast<std::size_t>(i)] = first_edge + static_cast<std::int64_t>(at);
  }
  return list;
}

/// What all ranks know of a part.
struct Counts {
  std::int64_t part, nodes, edges, shifted, wrong;
};

Counts count_part(const LocalGraph& part, std::int64_t number, const std::string& wrong) {
  const bool shifted =
      std::any_of(part.shifts.begin(), part.shifts.end(), [](std::int32_t s) { return s != 0; });
  return {number, count(part.ids), count(part.receivers), shifted ? 1 : 0, wrong.empty() ? 0 : 1};
}

/// Where the parts lie.
struct Cuts {
  Bounds nodes{0};
  Bounds edges{0};
  bool shifted = false;

  explicit Cuts(const std::vector<Counts>& all) {
    for (const Counts& c : all) {
      nodes.push_back(nodes.back() + c.nodes);
      edges.push_back(edges.back() + c.edges);
      shifted = shifted || c.shifted != 0;
    }
  }
};

std::vector<std::int64_t> global_ghosts(const LocalGraph& part, const Bounds& nodes) {
  std::vector<std::int64_t> ghosts(part.ghost_part.size());
  for (std::size_t i = 0; i < ghosts.size(); ++i)
    ghosts[i] = nodes[static_cast<std::size_t>(part.ghost_part[i])] + part.ghost_node[i];
  return ghosts;
}

[[noreturn]] void throw_wrong(std::int64_t part, const std::string& wrong) {
  throw ShapeError(str("make_graph: part ", part, " does not describe a graph (",
                       wrong.empty() ? "see the rank that has it" : wrong,
                       "). Check what it was made of."));
}

/// The graph once its ghosts have a plan.
Graph assemble(const LocalGraph& part,
               const GhostRows& ghosts,
               const Cuts& cuts,
               const std::vector<int>& axes,
               DType dtype) {
  Graph graph;
  graph.ghosts = ghosts;
  graph.has_shifts = cuts.shifted;
  const Layout& node_list = ghosts.owners();
  const Mesh& mesh = node_list.mesh();
  const Layout edge_list = list(mesh, axes, cuts.edges);
  const Layout& row_list = graph.rows().layout();
  const std::int64_t first_node = node_list.local_box().lo[0];
  const std::int64_t first_row = row_list.local_box().lo[0];
  const std::int64_t first_edge = edge_list.local_box().lo[0];

  graph.first_edge = integers(starts(part.receivers, 0, count(part.ids), first_edge), node_list);
  std::vector<std::int64_t> numbers = part.receivers;
  for (std::int64_t& r : numbers) r += first_node;
  graph.receivers = integers(numbers, edge_list);
  for (std::int64_t& r : numbers) r += first_row - first_node;
  graph.receiver_rows = integers(numbers, edge_list);
  numbers = part.senders;
  for (std::int64_t& s : numbers) s += first_row;
  graph.senders = integers(numbers, edge_list);
  for (std::size_t e = 0; e < numbers.size(); ++e)
    numbers[e] = part.graph_of_node[static_cast<std::size_t>(part.receivers[e])];
  graph.graph_of_edge = integers(numbers, edge_list);
  graph.graph_of_node = integers(part.graph_of_node, node_list);
  graph.species = integers(part.species, node_list);
  graph.ids = integers(part.ids, node_list);
  numbers = part.species;
  numbers.insert(numbers.end(), part.ghost_species.begin(), part.ghost_species.end());
  graph.row_species = integers(numbers, row_list);
  graph.shifts = floats(part.shifts, edge_list.with_inserted_dim(1, 3), dtype);
  graph.positions = floats(part.positions, node_list.with_inserted_dim(1, 3), dtype);
  graph.cells =
      floats(part.cells, Layout::replicated(mesh, {count(part.graph_sizes), 3, 3}), dtype);
  graph.graph_sizes = part.graph_sizes;
  return graph;
}

}  // namespace

PartNumber part_number(const Mesh& mesh, const std::vector<int>& axes) {
  PartNumber number;
  for (const int axis : axes) {
    number.part = number.part * mesh.axis_size(axis) + mesh.coordinate(mesh.rank(), axis);
    number.parts *= mesh.axis_size(axis);
  }
  return number;
}

Graph make_graph(const LocalGraph& part,
                 const Mesh& mesh,
                 const std::vector<int>& axes,
                 DType dtype) {
  const PartNumber number = part_number(mesh, axes);
  AxisMask mask = 0;
  for (const int axis : axes) mask |= AxisMask{1} << axis;
  const std::string wrong = fault(part);
  const Counts mine = count_part(part, number.part, wrong);
  std::vector<Counts> all(static_cast<std::size_t>(number.parts));
  const auto group = parallel::Group::of(mesh, mask);
  parallel::all_gather(group, &mine, all.data(), sizeof mine, {"make_graph", {}, {}}).wait();
  std::sort(all.begin(), all.end(),
            [](const Counts& a, const Counts& b) { return a.part < b.part; });
  for (const Counts& c : all)
    if (c.wrong != 0) throw_wrong(c.part, wrong);
  const Cuts cuts(all);
  const auto ghosts =
      GhostRows::make(list(mesh, axes, cuts.nodes), global_ghosts(part, cuts.nodes));
  return assemble(part, ghosts, cuts, axes, dtype);
}

Graph make_graph_of_all(const std::vector<LocalGraph>& parts,
                        const Mesh& mesh,
                        const std::vector<int>& axes,
                        DType dtype) {
  const PartNumber number = part_number(mesh, axes);
  if (static_cast<std::int64_t>(parts.size()) != number.parts) {
    throw ShapeError(str("make_graph: ", parts.size(), " parts for ", number.parts,
                         " ranks. Give one for each."));
  }
  std::vector<Counts> all;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const auto at = static_cast<std::int64_t>(p);
    const std::string wrong = fault(parts[p]);
    if (!wrong.empty()) throw_wrong(at, wrong);
    all.push_back(count_part(parts[p], at, wrong));
  }
  const Cuts cuts(all);
  std::vector<std::vector<std::int64_t>> ghosts;
  ghosts.reserve(parts.size());
  for (const LocalGraph& p : parts) ghosts.push_back(global_ghosts(p, cuts.nodes));
  return assemble(parts[static_cast<std::size_t>(number.part)],
                  GhostRows::make_known(list(mesh, axes, cuts.nodes), ghosts), cuts, axes, dtype);
}

Tensor node_rows(const Tensor& x, const Graph& graph) { return ghost_rows(x, graph.ghosts); }

GhostRowsInFlight start_node_rows(const Tensor& x, const Graph& graph) {
  return start_ghost_rows(x, graph.ghosts);
}

Tensor at_senders(const Tensor& rows, const Graph& graph) {
  return gather_own(rows, graph.senders, graph.rows());
}

Tensor at_receivers(const Tensor& x, const Graph& graph) {
  return segment_spread(x, graph.edges());
}

Tensor sum_edges(const Tensor& x, const Graph& graph) { return segment_sum(x, graph.edges()); }

Tensor sum_nodes(const Tensor& x, const Graph& graph) {
  Shape shape = x.shape();
  if (!shape.empty()) shape[0] = graph.graph_count();
  return scatter_add(x, graph.graph_of_node, Layout::replicated(x.mesh(), shape));
}

Tensor graph_at_nodes(const Tensor& x, const Graph& graph) {
  return gather(x, graph.graph_of_node);
}

Tensor graph_at_edges(const Tensor& x, const Graph& graph) {
  return gather(x, graph.graph_of_edge);
}

Tensor edge_vectors(const Tensor& positions, const Graph& graph, const Tensor& cells) {
  return edge_vectors_of_rows(node_rows(positions, graph), graph, cells);
}

Tensor edge_vectors_of_rows(const Tensor& rows, const Graph& graph, const Tensor& cells) {
  // The own rows among all rows: receivers lie there, too.
  Tensor v = gather_own(rows, graph.receiver_rows, graph.rows()) - at_senders(rows, graph);
  if (!graph.has_shifts && !cells.defined()) return v;
  const Tensor& h = cells.defined() ? cells : graph.cells;
  if (graph.graph_count() == 1) return v + matmul(graph.shifts, reshape(h, {3, 3}));
  const Tensor own = reshape(graph_at_edges(reshape(h, {graph.graph_count(), 9}), graph),
                             {graph.edge_count(), 3, 3});
  return v + sum(reshape(graph.shifts, {graph.edge_count(), 3, 1}) * own, {1});
}

Graph shorter_edges(const Graph& graph, const Tensor& rows, double cutoff) {
  const Layout& row_list = graph.rows().layout();
  if (!(rows.shape() == Shape{graph.row_count(), 3})) {
    throw ShapeError(str("shorter_edges: positions ", rows.shape(), " are not those of ",
                         graph.row_count(), " rows [R, 3]. Pass node_rows(positions, graph)."));
  }
  if (dry_run()) return graph;
  const Tensor placed =
      parallel::redistribute(rows.detach(), row_list.with_inserted_dim(1, 3), "shorter_edges");
  const View r = placed.local();
  const View cells = graph.cells.local();
  const View shifts = graph.shifts.local();
  const std::int64_t first_row = row_list.local_box().lo[0];
  const auto* const senders = graph.senders.local().as<std::int64_t>();
  const auto* const receivers = graph.receivers.local().as<std::int64_t>();
  const auto* const receiver_rows = graph.receiver_rows.local().as<std::int64_t>();
  const auto* const graphs = graph.graph_of_edge.local().as<std::int64_t>();
  const auto at = [](const View& v, std::int64_t i) { return load_as_double(v.data, v.dtype, i); };
  std::vector<double> place(static_cast<std::size_t>(r.size()));
  for (std::int64_t i = 0; i < r.shape[0]; ++i) {
    for (std::int64_t c = 0; c < 3; ++c)
      place[static_cast<std::size_t>(3 * i + c)] = at(r, i * r.strides[0] + c * r.strides[1]);
  }
  std::vector<double> vectors(static_cast<std::size_t>(cells.size()));
  for (std::int64_t i = 0; i < cells.size(); ++i)
    vectors[static_cast<std::size_t>(i)] = at(cells, i);

  LocalGraph kept;  // of which the lists of edges are used
  std::vector<std::int64_t> of;
  for (std::int64_t e = 0; e < shifts.shape[0]; ++e) {
    const double* const a = &place[static_cast<std::size_t>(3 * (receiver_rows[e] - first_row))];
    const double* const b = &place[static_cast<std::size_t>(3 * (senders[e] - first_row))];
    const double* const cell = &vectors[static_cast<std::size_t>(9 * graphs[e])];
    const double s[3] = {at(shifts, 3 * e), at(shifts, 3 * e + 1), at(shifts, 3 * e + 2)};
    double square = 0.0;
    for (int c = 0; c < 3; ++c) {
      const double v = (a[c] - b[c]) + (s[0] * cell[c] + s[1] * cell[3 + c] + s[2] * cell[6 + c]);
      square += v * v;
    }
    if (square >= cutoff * cutoff) continue;
    kept.senders.push_back(senders[e]);
    kept.receivers.push_back(receivers[e]);
    of.push_back(graphs[e]);
    for (const double x : s) kept.shifts.push_back(static_cast<std::int32_t>(x));
  }

  const Layout& nodes = graph.nodes();
  const Mesh& mesh = nodes.mesh();
  const AxisMask mask = nodes.axes_of(0);
  const auto counts = parallel::all_gather_counts(
      parallel::Group::of(mesh, mask), count(kept.receivers), {"shorter_edges", nodes, {}});
  const std::vector<int> members = mesh.group(mesh.rank(), mask);
  Bounds edges(counts.size() + 1, 0);
  for (std::size_t m = 0; m < members.size(); ++m)
    edges[static_cast<std::size_t>(nodes.part_of(0, members[m])) + 1] = counts[m];
  for (std::size_t p = 1; p < edges.size(); ++p) edges[p] += edges[p - 1];
  if (edges.back() == graph.edge_count()) return graph;

  Graph shorter = graph;
  const Layout edge_list = list(mesh, nodes.split(0).axes, edges);
  const std::int64_t first_node = nodes.local_box().lo[0];
  shorter.senders = integers(kept.senders, edge_list);
  shorter.receivers = integers(kept.receivers, edge_list);
  shorter.graph_of_edge = integers(of, edge_list);
  shorter.first_edge = integers(
      starts(kept.receivers, first_node, nodes.local_box()[0].size(), edge_list.local_box().lo[0]),
      nodes);
  for (std::int64_t& i : kept.receivers) i += first_row - first_node;
  shorter.receiver_rows = integers(kept.receivers, edge_list);
  shorter.shifts = floats(kept.shifts, edge_list.with_inserted_dim(1, 3), graph.shifts.dtype());
  return shorter;
}

}  // namespace tessera::nn
