// ranks: 1 2 3 4
// deep: 4 8

#include <numeric>
#include <tessera/nn/atoms/domain.hpp>

#include "graph_support.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::test;

namespace {

Cell random_cell(Rng& rng, double size) {
  Cell cell;
  for (std::size_t k = 0; k < 3; ++k) {
    cell.periodic[k] = rng.coin(0.7);
    for (std::size_t c = 0; c < 3; ++c)
      cell.vectors[k][c] = (k == c ? rng.real(0.6, 1.4) * size : 0.0) + rng.real(-0.1, 0.1) * size;
    if (!cell.periodic[k] && rng.coin()) cell.vectors[k] = {0, 0, 0};
  }
  return cell;
}

DomainOptions draw_options(const Mesh& mesh, Rng& rng) {
  DomainOptions options{.cutoff = rng.real(1.0, 3.0), .skin = rng.coin(0.8) ? rng.real(0, 0.8) : 0};
  options.cutting = rng.coin() ? Cutting::kBricks : Cutting::kBisection;
  for (int a = 0; a < mesh.axis_count(); ++a)
    if (rng.coin(0.8)) options.axes.push_back(mesh.axis_name(a));
  return options;
}

/// Edges shorter than `cutoff` among positions given by id.
std::vector<NamedEdge> edges_of(const std::vector<double>& positions,
                                const Cell& cell,
                                double cutoff) {
  const auto n = static_cast<std::int64_t>(positions.size() / 3);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  const auto list = kernels::find_neighbors(positions, n, cell, cutoff, ids);
  std::vector<NamedEdge> edges;
  for (std::size_t e = 0; e < list.receivers.size(); ++e) {
    edges.emplace_back(0, list.receivers[e], list.senders[e], list.shifts[3 * e],
                       list.shifts[3 * e + 1], list.shifts[3 * e + 2]);
  }
  return edges;
}

/// Values [N, 3] of nodes by id.
std::vector<double> by_id(const DenseArray& x, const WholeGraph& whole) {
  std::vector<double> list(x.values.size());
  for (std::size_t n = 0; n < whole.nodes.size(); ++n)
    for (std::size_t c = 0; c < 3; ++c)
      list[static_cast<std::size_t>(3 * whole.nodes[n].second) + c] = x.values[3 * n + c];
  return list;
}

/// The graph's edges that are shorter than the cutoff now.
std::vector<NamedEdge> short_edges(const Graph& graph, const WholeGraph& whole, double cutoff) {
  const DenseArray v = to_dense(edge_vectors(graph.positions, graph));
  std::vector<NamedEdge> edges;
  for (std::size_t e = 0; e < whole.edges.size(); ++e) {
    double r2 = 0.0;
    for (std::size_t c = 0; c < 3; ++c) r2 += v.values[3 * e + c] * v.values[3 * e + c];
    if (r2 < cutoff * cutoff) edges.push_back(whole.edges[e]);
  }
  std::sort(edges.begin(), edges.end());
  return edges;
}

std::string walk(const Mesh& mesh, Rng& rng) {
  const auto n = static_cast<std::size_t>(rng.coin(0.1) ? rng.integer(0, 3) : rng.integer(4, 40));
  Structure s;
  s.cell = random_cell(rng, rng.real(2.0, 7.0));
  std::vector<double> path;
  for (std::size_t i = 0; i < n; ++i) {
    s.species.push_back(static_cast<std::int32_t>(rng.integer(1, 9)));
    for (int c = 0; c < 3; ++c) path.push_back(rng.real(-3.0, 9.0));
  }
  s.positions = path;
  const DomainOptions options = draw_options(mesh, rng);
  const double reach = options.cutoff + options.skin;
  std::string failure;
  AtomDomain domain(s, mesh, options);
  Tensor carried;  // 3 numbers per atom, by id
  for (int step = 0; step < 6 && failure.empty(); ++step) {
    const Graph graph = domain.graph();
    const WholeGraph whole(graph);
    const std::vector<double> now = by_id(to_dense(domain.positions()), whole);
    const std::vector<double> unwrapped = by_id(to_dense(domain.unwrapped()), whole);
    for (std::size_t i = 0; i < path.size(); ++i)
      if (std::abs(unwrapped[i] - path[i]) > 1e-9)
        failure += str("atom ", i / 3, " is at ", unwrapped[i], ", not at ", path[i], "\n");
    auto wanted = edges_of(now, domain.cell(), options.cutoff);
    std::sort(wanted.begin(), wanted.end());
    if (short_edges(graph, whole, options.cutoff) != wanted) failure += "edges are missing\n";
    const Graph shorter =
        shorter_edges(graph, node_rows(domain.positions(), graph), options.cutoff);
    if (step % 3 == 1) {
      failure += check_graph(shorter, WholeGraph(shorter), wanted, domain.positions(), rng.bits());
    }
    DenseArray species(graph.species.shape());
    for (std::size_t k = 0; k < n; ++k)
      species.values[k] = s.species[static_cast<std::size_t>(whole.nodes[k].second)];
    failure += compare("species", graph.species, species, 0.0);
    if (step == 0) {
      failure += check_graph(graph, whole, edges_of(now, domain.cell(), reach), domain.positions(),
                             rng.bits());
    }

    // A step: each atom moves, and the caller wraps some of them into the box or out of it.
    double length = rng.choice(std::vector<double>{0.01, 0.2, 1.0});
    Cell cell = domain.cell();
    const bool strained = rng.coin(0.3);
    if (strained)
      for (Vec3& v : cell.vectors)
        for (double& x : v) x *= 1.0 + rng.real(-0.01, 0.01);
    DenseArray next(graph.positions.shape());
    const Cell full = domain.cell().completed();
    const kernels::Fractions fractions(full);
    const kernels::Fractions strained_fractions(cell.completed());
    // move() asks for steps of less than half a box: more cannot be told from wrapping.
    for (int k = 0; k < 3; ++k)
      if (cell.periodic[static_cast<std::size_t>(k)])
        length = std::min(length, 0.45 * strained_fractions.height(k));
    for (std::size_t i = 0; i < n; ++i) {
      const Vec3 f = fractions.of(&now[3 * i]);
      const Vec3 place = strained_fractions.cartesian(f);
      std::array<std::int32_t, 3> jump{};
      for (std::size_t k = 0; k < 3; ++k)
        if (cell.periodic[k] && rng.coin(0.2))
          jump[k] = static_cast<std::int32_t>(rng.integer(-2, 2));
      const Vec3 shift = cell.shift(jump);
      // Images count lattice vectors of the present box.
      std::array<std::int32_t, 3> image{};
      const Vec3 away{path[3 * i] - now[3 * i], path[3 * i + 1] - now[3 * i + 1],
                      path[3 * i + 2] - now[3 * i + 2]};
      const Vec3 count = fractions.of(away.data());
      for (std::size_t k = 0; k < 3; ++k)
        image[k] = domain.cell().periodic[k] ? static_cast<std::int32_t>(std::lround(count[k])) : 0;
      const Vec3 back = cell.shift(image);
      const std::int64_t row = whole.index.at({0, static_cast<std::int64_t>(i)});
      for (std::size_t c = 0; c < 3; ++c) {
        const double to = place[c] + rng.real(-length, length) / 1.8;
        next(row, static_cast<std::int64_t>(c)) = to + shift[c];
        path[3 * i + c] = to + back[c];
      }
    }
    const DenseArray values = whole.values(3, 77);
    carried = to_tensor(values, graph.positions.layout());
    const bool rebuilt = strained ? domain.move(to_tensor(next, graph.positions.layout()), cell)
                                  : domain.move(to_tensor(next, graph.positions.layout()));
    if (rebuilt) {
      const WholeGraph after(domain.graph());
      failure += compare("carried", domain.carry(carried), after.values(3, 77), 0.0);
      auto all = after.edges;
      std::sort(all.begin(), all.end());
      auto expected = edges_of(by_id(to_dense(domain.positions()), after), domain.cell(), reach);
      std::sort(expected.begin(), expected.end());
      if (all != expected) failure += "edges of a rebuild differ\n";
    }
  }
  const Structure end = domain.collect();
  if (mesh.rank() == 0 && end.species != s.species) failure += "collected species differ\n";
  return failure;
}

/// n^3 cubes of 1 A with an atom in each, a little out of place.
Structure cubes(int n, Rng& rng) {
  Structure s;
  const auto size = static_cast<double>(n);
  s.cell = {.vectors = {Vec3{size, 0, 0}, Vec3{0, size, 0}, Vec3{0, 0, size}},
            .periodic = {true, true, true}};
  for (int i = 0; i < n * n * n; ++i) {
    s.species.push_back(1);
    for (const int c : {i / n / n, i / n % n, i % n})
      s.positions.push_back(c + 0.5 + rng.real(-0.1, 0.1));
  }
  return s;
}

}  // namespace

