// ranks: 1 2 3 4
// deep: 4 8

#include <numeric>
#include <tessera/nn/graph/batch.hpp>

#include "graph_support.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::test;

namespace {

Structure random_structure(Rng& rng) {
  Structure s;
  const std::int64_t n = rng.integer(0, 9);
  for (std::size_t k = 0; k < 3; ++k) {
    s.cell.periodic[k] = rng.coin(0.6);
    for (std::size_t c = 0; c < 3; ++c)
      s.cell.vectors[k][c] = (k == c ? rng.real(2.5, 6.0) : 0.0) + rng.real(-0.5, 0.5);
    if (!s.cell.periodic[k] && rng.coin()) s.cell.vectors[k] = {0, 0, 0};
  }
  for (std::int64_t i = 0; i < n; ++i) {
    s.species.push_back(static_cast<std::int32_t>(rng.integer(1, 3)));
    for (int c = 0; c < 3; ++c) s.positions.push_back(rng.real(-2.0, 7.0));
  }
  return s;
}

/// All edges, found by one rank for one structure at a time.
std::vector<NamedEdge> edges_of(const std::vector<Structure>& structures, double cutoff) {
  std::vector<NamedEdge> edges;
  for (std::size_t g = 0; g < structures.size(); ++g) {
    const Structure& s = structures[g];
    std::vector<std::int64_t> ids(static_cast<std::size_t>(s.atoms()));
    std::iota(ids.begin(), ids.end(), 0);
    const auto list = kernels::find_neighbors(s.positions, s.atoms(), s.cell, cutoff, ids);
    for (std::size_t e = 0; e < list.receivers.size(); ++e) {
      edges.emplace_back(static_cast<int>(g), list.receivers[e], list.senders[e],
                         list.shifts[3 * e], list.shifts[3 * e + 1], list.shifts[3 * e + 2]);
    }
  }
  return edges;
}

BatchOptions draw_options(const Mesh& mesh, Rng& rng) {
  BatchOptions options{.cutoff = rng.real(1.0, 4.0)};
  options.cutting = rng.coin() ? Cutting::kBricks : Cutting::kBisection;
  options.data_axis = "none";
  for (int a = 0; a < mesh.axis_count(); ++a) {
    const std::int64_t use = rng.integer(0, 3);
    if (use == 0) options.data_axis = mesh.axis_name(a);
    if (use == 1 || use == 2) options.domain_axes.push_back(mesh.axis_name(a));
  }
  return options;
}

}  // namespace

TEST_CASE("a batch of structures is the same graph on any mesh") {
  for (const Mesh& mesh : test_meshes()) {
    random_cases(draw_count(8), [&](Rng& rng) {
      std::vector<Structure> structures;
      for (std::int64_t g = rng.integer(1, 4); g > 0; --g)
        structures.push_back(random_structure(rng));
      const BatchOptions options = draw_options(mesh, rng);
      const Graph graph = batch_graph(structures, mesh, options);
      const WholeGraph whole(graph);
      std::string failure = check_graph(graph, whole, edges_of(structures, options.cutoff),
                                        graph.positions, rng.bits());
      // What each node is.
      DenseArray species(graph.species.shape());
      DenseArray positions(graph.positions.shape());
      for (std::size_t n = 0; n < whole.nodes.size(); ++n) {
        const auto& [g, id] = whole.nodes[n];
        const Structure& s = structures[static_cast<std::size_t>(g)];
        species.values[n] = s.species[static_cast<std::size_t>(id)];
        for (std::size_t c = 0; c < 3; ++c)
          positions.values[3 * n + c] = s.positions[static_cast<std::size_t>(3 * id) + c];
      }
      failure += compare("species", graph.species, species, 0.0);
      failure += compare("positions", graph.positions, positions, 0.0);
      DenseArray row_species(graph.rows().shape());
      const DenseArray rows = to_dense(graph.rows());
      for (std::size_t r = 0; r < rows.values.size(); ++r)
        row_species.values[r] = species.values[static_cast<std::size_t>(rows.values[r])];
      failure += compare("species of rows", graph.row_species, row_species, 0.0);
      return failure;
    });
  }
}

TEST_CASE("graphs are dealt out evenly") {
  const int ranks = process().count;
  const Mesh mesh = Mesh::world({{"data", ranks}});
  std::vector<Structure> structures;
  // One that is as large as all others of a rank together, last.
  for (int g = 0; g < 6 * (ranks - 1) + 1; ++g) {
    Structure s;
    const int atoms = g == 6 * (ranks - 1) ? 18 : 3;
    for (int i = 0; i < atoms; ++i) {
      s.species.push_back(1);
      s.positions.insert(s.positions.end(), {1.0 * i, 0.0, 0.0});
    }
    structures.push_back(s);
  }
  const Graph graph = batch_graph(structures, mesh, {.cutoff = 1.5});
  for (int r = 0; r < ranks; ++r) REQUIRE(graph.nodes().owned(0, r).size() == 18);
}

