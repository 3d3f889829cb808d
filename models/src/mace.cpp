#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/grad_once.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/gather.hpp>
#include <tessera/autograd/ops/hermite.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/models/mace.hpp>
#include <tessera/nn/io/data_error.hpp>

#include "mace_radial.hpp"

namespace tessera::models {
namespace {

const MaceOptions& checked(const MaceOptions& o) {
  if (o.elements.empty() || !std::is_sorted(o.elements.begin(), o.elements.end()) ||
      std::adjacent_find(o.elements.begin(), o.elements.end()) != o.elements.end()) {
    throw UsageError(
        "mace: elements are not given, ascending and once each. List atomic numbers, {8, 14} say.");
  }
  for (const std::int64_t z : o.elements) covalent_radius(z);
  if (!(o.r_max > 0.0) || o.channels < 1 || o.max_L < 0 || o.max_ell < 0 || o.layers < 1 ||
      o.radial_basis < 1 || o.readout < 1) {
    throw UsageError(str("mace: r_max ", o.r_max, ", channels ", o.channels, ", max_L ", o.max_L,
                         ", max_ell ", o.max_ell, ", layers ", o.layers, ", radial_basis ",
                         o.radial_basis, ", readout ", o.readout,
                         " (positive, l not negative). Use for example 5, 128, 1, 3, 2, 8, 16."));
  }
  if (o.max_L > o.max_ell) {
    throw UsageError(str("mace: max_L ", o.max_L, " above max_ell ", o.max_ell,
                         " (features are made of messages). Raise max_ell."));
  }
  if (o.correlation < 1 || o.correlation > 3)
    throw UsageError(str("mace: correlation ", o.correlation, " (1 to 3). Use 3."));
  if (o.cutoff_power < 2)
    throw UsageError(str("mace: cutoff_power ", o.cutoff_power, " (at least 2). Use 5 or 6."));
  if (!o.e0.empty() && o.e0.size() != o.elements.size()) {
    throw UsageError(str("mace: ", o.e0.size(), " energies of isolated atoms for ",
                         o.elements.size(), " elements. Give one for each."));
  }
  if (o.radial_intervals < 0 || (o.radial_intervals > 0 && o.agnesi)) {
    throw UsageError(str("mace: radial_intervals ", o.radial_intervals,
                         o.agnesi ? " with agnesi" : "",
                         " (tables need functions of the distance alone). Use 0, or 256 without "
                         "agnesi."));
  }
  if (!(o.avg_num_neighbors > 0.0)) {
    throw UsageError(str("mace: avg_num_neighbors ", o.avg_num_neighbors,
                         " is not positive (messages are divided by it). Use the mean number of "
                         "neighbours within r_max, or 1."));
  }
  return o;
}

/// The place in `elements` of each atomic number.
Tensor element_numbers(const Tensor& species, const std::vector<std::int64_t>& elements) {
  if (dry_run()) return Tensor::empty(species.layout(), DType::kInt64);
  const View view = species.local();
  const auto* const z = view.as<const std::int64_t>();
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(view.size()));
  for (std::int64_t i = 0; i < view.size(); ++i) {
    const std::int64_t atom = z[i * view.strides[0]];
    const auto at = std::lower_bound(elements.begin(), elements.end(), atom);
    if (at == elements.end() || *at != atom) {
      throw DataError(str("mace: there is an atom of the element ", atom,
                          ", which the model does not know. Train it with such atoms, or leave the "
                          "structure out."));
    }
    numbers[static_cast<std::size_t>(i)] = at - elements.begin();
  }
  return Tensor::from_local(View::dense(numbers.data(), DType::kInt64, view.shape),
                            species.layout());
}

/// A number for each element, on every rank.
template <class F>
Tensor by_element(const Mesh& mesh, std::size_t elements, DType dtype, const F& f) {
  return Tensor::from_function(
      Layout::replicated(mesh, {static_cast<std::int64_t>(elements)}),
      [&](const Index& i) { return f(static_cast<std::size_t>(i[0])); }, dtype);
}

/// A constant of the element at both ends of each edge.
struct EdgeEnds {
  Tensor sender;
  Tensor receiver;
};
EdgeEnds at_ends(const Tensor& table,
                 const Tensor& nodes,
                 const Tensor& rows,
                 const nn::Graph& graph) {
  return {nn::at_senders(gather(table, rows), graph),
          nn::at_receivers(gather(table, nodes), graph)};
}

/// 1 / volume of each cell; 0 for one without volume.
Tensor inverse_volumes(const nn::Graph& graph) {
  if (dry_run()) {
    return Tensor::empty(Layout::replicated(graph.cells.mesh(), {graph.graph_count(), 1, 1}),
                         graph.cells.dtype());
  }
  const View cells = graph.cells.local();
  const auto at = [&](std::int64_t g, std::int64_t i, std::int64_t j) {
    return load_as_double(
        cells.data, cells.dtype,
        g * cells.strides[0] + (i % 3) * cells.strides[1] + (j % 3) * cells.strides[2]);
  };
  return Tensor::from_function(
      Layout::replicated(graph.cells.mesh(), {graph.graph_count(), 1, 1}),
      [&](const Index& index) {
        const std::int64_t g = index[0];
        double volume = 0.0;
        for (std::int64_t j = 0; j < 3; ++j) {
          volume +=
              at(g, 0, j) * (at(g, 1, j + 1) * at(g, 2, j + 2) - at(g, 1, j + 2) * at(g, 2, j + 1));
        }
        return volume == 0.0 ? 0.0 : 1.0 / std::abs(volume);
      },
      graph.cells.dtype());
}

Tensor symmetric(const Tensor& x) { return (x + permute(x, {0, 2, 1})) * 0.5; }

}  // namespace

