#include <algorithm>
#include <numeric>
#include <tessera/core/dry_run.hpp>
#include <tessera/nn/graph/batch.hpp>

#include "../atoms/box_frame.hpp"

namespace tessera::nn {

namespace {

std::vector<const Structure*> pointers(const std::vector<Structure>& structures) {
  std::vector<const Structure*> list;
  list.reserve(structures.size());
  for (const Structure& s : structures) list.push_back(&s);
  return list;
}

/// The coordinate along the data axis of each graph: the largest first, each to where fewest atoms
/// are so far (Graham, SIAM J. Appl. Math. 17, 416, 1969).
std::vector<std::int64_t> deal(std::span<const Structure* const> structures, std::int64_t parts) {
  std::vector<std::size_t> order(structures.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return structures[a]->atoms() > structures[b]->atoms();
  });
  std::vector<std::int64_t> part(structures.size());
  std::vector<std::int64_t> load(static_cast<std::size_t>(parts), 0);
  for (const std::size_t g : order) {
    const auto least = std::min_element(load.begin(), load.end());
    part[g] = least - load.begin();
    *least += structures[g]->atoms();
  }
  return part;
}

/// The part of each atom, and its place among the atoms of that part.
struct Owners {
  std::vector<std::int64_t> part;
  std::vector<std::int64_t> place;
  std::vector<std::int64_t> count;  // by part
};

Owners owners(const Structure& structure, std::int64_t parts, Cutting cutting) {
  const auto n = static_cast<std::size_t>(structure.atoms());
  Owners o{std::vector<std::int64_t>(n, 0), std::vector<std::int64_t>(n, 0),
           std::vector<std::int64_t>(static_cast<std::size_t>(parts), 0)};
  std::vector<Vec3> units(n);
  Regions regions;
  BoxFrame frame(structure.cell);
  if (parts > 1) {
    frame.set(frame.range(structure.positions));
    for (std::size_t i = 0; i < n; ++i) units[i] = frame.unit(&structure.positions[3 * i]);
    if (cutting == Cutting::kBricks) {
      regions = Regions::bricks(
          brick_grid(frame.heights(), structure.cell.periodic, static_cast<int>(parts)));
    } else {
      const std::vector<std::int64_t> weights(n, 1);
      regions = Regions::bisection(units, weights, frame.heights(), static_cast<int>(parts),
                                   [](std::span<std::int64_t>) {});
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    o.part[i] = regions.part_of(units[i]);
    o.place[i] = o.count[static_cast<std::size_t>(o.part[i])]++;
  }
  return o;
}

/// Where the atoms of a graph lie in its data coordinate.
struct Placed {
  const Structure* structure;
  std::int64_t graph;
  Owners owners;
  std::vector<std::int64_t> first;  // by part: nodes of earlier graphs there
};

/// The graphs of one data coordinate, in order.
std::vector<Placed> place_graphs(std::span<const Structure* const> structures,
                                 const std::vector<std::int64_t>& coordinate,
                                 std::int64_t mine,
                                 std::int64_t parts,
                                 Cutting cutting) {
  std::vector<Placed> list;
  std::vector<std::int64_t> nodes(static_cast<std::size_t>(parts), 0);
  for (std::size_t g = 0; g < structures.size(); ++g) {
    if (coordinate[g] != mine) continue;
    list.push_back({structures[g], static_cast<std::int64_t>(g),
                    owners(*structures[g], parts, cutting), nodes});
    for (std::size_t p = 0; p < nodes.size(); ++p) nodes[p] += list.back().owners.count[p];
  }
  return list;
}

/// Adds the nodes, ghosts and edges that `mine` has of a graph.
class PartBuilder {
 public:
  PartBuilder(LocalGraph& part, std::int64_t mine, std::int64_t first_part)
      : part_(part), mine_(mine), first_part_(first_part) {}

  /// Edges name ghosts by their number in order of discovery, from -1 downwards, until `finish`.
  void add(const Placed& placed, double cutoff) {
    const Structure& s = *placed.structure;
    const auto n = static_cast<std::size_t>(s.atoms());
    std::vector<std::int64_t> order;  // own atoms, then the others
    for (std::size_t i = 0; i < n; ++i)
      if (placed.owners.part[i] == mine_) order.push_back(static_cast<std::int64_t>(i));
    const std::size_t own = order.size();
    for (std::size_t i = 0; i < n; ++i)
      if (placed.owners.part[i] != mine_) order.push_back(static_cast<std::int64_t>(i));
    std::vector<double> points;
    points.reserve(3 * n);
    for (const std::int64_t i : order)
      points.insert(points.end(), &s.positions[static_cast<std::size_t>(3 * i)],
                    &s.positions[static_cast<std::size_t>(3 * i)] + 3);
    const auto list =
        kernels::find_neighbors(points, static_cast<std::int64_t>(own), s.cell, cutoff, order);
    const auto first = static_cast<std::int64_t>(part_.ids.size());
    for (std::size_t i = 0; i < own; ++i) {
      const auto atom = static_cast<std::size_t>(order[i]);
      part_.ids.push_back(order[i]);
      part_.species.push_back(s.species[atom]);
      part_.graph_of_node.push_back(placed.graph);
    }
    part_.positions.insert(part_.positions.end(), points.begin(),
                           points.begin() + static_cast<std::ptrdiff_t>(3 * own));
    std::vector<std::int64_t> ghost(n, 0);  // number of the ghost, from 1
    for (std::size_t e = 0; e < list.receivers.size(); ++e) {
      const auto sender = static_cast<std::size_t>(list.senders[e]);
      part_.receivers.push_back(first + list.receivers[e]);
      if (sender < own) {
        part_.senders.push_back(first + list.senders[e]);
        continue;
      }
      if (ghost[sender] == 0) {
        const auto atom = static_cast<std::size_t>(order[sender]);
        const std::int64_t owner = placed.owners.part[atom];
        ghosts_.push_back(
            {first_part_ + owner,
             placed.first[static_cast<std::size_t>(owner)] + placed.owners.place[atom],
             s.species[atom]});
        ghost[sender] = static_cast<std::int64_t>(ghosts_.size());
      }
      part_.senders.push_back(-ghost[sender]);
    }
    part_.shifts.insert(part_.shifts.end(), list.shifts.begin(), list.shifts.end());
  }

  void finish() {
    std::vector<std::size_t> order(ghosts_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(ghosts_[a].part, ghosts_[a].node) <
             std::pair(ghosts_[b].part, ghosts_[b].node);
    });
    std::vector<std::int64_t> row(ghosts_.size());
    const auto own = static_cast<std::int64_t>(part_.ids.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Ghost& g = ghosts_[order[i]];
      part_.ghost_part.push_back(g.part);
      part_.ghost_node.push_back(g.node);
      part_.ghost_species.push_back(g.species);
      row[order[i]] = own + static_cast<std::int64_t>(i);
    }
    for (std::int64_t& s : part_.senders)
      if (s < 0) s = row[static_cast<std::size_t>(-s - 1)];
  }

 private:
  struct Ghost {
    std::int64_t part;
    std::int64_t node;
    std::int64_t species;
  };
  LocalGraph& part_;
  std::int64_t mine_;
  std::int64_t first_part_;
  std::vector<Ghost> ghosts_;
};

double periodic_volume(const Structure& s) {
  const auto& p = s.cell.periodic;
  return p[0] && p[1] && p[2] ? s.cell.volume() : 1.0;
}

}  // namespace

