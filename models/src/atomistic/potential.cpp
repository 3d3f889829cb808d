#include <tessera/autograd/autograd.hpp>
#include <tessera/models/atomistic/potential.hpp>
#include <tessera/nn/atoms/structure.hpp>

#include "sums.hpp"

namespace tessera::atomistic {

namespace {

Tensor on_all(const Mesh& mesh, const Shape& shape, const double* values) {
  return Tensor::from_local(View::dense(const_cast<double*>(values), DType::kFloat64, shape),
                            Layout::replicated(mesh, shape));
}

}  // namespace

void check_species(const Potential& potential, const nn::Graph& graph) {
  const View species = graph.species.local();
  double unknown = -1.0;
  for (std::int64_t i = 0; i < species.size(); ++i) {
    const auto z = static_cast<std::int32_t>(species.as<std::int64_t>()[i]);
    if (!potential.knows(z)) unknown = std::max(unknown, static_cast<double>(z));
  }
  all_reduce(graph.nodes(), {&unknown, 1}, ReduceOp::kMax);
  if (unknown < 0.0) return;
  const auto z = static_cast<std::int32_t>(unknown);
  throw UsageError(str(potential.name(), ": there are atoms of ",
                       z <= 118 ? nn::element_symbol(z) : "?", " (", z,
                       "), for which it has no parameters. Take another potential, or change the "
                       "atoms."));
}

Evaluation EdgePotential::evaluate(const nn::Graph& graph) const {
  const NoGrad no_grad;
  if (graph.positions.dtype() != DType::kFloat64) {
    throw DTypeError(str(name(), ": positions are ", tessera::name(graph.positions.dtype()),
                         " (analytic potentials compute in f64). Make the graph with f64."));
  }
  check_species(*this, graph);
  const Tensor positions = nn::node_rows(graph.positions, graph);
  const std::int64_t nodes = graph.nodes().local_shape()[0];
  const std::int64_t edges = graph.receivers.local_shape()[0];
  const std::int64_t first_row = graph.rows().local_box().lo[0];
  const std::int64_t first_edge = graph.receivers.local_box().lo[0];
  std::vector<std::int64_t> begin(static_cast<std::size_t>(nodes) + 1, edges);
  for (std::int64_t i = 0; i < nodes; ++i) {
    begin[static_cast<std::size_t>(i)] =
        graph.first_edge.local().as<std::int64_t>()[i] - first_edge;
  }
  std::vector<std::int64_t> senders(static_cast<std::size_t>(edges));
  // Not by ops: the two directions of an edge are exact opposites, on any mesh.
  std::vector<double> vectors(static_cast<std::size_t>(3 * edges));
  const auto* const graph_of = graph.graph_of_node.local().as<std::int64_t>();
  const auto* const r = positions.local().as<double>();
  const auto* const shift = graph.shifts.local().as<double>();
  for (std::int64_t i = 0; i < nodes; ++i) {
    const double* const cell = graph.cells.local().as<double>() + 9 * graph_of[i];
    for (auto e = begin[static_cast<std::size_t>(i)]; e < begin[static_cast<std::size_t>(i) + 1];
         ++e) {
      const std::int64_t j = graph.senders.local().as<std::int64_t>()[e] - first_row;
      const double* const s = shift + 3 * e;
      senders[static_cast<std::size_t>(e)] = j;
      for (int c = 0; c < 3; ++c) {
        vectors[static_cast<std::size_t>(3 * e + c)] =
            (r[3 * i + c] - r[3 * j + c]) +
            (s[0] * cell[c] + s[1] * cell[3 + c] + s[2] * cell[6 + c]);
      }
    }
  }
  const double* const v = vectors.data();

  Evaluation result;
  result.energies = Tensor::zeros(graph.nodes(), DType::kFloat64);
  std::vector<double> gradients(static_cast<std::size_t>(3 * edges), 0.0);
  auto* const energies = result.energies.mutable_local().as<double>();
  compute(
      {nodes, edges, begin.data(), senders.data(), graph.row_species.local().as<std::int64_t>(), v},
      energies, gradients.data());

  const std::int64_t graphs = graph.graph_count();
  std::vector<double> sums(static_cast<std::size_t>(10 * graphs), 0.0);  // energies, then virials
  const Tensor rows = Tensor::zeros(graph.rows().layout().with_inserted_dim(1, 3), DType::kFloat64);
  auto* const force = rows.mutable_local().as<double>();
  for (std::int64_t i = 0; i < nodes; ++i) {
    sums[static_cast<std::size_t>(graph_of[i])] += energies[i];
    double* const w = &sums[static_cast<std::size_t>(graphs + 9 * graph_of[i])];
    for (auto e = begin[static_cast<std::size_t>(i)]; e < begin[static_cast<std::size_t>(i) + 1];
         ++e) {
      const double* const g = &gradients[static_cast<std::size_t>(3 * e)];
      double* const at_sender = force + 3 * senders[static_cast<std::size_t>(e)];
      for (int a = 0; a < 3; ++a) {
        force[3 * i + a] -= g[a];
        at_sender[a] += g[a];
        for (int b = 0; b < 3; ++b)
          w[3 * a + b] -= 0.5 * (v[3 * e + a] * g[b] + v[3 * e + b] * g[a]);
      }
    }
  }
  result.forces = ghost_sum(rows, graph.ghosts);
  all_reduce(graph.nodes(), sums);
  const Mesh& mesh = graph.nodes().mesh();
  result.energy = on_all(mesh, {graphs}, sums.data());
  result.virials = on_all(mesh, {graphs, 3, 3}, sums.data() + graphs);
  return result;
}

}  // namespace tessera::atomistic