TEST_CASE("atoms walk through a split box: edges, values and gradients are those of one rank") {
  for (const Mesh& mesh : test_meshes())
    random_cases(draw_count(6), [&](Rng& rng) { return walk(mesh, rng); });
}

TEST_CASE("rank grids have the least surface") {
  using Grid = std::array<int, 3>;
  const std::array<bool, 3> all{true, true, true};
  // An axis that is not cut has no faces.
  REQUIRE(brick_grid({1, 1, 1}, all, 8) == Grid{4, 2, 1});
  REQUIRE(brick_grid({1, 1, 1}, {false, false, false}, 8) == Grid{2, 2, 2});
  REQUIRE(brick_grid({1, 1, 1}, all, 64) == Grid{4, 4, 4});
  REQUIRE(brick_grid({4, 1, 1}, all, 4) == Grid{4, 1, 1});
  REQUIRE(brick_grid({2, 3, 1}, {false, false, false}, 6) == Grid{2, 3, 1});
  REQUIRE(brick_grid({1, 1, 1}, {false, true, true}, 2) == Grid{2, 1, 1});
  REQUIRE(brick_grid({1, 1, 1}, all, 1) == Grid{1, 1, 1});
  REQUIRE(brick_grid({1, 1, 1}, all, 7) == Grid{7, 1, 1});
}