Mace::Mace(const MaceOptions& options, const Mesh& mesh, DType dtype)
    : options_(checked(options)), dtype_(dtype), embedding_(options_, mesh, dtype) {
  for (int t = 0; t < options_.layers; ++t) {
    interactions_.emplace_back(options_, t, mesh, dtype);
    products_.emplace_back(options_, t, mesh, dtype);
    readouts_.emplace_back(options_, t, mesh, dtype);
  }
  nn::initialize(*this, options_.seed);
}

void Mace::fields(nn::Fields& f) {
  f("embedding", embedding_);
  f("interactions", interactions_);
  f("products", products_);
  f("readouts", readouts_);
}

std::string Mace::describe() const {
  const MaceOptions& o = options_;
  return fmt::format("MACE, {} elements, r_max {:g}, {} layers of {} channels, L {}, ell {}",
                     o.elements.size(), o.r_max, o.layers, o.channels, o.max_L, o.max_ell);
}

void Mace::set_statistics(const std::vector<double>& e0,
                          double scale,
                          double shift,
                          double avg_num_neighbors) {
  MaceOptions o = options_;
  o.e0 = e0;
  o.scale = scale;
  o.shift = shift;
  o.avg_num_neighbors = avg_num_neighbors;
  options_ = checked(o);
  for (MaceInteraction& block : interactions_) block.set_neighbours(avg_num_neighbors);
}

