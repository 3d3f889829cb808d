// ranks: 2 3 4 8
// What Mace sends on split atoms, by rank and to the byte: positions and features of ghosts, their
// gradients back, nothing else but sums.
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/stats.hpp>

#include "mace_support.hpp"

namespace tessera::test {
namespace {

MaceOptions small(int layers, int max_L) {
  MaceOptions o = golden_options();
  o.r_max = 2.5;
  o.radial_mlp = {8};
  o.layers = layers;
  o.max_L = max_L;
  o.correlation = 2;
  return o;
}

std::vector<MaceOptions> variants() {
  std::vector<MaceOptions> all = {small(1, 0), small(2, 0), small(2, 2), small(3, 1)};
  all.push_back(small(2, 1));
  all.back().density = all.back().agnesi = all.back().pair_repulsion = true;
  all.push_back(small(2, 1));
  all.back().radial_intervals = 40;
  return all;
}

/// Exchanges of this process that carry rows of ghosts: `out` by way of owners, `back` to them.
struct Passes {
  std::int64_t out = 0;
  std::int64_t back = 0;
};

void expect_rows(const nn::Graph& graph,
                 Passes positions,
                 Passes features,
                 std::int64_t feature_bytes,
                 const std::function<void()>& f) {
  const GhostRows& ghosts = graph.ghosts;
  const std::int64_t position_bytes = 3 * static_cast<std::int64_t>(sizeof(double));
  const std::int64_t owned =
      positions.out * position_bytes + features.out * feature_bytes;  // per row sent to a reader
  const std::int64_t read = positions.back * position_bytes + features.back * feature_bytes;
  parallel::reset_comm_stats();
  f();
  const parallel::CommStats stats = parallel::comm_stats();
  const std::int64_t bytes = stats.point_to_point().bytes;
  CHECK(bytes == ghosts.sent() * owned + ghosts.local() * read);
  // Nothing else moves but sums.
  CHECK(stats.total().bytes == bytes + stats[parallel::CallKind::kAllReduce].bytes);
  const std::int64_t passes = positions.out + positions.back + features.out + features.back;
  CHECK(stats.point_to_point().calls == passes);
}

}  // namespace

TEST_CASE("mace sends positions, species and the features of later layers, each ghost once") {
  const Mesh mesh = Mesh::world({{"atoms", process().count}});
  const nn::Graph graph = nn::batch_graph(std::vector<nn::Structure>{rod(5)}, mesh,
                                          {.cutoff = 2.5, .domain_axes = {"atoms"}});
  REQUIRE(graph.ghosts.total() > 0);
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const MaceOptions& o : variants()) {
      INFO(o.layers << " layers, L " << o.max_L << ", " << name(dtype));
      Mace model(o, mesh, dtype);
      // The first layer takes the species of ghosts, which came with the graph.
      const std::int64_t layers = o.layers - 1;
      const std::int64_t width = (o.max_L + 1) * (o.max_L + 1) * o.channels;
      const std::int64_t bytes = width * static_cast<std::int64_t>(size_of(dtype));
      expect_rows(graph, {.out = 1}, {.out = layers}, bytes,
                  [&] { (void)model.compute(graph, {.forces = false}); });
      expect_rows(graph, {.out = 1, .back = 1}, {.out = layers, .back = layers}, bytes,
                  [&] { (void)model.compute(graph, {.stress = true}); });
      // Training: forces are a gradient, and the loss is differentiated through it: gradients of
      // forces go out, then cotangents of features as the features went, and their gradients back.
      expect_rows(graph, {.out = 2, .back = 1}, {.out = 2 * layers, .back = 2 * layers}, bytes,
                  [&] {
                    const MaceResult r = model.compute(graph, {.create_graph = true});
                    backward(mean(square(r.energy)) + mean(square(r.forces)));
                  });
    }
  }
}

TEST_CASE("species of ghosts come with the graph and are not sent again") {
  const Mesh mesh = Mesh::world({{"atoms", process().count}});
  const nn::Graph graph = nn::batch_graph(std::vector<nn::Structure>{rod(5)}, mesh,
                                          {.cutoff = 2.5, .domain_axes = {"atoms"}});
  const Tensor sent = nn::node_rows(cast(graph.species, DType::kFloat64), graph);
  REQUIRE(compare("species", cast(graph.row_species, DType::kFloat64), to_dense(sent), 0.0) == "");
}

}  // namespace tessera::test