TEST_CASE("bisection shares weights out, whatever the number of parts") {
  Rng rng(from_process_0(9));
  std::vector<Vec3> points;
  std::vector<std::int64_t> weights;
  for (int i = 0; i < 5000; ++i) {
    // Dense in one corner.
    const double x = rng.real();
    points.push_back({x * x * x, rng.real(), rng.real()});
    weights.push_back(rng.integer(1, 5));
  }
  for (const int parts : {1, 2, 3, 5, 8, 13}) {
    const auto regions =
        Regions::bisection(points, weights, {1, 1, 1}, parts, [](std::span<std::int64_t>) {});
    REQUIRE(regions.parts() == parts);
    std::vector<double> load(static_cast<std::size_t>(parts), 0.0);
    for (std::size_t i = 0; i < points.size(); ++i) {
      const int part = regions.part_of(points[i]);
      load[static_cast<std::size_t>(part)] += static_cast<double>(weights[i]);
      REQUIRE(regions.near(part, points[i], {0, 0, 0}));
    }
    const double total = std::accumulate(load.begin(), load.end(), 0.0);
    for (const double l : load) REQUIRE(l * parts / total == Approx(1.0).margin(0.02));
  }
}

TEST_CASE("bisection cuts anew when the work is uneven") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  Rng rng(from_process_0(4));
  Structure s = cubes(6, rng);
  // All atoms crowd into one end of the box, by and by.
  AtomDomain domain(s, mesh, {.cutoff = 1.2, .skin = 0.2, .cutting = Cutting::kBisection});
  for (int step = 0; step < 12; ++step) {
    const Tensor r = domain.positions();
    const Tensor squeezed = Tensor::empty(r.layout(), r.dtype());
    const View from = r.local();
    const View to = squeezed.mutable_local();
    for (std::int64_t i = 0; i < from.size(); ++i)
      to.as<double>()[i] = from.as<double>()[i] * (i % 3 == 0 ? 0.93 : 1.0);
    domain.move(squeezed);
  }
  REQUIRE(domain.rebuilds() > 3);
  REQUIRE(domain.imbalance() < 1.35);
}

