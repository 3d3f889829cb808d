#pragma once

#include <cstdint>
#include <tessera/autograd/ops/ghost_rows.hpp>
#include <tessera/autograd/ops/segment.hpp>
#include <tessera/core/tensor.hpp>
#include <vector>

namespace tessera::nn {

/// A directed graph, or a batch of them, whose nodes are split over ranks. N nodes, E edges, G
/// graphs; nodes of all graphs in one dimension.
///
/// Node values [N, ...] are split where `nodes` is. `rows` [R] are, rank by rank, the own nodes in
/// order and then the ghosts: nodes of other ranks that its edges come from, each once, in the
/// order of their owners. Edges lie with their receiver, sorted by it and then by (atom id of the
/// sender, shift), so that sums over edges have the same order on any mesh. All index tensors are
/// i64 and count globally: row r of a rank is `r - rows.local_box().lo[0]` in its memory.
struct Graph {
  GhostRows ghosts;
  Tensor senders;        ///< [E], in [0, R): a row with ghosts
  Tensor receivers;      ///< [E], in [0, N): a node, not decreasing
  Tensor receiver_rows;  ///< [E], in [0, R): the same nodes as rows with ghosts
  Tensor first_edge;     ///< [N]: the first edge of each node
  Tensor shifts;         ///< [E, 3] floating: integer numbers S of lattice vectors
  Tensor graph_of_node;  ///< [N]
  Tensor graph_of_edge;  ///< [E]
  Tensor cells;          ///< [G, 3, 3] floating, rows are lattice vectors; on every rank
  Tensor positions;      ///< [N, 3] floating, as they were when the graph was made
  Tensor species;        ///< [N]: atomic numbers, or any kind of node
  Tensor row_species;    ///< [R]: those of own nodes and ghosts, which need no exchange
  Tensor ids;            ///< [N]: what keys randomness and sorts output; unique in a graph
  /// On every rank: numbers of nodes, of the graphs in order.
  std::vector<std::int64_t> graph_sizes;
  /// On every rank: whether any edge has a shift that is not zero.
  bool has_shifts = false;

  const Layout& nodes() const { return ghosts.owners(); }
  const Tensor& rows() const { return ghosts.rows(); }
  std::int64_t node_count() const { return nodes().shape()[0]; }
  std::int64_t row_count() const { return rows().shape()[0]; }
  std::int64_t edge_count() const { return receivers.shape()[0]; }
  std::int64_t graph_count() const { return static_cast<std::int64_t>(graph_sizes.size()); }
  /// The edges of each node, for sums over them.
  Segments edges() const { return {receivers, first_edge}; }
};

/// x [N, ...] at own nodes and ghosts: y [R, ...], y[r, ...] = x[rows[r], ...]. Sends each ghost
/// row once (nothing where no rank has ghosts); the gradient adds those of ghosts at their owner,
/// in fixed order. Differentiable to any order.
Tensor node_rows(const Tensor& x, const Graph& graph);
/// Starts the same: what is computed before `wait()` hides the transfer, there and back.
GhostRowsInFlight start_node_rows(const Tensor& x, const Graph& graph);
/// Values at the sender of each edge: y[e, ...] = x[senders[e], ...]; x [R, ...] from `node_rows`.
Tensor at_senders(const Tensor& rows, const Graph& graph);
/// Values at the receiver of each edge: y[e, ...] = x[receivers[e], ...]; x [N, ...].
Tensor at_receivers(const Tensor& x, const Graph& graph);
/// Sum over the edges that each node receives: y[n, ...] = sum of x[e, ...]; x [E, ...].
Tensor sum_edges(const Tensor& x, const Graph& graph);
/// Sum over the nodes of each graph: y[g, ...], on every rank; x [N, ...]. A pending sum, taken
/// where it is first needed.
Tensor sum_nodes(const Tensor& x, const Graph& graph);
/// Values of its graph at each node (edge): y[n, ...] = x[graph_of_node[n], ...]; x [G, ...].
Tensor graph_at_nodes(const Tensor& x, const Graph& graph);
Tensor graph_at_edges(const Tensor& x, const Graph& graph);

/// v[e] = r_receiver - r_sender + S_e . cell, from the sender (its image) to the receiver: [E, 3].
/// `positions` [N, 3] may lie anywhere, as long as an atom is not moved by lattice vectors against
/// those of `graph`. With `cells` [G, 3, 3] (say, strained) the gradient flows into them, too.
Tensor edge_vectors(const Tensor& positions, const Graph& graph, const Tensor& cells = {});
/// The same where the positions of ghosts are there already: `rows` [R, 3].
Tensor edge_vectors_of_rows(const Tensor& rows, const Graph& graph, const Tensor& cells = {});

/// The same graph without the edges that are as long as `cutoff` or longer, where the own nodes and
/// ghosts are at `rows` [R, 3] (node_rows of the positions): a list with skin holds a third more
/// edges than count. Nodes, rows and the exchange are those of `graph`; its `positions` stay.
/// Every rank must call: one number from each. In a DryRun all edges stay.
Graph shorter_edges(const Graph& graph, const Tensor& rows, double cutoff);

/// What one rank knows of a graph: input of make_graph.
struct LocalGraph {
  std::vector<double> cells;              ///< 9 per graph; the same on every rank
  std::vector<std::int64_t> graph_sizes;  ///< the same on every rank
  // Own nodes, in order.
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> species;
  std::vector<std::int64_t> graph_of_node;
  std::vector<double> positions;  ///< 3 per node
  // Ghosts, ascending in (part that owns it, node within that part).
  std::vector<std::int64_t> ghost_part;
  std::vector<std::int64_t> ghost_node;
  std::vector<std::int64_t> ghost_species;
  // Edges, sorted by receiver.
  std::vector<std::int64_t> receivers;  ///< own nodes
  std::vector<std::int64_t> senders;  ///< own nodes, then (from the number of own nodes on) ghosts
  std::vector<std::int32_t> shifts;   ///< 3 per edge
};

/// The graph whose parts the ranks hold: dimension 0 of nodes and edges is split over `axes` of the
/// mesh (outermost first; no axes: every rank has it whole), part p with the rank whose coordinates
/// along them are p. Every rank must call. Floating tensors have `dtype`.
Graph make_graph(const LocalGraph& part,
                 const Mesh& mesh,
                 const std::vector<int>& axes,
                 DType dtype = DType::kFloat64);

/// The same where this rank has the parts of all (part p at place p): without communication, also
/// in a DryRun. Its index tensors are then those of this rank's part.
Graph make_graph_of_all(const std::vector<LocalGraph>& parts,
                        const Mesh& mesh,
                        const std::vector<int>& axes,
                        DType dtype = DType::kFloat64);

/// Which of the parts of dimension 0 this rank has when `axes` (outermost first) split it, and
/// their number.
struct PartNumber {
  std::int64_t part = 0;
  std::int64_t parts = 1;
};
PartNumber part_number(const Mesh& mesh, const std::vector<int>& axes);

}  // namespace tessera::nn