Graph batch_graph(std::span<const Structure* const> structures,
                  const Mesh& mesh,
                  const BatchOptions& options) {
  if (structures.empty())
    throw UsageError("batch_graph: there are no structures. Give at least one.");
  if (!(options.cutoff > 0.0))
    throw UsageError(str("batch_graph: the cutoff is ", options.cutoff, ". Give a positive one."));
  std::vector<int> data;
  if (mesh.has_axis(options.data_axis)) data.push_back(mesh.axis(options.data_axis));
  std::vector<int> domain;
  for (const std::string& name : options.domain_axes) domain.push_back(mesh.axis(name));
  const PartNumber of_data = part_number(mesh, data);
  const PartNumber of_domain = part_number(mesh, domain);

  LocalGraph common;
  // Errors that the structures alone decide are thrown alike on every rank.
  for (const Structure* s : structures) {
    s->cell.completed();
    common.graph_sizes.push_back(s->atoms());
    for (const Vec3& v : s->cell.vectors)
      common.cells.insert(common.cells.end(), v.begin(), v.end());
    const auto number = static_cast<std::size_t>(s->atoms());
    if (s->positions.size() != 3 * number) {
      throw ShapeError(str("batch_graph: ", s->positions.size(), " coordinates of ", number,
                           " atoms. Give 3 for each."));
    }
    for (const double r : s->positions) {
      if (!std::isfinite(r)) {
        throw ShapeError("batch_graph: a coordinate is not a finite number. Check the structures.");
      }
    }
  }
  const std::vector<std::int64_t> coordinate = deal(structures, of_data.parts);
  std::vector<int> axes = data;
  axes.insert(axes.end(), domain.begin(), domain.end());
  const auto cut = [&](std::int64_t along_data) {
    return place_graphs(structures, coordinate, along_data, of_domain.parts, options.cutting);
  };
  const auto build = [&](const std::vector<Placed>& graphs, std::int64_t along_data,
                         std::int64_t along_domain) {
    LocalGraph part = common;
    PartBuilder builder(part, along_domain, along_data * of_domain.parts);
    for (const Placed& g : graphs) builder.add(g, options.cutoff);
    builder.finish();
    return part;
  };
  if (!dry_run()) {
    return make_graph(build(cut(of_data.part), of_data.part, of_domain.part), mesh, axes,
                      options.dtype);
  }
  // Nobody answers in a dry run: this process finds what all would have.
  std::vector<LocalGraph> parts;
  for (std::int64_t c = 0; c < of_data.parts; ++c) {
    const std::vector<Placed> graphs = cut(c);
    for (std::int64_t d = 0; d < of_domain.parts; ++d) parts.push_back(build(graphs, c, d));
  }
  return make_graph_of_all(parts, mesh, axes, options.dtype);
}