TEST_CASE("ghosts are the atoms within reach, once each, whatever images they have") {
  const int ranks = process().count;
  const Mesh mesh = Mesh::world({{"x", ranks}});
  Rng rng(from_process_0(2));
  const Structure s = cubes(4, rng);
  // The cutoff is larger than the box: every atom of others is a ghost of all that have atoms.
  const AtomDomain domain(s, mesh, {.cutoff = 4.5});
  const Layout nodes = domain.graph().nodes();
  std::int64_t ghosts = 0;
  std::int64_t busy = 0;
  for (int r = 0; r < ranks; ++r) {
    const std::int64_t own = nodes.owned(0, r).size();
    if (own > 0) ghosts += 64 - own;
    busy += own > 0 ? 1 : 0;
  }
  REQUIRE(domain.graph().ghosts.total() == ghosts);
  const Tensor x = Tensor::full(nodes.with_inserted_dim(1, 2), 1.0);
  expect_traffic(ghosts * 8, busy * (busy - 1), [&] { node_rows(x, domain.graph()); });
  // With a short one, only those near the faces are.
  const AtomDomain near(s, mesh, {.cutoff = 1.3});
  if (ranks == 2) REQUIRE(near.graph().ghosts.total() == 64);
  if (ranks == 4) REQUIRE(near.graph().ghosts.total() <= 4 * 48);
}

TEST_CASE("atoms that hardly move stay where they are, and nothing is rebuilt") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  Rng rng(from_process_0(8));
  AtomDomain domain(cubes(5, rng), mesh, {.cutoff = 1.6, .skin = 0.5});
  const auto shifted = [&](double by) {
    const Tensor r = domain.positions();
    const Tensor next = Tensor::empty(r.layout(), r.dtype());
    const View from = r.local();
    const View to = next.mutable_local();
    for (std::int64_t i = 0; i < from.size(); ++i) to.as<double>()[i] = from.as<double>()[i] + by;
    return next;
  };
  const auto before = domain.graph().senders.id();
  REQUIRE_FALSE(domain.move(shifted(0.1)));
  // One number from each rank decides that the list is still good.
  Traffic one = traffic_of([&] { domain.move(shifted(-0.1)); });
  REQUIRE(one.bytes <= 64 * process().count);
  REQUIRE(domain.graph().senders.id() == before);
  REQUIRE(domain.move(shifted(0.2)));
  REQUIRE(domain.rebuilds() == 2);
  // Within half the skin of its part an atom stays.
  REQUIRE(domain.migrated() <= 25 * process().count);
}

TEST_CASE("what has no meaning is refused on every rank") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  Rng rng(from_process_0(3));
  Structure s = cubes(3, rng);
  REQUIRE_THROWS_AS(AtomDomain(s, mesh, {.cutoff = 0.0}), UsageError);
  REQUIRE_THROWS_AS(AtomDomain(s, mesh, {.cutoff = 1.0, .skin = -1.0}), UsageError);
  REQUIRE_THROWS_AS(AtomDomain(s, mesh, {.cutoff = 1.0, .axes = {"y"}}), UsageError);
  AtomDomain domain(s, mesh, {.cutoff = 1.2, .skin = 0.1});
  REQUIRE_THROWS_AS(domain.move(Tensor::zeros(Layout::replicated(mesh, {26, 3}))), ShapeError);
  const Tensor r = Tensor::full(domain.positions().layout(), 0.0, DType::kFloat64);
  const View view = r.mutable_local();
  for (std::int64_t i = 0; i < view.size(); ++i)
    view.as<double>()[i] = domain.positions().local().as<double>()[i];
  if (mesh.rank() == 0) view.as<double>()[1] = std::nan("");
  REQUIRE_THROWS_AS(domain.move(r), ShapeError);
  Structure twice = s;
  for (std::size_t c = 0; c < 3; ++c) twice.positions[3 + c] = twice.positions[c];
  REQUIRE_THROWS_AS(AtomDomain(twice, mesh, {.cutoff = 1.2}), ShapeError);
  Structure flat = s;
  flat.cell.vectors[2] = flat.cell.vectors[1];
  REQUIRE_THROWS_AS(AtomDomain(flat, mesh, {.cutoff = 1.2}), ShapeError);
}