Tensor Mace::interaction_energy(const nn::Graph& graph, const Tensor& vectors) const {
  const MaceOptions& o = options_;
  const Mesh& mesh = vectors.mesh();
  const Tensor nodes = element_numbers(graph.species, o.elements);
  const Tensor rows = element_numbers(graph.row_species, o.elements);

  const Tensor v = cast(vectors, dtype_);
  const Tensor r = sqrt(sum(square(v), {1}));
  EdgeEnds radii;
  if (o.agnesi || o.pair_repulsion) {
    radii = at_ends(by_element(mesh, o.elements.size(), dtype_,
                               [&](std::size_t i) { return covalent_radius(o.elements[i]); }),
                    nodes, rows, graph);
  }
  MaceEdges edges;
  edges.harmonics = spherical_harmonics(v, o.max_ell);
  const Tensor x = o.agnesi ? agnesi_transform(r, (radii.sender + radii.receiver) * 0.5) : r;
  if (o.radial_intervals > 0) {
    const double spacing = o.r_max / static_cast<double>(o.radial_intervals);
    edges.spline = hermite_weights(r, spacing, o.radial_intervals);
    edges.interval = hermite_rows(r, spacing, o.radial_intervals);
  }
  if (o.radial_intervals == 0 || o.density) {
    edges.radial =
        bessel(x, o.radial_basis, o.r_max) *
        reshape(polynomial_envelope(r / o.r_max, o.cutoff_power), {graph.edge_count(), 1});
  }

  Tensor energy;
  Tensor features;
  for (std::size_t t = 0; t < interactions_.size(); ++t) {
    const MaceInteraction::Result step =
        t == 0 ? interactions_[t].first(embedding_.table(), nodes, rows, edges, graph)
               : interactions_[t].next(features, nodes, edges, graph);
    features = products_[t](step.messages, step.skip, nodes);
    const Tensor part = cast(readouts_[t](features), DType::kFloat64);
    energy = energy.defined() ? energy + part : part;
  }
  if (o.pair_repulsion) {
    const EdgeEnds charges =
        at_ends(by_element(mesh, o.elements.size(), dtype_,
                           [&](std::size_t i) { return static_cast<double>(o.elements[i]); }),
                nodes, rows, graph);
    const Tensor pair = pair_repulsion(
        r, {charges.sender, charges.receiver, radii.sender, radii.receiver}, o.cutoff_power);
    energy = energy + cast(nn::sum_edges(pair * 0.5, graph), DType::kFloat64);
  }
  return affine(energy, o.scale, o.shift);
}

MaceResult Mace::compute(const nn::Graph& graph,
                         const MaceOutputs& outputs,
                         const Tensor& positions) const {
  const bool virials = outputs.stress || outputs.node_virials;
  const bool derivatives = outputs.forces || virials;
  Tensor v = nn::edge_vectors(positions.defined() ? positions : graph.positions, graph);
  MaceResult result;
  Tensor total;
  {
    const std::optional<EnableGrad> recording =
        derivatives ? std::optional<EnableGrad>(std::in_place) : std::nullopt;
    if (derivatives && !requires_grad(v)) v = require_grad(v);
    result.interaction = interaction_energy(graph, v);
    result.node_energy = result.interaction;
    if (!options_.e0.empty()) {
      const Tensor e0 = by_element(v.mesh(), options_.e0.size(), DType::kFloat64,
                                   [&](std::size_t i) { return options_.e0[i]; });
      result.node_energy =
          result.interaction + gather(e0, element_numbers(graph.species, options_.elements));
    }
    result.energy = reduced(nn::sum_nodes(result.node_energy, graph));
    total = sum(result.interaction);
  }
  if (!derivatives) return result;

  const Tensor g = outputs.create_graph ? grad({total}, {v}, {.create_graph = true})[0]
                                        : grad_once({total}, {v})[0];
  if (!outputs.create_graph) {
    result.interaction = result.interaction.detach();
    result.node_energy = result.node_energy.detach();
    result.energy = result.energy.detach();
    v = v.detach();
  }
  if (outputs.forces) {
    // v runs from sender to receiver, so a receiver feels -g and a sender g.
    result.forces = ghost_sum(scatter_own(g, graph.senders, graph.rows()), graph.ghosts) -
                    nn::sum_edges(g, graph);
  }
  if (!virials) return result;
  const std::int64_t edges = graph.edge_count();
  const Tensor strain = reshape(v, {edges, 3, 1}) * reshape(g, {edges, 1, 3});
  const Tensor at_receivers = nn::sum_edges(strain, graph);
  if (outputs.stress) {
    const Tensor of_graphs = symmetric(reduced(nn::sum_nodes(at_receivers, graph)));
    result.virials = -of_graphs;
    result.stress = of_graphs * inverse_volumes(graph);
  }
  if (outputs.node_virials) {
    const Tensor at_senders =
        ghost_sum(scatter_own(strain, graph.senders, graph.rows()), graph.ghosts);
    result.node_virials = symmetric(at_receivers + at_senders) * -0.5;
  }
  return result;
}

}  // namespace tessera::models