Graph batch_graph(const std::vector<Structure>& structures,
                  const Mesh& mesh,
                  const BatchOptions& options) {
  return batch_graph(pointers(structures), mesh, options);
}

AtomLabels batch_labels(std::span<const Structure* const> structures, const Graph& graph) {
  const auto graphs = static_cast<std::int64_t>(structures.size());
  if (graphs != graph.graph_count()) {
    throw ShapeError(str("batch_labels: ", graphs, " structures for ", graph.graph_count(),
                         " graphs. Give those that the graph was made of."));
  }
  const Mesh& mesh = graph.nodes().mesh();
  const DType dtype = graph.positions.dtype();
  const auto of_graphs = [&](const Shape& inner, auto&& f) {
    Shape shape{graphs};
    for (int d = 0; d < inner.size(); ++d) shape.push_back(inner[d]);
    return Tensor::from_function(
        Layout::replicated(mesh, shape),
        [&](const Index& i) { return f(*structures[static_cast<std::size_t>(i[0])], i); }, dtype);
  };
  const auto matrix = [](const std::optional<std::array<double, 9>>& m, const Index& i) {
    return m ? (*m)[static_cast<std::size_t>(3 * i[1] + i[2])] : 0.0;
  };
  AtomLabels labels;
  labels.energy =
      of_graphs({}, [](const Structure& s, const Index&) { return s.energy.value_or(0.0); });
  labels.stress =
      of_graphs({3, 3}, [&](const Structure& s, const Index& i) { return matrix(s.stress, i); });
  labels.virials =
      of_graphs({3, 3}, [&](const Structure& s, const Index& i) { return matrix(s.virials, i); });
  labels.energy_weight = of_graphs({}, [](const Structure& s, const Index&) {
    return s.energy ? s.weight * s.energy_weight : 0.0;
  });
  labels.stress_weight = of_graphs({1, 1}, [](const Structure& s, const Index&) {
    // Without a box there is no stress, whatever the file says.
    return s.stress && s.cell.volume() != 0.0 ? s.weight * s.stress_weight : 0.0;
  });
  labels.virials_weight = of_graphs({1, 1}, [](const Structure& s, const Index&) {
    return s.virials ? s.weight * s.virials_weight : 0.0;
  });
  labels.atoms = of_graphs(
      {}, [](const Structure& s, const Index&) { return static_cast<double>(s.atoms()); });
  labels.volume =
      of_graphs({}, [](const Structure& s, const Index&) { return periodic_volume(s); });

  const Layout nodes = graph.nodes();
  labels.forces = Tensor::empty(nodes.with_inserted_dim(1, 3), dtype);
  labels.forces_weight = Tensor::empty(nodes.with_inserted_dim(1, 1), dtype);
  if (dry_run()) return labels;
  const View force = labels.forces.mutable_local();
  const View weight = labels.forces_weight.mutable_local();
  const View ids = graph.ids.local();
  const View graph_of = graph.graph_of_node.local();
  for (std::int64_t i = 0; i < ids.size(); ++i) {
    const Structure& s = *structures[static_cast<std::size_t>(graph_of.as<std::int64_t>()[i])];
    const std::int64_t id = ids.as<std::int64_t>()[i];
    const bool known = !s.forces.empty();
    for (std::int64_t c = 0; c < 3; ++c) {
      store_double(force.data, dtype, 3 * i + c,
                   known ? s.forces[static_cast<std::size_t>(3 * id + c)] : 0.0);
    }
    store_double(weight.data, dtype, i, known ? s.weight * s.forces_weight : 0.0);
  }
  return labels;
}

AtomLabels batch_labels(const std::vector<Structure>& structures, const Graph& graph) {
  return batch_labels(pointers(structures), graph);
}

}  // namespace tessera::nn