TEST_CASE("graphs that lie whole in one part exchange nothing") {
  const Mesh mesh = Mesh::world({{"data", process().count}});
  Rng rng(from_process_0(5));
  std::vector<Structure> structures;
  for (int g = 0; g < 5; ++g) structures.push_back(random_structure(rng));
  const Graph graph = batch_graph(structures, mesh, {.cutoff = 3.0});
  REQUIRE(graph.ghosts.total() == 0);
  const Tensor r = require_grad(graph.positions);
  Tensor v;
  expect_traffic(0, 0, [&] { v = edge_vectors(r, graph); });
  const Tensor g = Tensor::full(v.layout(), 1.0, DType::kFloat64);
  expect_traffic(0, 0, [&] { grad({v}, {r}, {}, {g}); });
}

TEST_CASE("ghosts are sent once each, forward and backward") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  Structure s;
  s.cell = {.vectors = {Vec3{6, 0, 0}, Vec3{0, 3, 0}, Vec3{0, 0, 3}},
            .periodic = {true, true, true}};
  for (int i = 0; i < 12; ++i) {
    s.species.push_back(14);
    s.positions.insert(s.positions.end(), {0.25 + 0.5 * i, 1.5, 1.5});
  }
  const Graph graph =
      batch_graph(std::vector<Structure>{s}, mesh, {.cutoff = 0.6, .domain_axes = {"x"}});
  const int ranks = process().count;
  // Chains of atoms, cut into equal pieces, closed to a ring: one ghost at each end.
  const std::int64_t ghosts = ranks == 1 ? 0 : 2 * ranks;
  REQUIRE(graph.ghosts.total() == ghosts);
  REQUIRE(graph.edge_count() == 24);
  const Tensor x = require_grad(Tensor::full(graph.nodes().with_inserted_dim(1, 5), 1.0));
  const std::int64_t messages = ranks == 1 ? 0 : ranks == 2 ? 2 : 2 * ranks;
  Tensor y;
  expect_traffic(ghosts * 5 * 4, messages, [&] { y = node_rows(x, graph); });
  const Tensor g = Tensor::full(y.layout(), 1.0);
  expect_traffic(ghosts * 5 * 4, messages, [&] { grad({y}, {x}, {}, {g}); });
  // The species of ghosts are known.
  expect_traffic(0, 0, [&] { at_senders(Tensor::full(graph.rows().layout(), 1.0), graph); });
}

TEST_CASE("labels that a structure lacks have weight 0") {
  const Mesh mesh = Mesh::world({{"data", process().count}});
  Structure a;
  a.species = {1, 8};
  a.positions = {0, 0, 0, 0.9, 0, 0};
  a.energy = -3.0;
  a.forces = {1, 2, 3, 4, 5, 6};
  a.weight = 2.0;
  a.forces_weight = 0.25;
  Structure b = a;
  b.energy.reset();
  b.forces.clear();
  b.stress = std::array<double, 9>{1, 2, 3, 2, 4, 5, 3, 5, 6};
  b.cell = {.vectors = {Vec3{2, 0, 0}, Vec3{0, 3, 0}, Vec3{0, 0, 4}},
            .periodic = {true, true, true}};
  const std::vector<Structure> both = {a, b};
  const Graph graph = batch_graph(both, mesh, {.cutoff = 1.5});
  const AtomLabels labels = batch_labels(both, graph);
  REQUIRE(to_dense(labels.energy).values == std::vector<double>{-3, 0});
  REQUIRE(to_dense(labels.energy_weight).values == std::vector<double>{2, 0});
  REQUIRE(to_dense(labels.stress_weight).values == std::vector<double>{0, 2});
  REQUIRE(to_dense(labels.forces_weight).values == std::vector<double>{0.5, 0.5, 0, 0});
  REQUIRE(to_dense(labels.forces).values ==
          std::vector<double>{1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0});
  REQUIRE(to_dense(labels.volume).values == std::vector<double>{1, 24});
  REQUIRE(to_dense(labels.atoms).values == std::vector<double>{2, 2});
  REQUIRE_THROWS_AS(batch_labels(std::vector<Structure>{a}, graph), ShapeError);
  REQUIRE_THROWS_AS(batch_graph(std::vector<Structure>{}, mesh, {}), UsageError);
  REQUIRE_THROWS_AS(batch_graph(both, mesh, {.domain_axes = {"nowhere"}}), UsageError);
  b.cell.vectors[2] = b.cell.vectors[1];
  REQUIRE_THROWS_AS(batch_graph(std::vector<Structure>{b}, mesh, {}), ShapeError);
}
