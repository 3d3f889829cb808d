#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/graph/graph.hpp>
#include <tuple>

#include "support/op_test.hpp"

/// What a graph computes, against plain loops over all edges: the same on any mesh.
namespace tessera::test {

/// (graph, id of the receiver, id of the sender, shift)
using NamedEdge = std::tuple<int, std::int64_t, std::int64_t, int, int, int>;
using NamedNode = std::pair<int, std::int64_t>;

/// Random numbers of a node, whatever its place: c = 0, 1, ...
inline double node_number(const NamedNode& node, std::int64_t c, std::uint64_t seed) {
  return 0.2 +
         uniform_at(seed + 17 * static_cast<std::uint64_t>(c), 1000003 * node.first + node.second);
}

/// A graph and its whole lists, on every rank.
class WholeGraph {
 public:
  explicit WholeGraph(const nn::Graph& graph) : graph_(graph) {
    const DenseArray ids = to_dense(graph.ids);
    const DenseArray graphs = to_dense(graph.graph_of_node);
    for (std::size_t n = 0; n < ids.values.size(); ++n) {
      nodes.emplace_back(static_cast<int>(graphs.values[n]),
                         static_cast<std::int64_t>(ids.values[n]));
      index[nodes.back()] = static_cast<std::int64_t>(n);
    }
    const DenseArray rows = to_dense(graph.rows());
    const DenseArray senders = to_dense(graph.senders);
    const DenseArray receivers = to_dense(graph.receivers);
    const DenseArray shifts = to_dense(graph.shifts);
    for (std::int64_t e = 0; e < senders.size(); ++e) {
      const auto row = static_cast<std::size_t>(senders(e));
      const NamedNode& to = nodes.at(static_cast<std::size_t>(receivers(e)));
      const NamedNode& from = nodes.at(static_cast<std::size_t>(rows.values.at(row)));
      REQUIRE(to.first == from.first);
      edges.emplace_back(to.first, to.second, from.second, static_cast<int>(shifts(e, 0)),
                         static_cast<int>(shifts(e, 1)), static_cast<int>(shifts(e, 2)));
    }
  }

  /// Values [N, c] of all nodes as the graph orders them.
  DenseArray values(std::int64_t width, std::uint64_t seed) const {
    DenseArray x(Shape{graph_.node_count(), width});
    for (std::int64_t n = 0; n < x.shape[0]; ++n)
      for (std::int64_t c = 0; c < width; ++c)
        x(n, c) = node_number(nodes[static_cast<std::size_t>(n)], c, seed);
    return x;
  }

  std::vector<NamedNode> nodes;
  std::map<NamedNode, std::int64_t> index;
  std::vector<NamedEdge> edges;

 private:
  const nn::Graph& graph_;
};

/// y_i = sum over edges (i, j) of x_i x_j^2 |v|^2, E = sum_i w_i y_i, and derivatives of E and of
/// sum_i c_i . dE/dr_i, by ops and by loops over `expected` edges. `positions` [N, 3] are those
/// that the edges' shifts go with. Returns what differs.
inline std::string check_graph(const nn::Graph& graph,
                               const WholeGraph& whole,
                               const std::vector<NamedEdge>& expected,
                               const Tensor& positions,
                               std::uint64_t seed) {
  std::string failure;
  auto edges = whole.edges;
  std::sort(edges.begin(), edges.end());
  auto wanted = expected;
  std::sort(wanted.begin(), wanted.end());
  if (edges != wanted)
    return str("edges differ: ", edges.size(), " of ", wanted.size(), " expected\n");

  const Layout nodes = graph.nodes();
  const DenseArray x = whole.values(1, seed + 1);
  const DenseArray w = whole.values(1, seed + 2);
  const DenseArray c = whole.values(3, seed + 3);
  const DenseArray r = to_dense(positions);
  const DenseArray cells = to_dense(graph.cells);

  const Tensor tx = require_grad(to_tensor(x, nodes.with_inserted_dim(1, 1)));
  const Tensor tr = require_grad(to_tensor(r, positions.layout()));
  const Tensor tc = require_grad(to_tensor(cells, graph.cells.layout()));
  const Tensor tw = to_tensor(w, nodes.with_inserted_dim(1, 1));
  const Tensor vectors = nn::edge_vectors(tr, graph, tc);
  const Tensor from = nn::at_senders(nn::node_rows(tx, graph), graph);
  const Tensor messages =
      nn::at_receivers(tx, graph) * square(from) * sum(square(vectors), {1}, true);
  const Tensor y = nn::sum_edges(messages, graph);
  const Tensor energies = nn::sum_nodes(tw * y, graph);
  const auto first = grad({sum(energies)}, {tx, tr, tc}, {.create_graph = true});
  const Tensor slope = sum(first[1] * to_tensor(c, positions.layout()));
  const auto second = grad({slope}, {tx, tr, tc});

  DenseArray ey(y.shape());
  DenseArray ee(energies.shape());
  DenseArray gx(x.shape);
  DenseArray gr(r.shape);
  DenseArray gc(cells.shape);
  DenseArray sx(x.shape);
  DenseArray sr(r.shape);
  DenseArray sc(cells.shape);
  DenseArray ev(Shape{graph.edge_count(), 3});
  for (std::size_t e = 0; e < whole.edges.size(); ++e) {
    const auto& [g, to_id, from_id, s0, s1, s2] = whole.edges[e];
    const std::int64_t i = whole.index.at({g, to_id});
    const std::int64_t j = whole.index.at({g, from_id});
    const double s[3] = {double(s0), double(s1), double(s2)};
    double v[3];
    double v2 = 0;
    double vc = 0;
    for (std::int64_t k = 0; k < 3; ++k) {
      v[k] = r(i, k) - r(j, k);
      for (std::int64_t a = 0; a < 3; ++a) v[k] += s[a] * cells(std::int64_t{g}, a, k);
      ev(static_cast<std::int64_t>(e), k) = v[k];
      v2 += v[k] * v[k];
      vc += v[k] * (c(i, k) - c(j, k));
    }
    const double xi = x(i, 0);
    const double xj = x(j, 0);
    const double wi = w(i, 0);
    ey(i, 0) += xi * xj * xj * v2;
    ee.values[static_cast<std::size_t>(g)] += wi * xi * xj * xj * v2;
    gx(i, 0) += wi * xj * xj * v2;
    gx(j, 0) += wi * xi * 2 * xj * v2;
    sx(i, 0) += wi * xj * xj * 2 * vc;
    sx(j, 0) += wi * xi * 2 * xj * 2 * vc;
    const double a = wi * xi * xj * xj * 2;
    for (std::int64_t k = 0; k < 3; ++k) {
      gr(i, k) += a * v[k];
      gr(j, k) -= a * v[k];
      sr(i, k) += a * (c(i, k) - c(j, k));
      sr(j, k) -= a * (c(i, k) - c(j, k));
      for (std::int64_t b = 0; b < 3; ++b) {
        gc(std::int64_t{g}, b, k) += s[b] * a * v[k];
        sc(std::int64_t{g}, b, k) += s[b] * a * (c(i, k) - c(j, k));
      }
    }
  }
  failure += compare("edge vectors", vectors, ev, 1e-12);
  failure += compare("sums over edges", y, ey, 1e-12);
  failure += compare("sums over graphs", energies, ee, 1e-12);
  failure += compare("dE/dx", first[0], gx, 1e-12);
  failure += compare("dE/dr", first[1], gr, 1e-12, 1.0);
  failure += compare("dE/dcell", first[2], gc, 1e-12, 1.0);
  failure += compare("d2E/dr dx", second[0], sx, 1e-12, 1.0);
  failure += compare("d2E/dr dr", second[1], sr, 1e-12, 1.0);
  failure += compare("d2E/dr dcell", second[2], sc, 1e-12, 1.0);
  return failure;
}

}  // namespace tessera::test
