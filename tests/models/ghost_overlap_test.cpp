// ranks: 2 3 4
// Exchanges of ghosts under the work that needs none: the same bits as when each is awaited at
// once, and waits that come after that work.
#include <algorithm>
#include <tessera/core/profile.hpp>
#include <tessera/models/mesh_graph_net.hpp>
#include <tessera/nn/graph/mesh_graph.hpp>

#include "mace_support.hpp"

namespace tessera::test {
namespace {

MaceOptions options(std::int64_t intervals) {
  MaceOptions o = golden_options();
  o.r_max = 2.5;
  o.channels = 16;
  o.radial_mlp = {16};
  o.correlation = 2;
  o.layers = 3;
  o.radial_intervals = intervals;
  return o;
}

using Values = std::vector<DenseArray>;

Values gradients(nn::Module& model) {
  Values all;
  for (const nn::Parameter& p : model.parameters()) all.push_back(to_dense(gradient(p.value())));
  return all;
}

Values train_mace(const MaceOptions& o, const Mesh& mesh, DType dtype) {
  const nn::Graph graph = nn::batch_graph(std::vector<nn::Structure>{rod(6)}, mesh,
                                          {.cutoff = o.r_max, .domain_axes = {"x"}});
  REQUIRE(graph.ghosts.total() > 0);
  Mace model(o, mesh, dtype);
  const MaceResult plain = model.compute(graph);
  const MaceResult r = model.compute(graph, {.create_graph = true});
  backward(mean(square(r.energy)) + mean(square(r.forces)));
  Values all = gradients(model);
  all.push_back(to_dense(plain.forces));
  all.push_back(to_dense(r.forces));
  all.push_back(to_dense(r.energy));
  return all;
}

Values train_net(const Mesh& mesh, DType dtype, bool recompute) {
  nn::MeshTopology t;
  t.nodes = 60;
  for (std::int64_t n = 0; n < t.nodes; ++n) {
    for (int c = 0; c < 3; ++c) t.positions.push_back(uniform_at(3, 3 * n + c));
    for (const std::int64_t to : {n + 1, n + 7, n + 11})
      if (to < t.nodes) t.pairs.push_back({n, to});
  }
  const nn::Graph graph = nn::mesh_graph(t, mesh, {}, dtype);
  models::MeshGraphNet model({.node_channels = 2, .out_channels = 3, .channels = 8, .steps = 2},
                             mesh, dtype);
  if (recompute) nn::recompute(model, {"steps.*"});
  const Tensor input = nn::node_values(
      graph, 2, [](std::int64_t id, std::int64_t c) { return uniform_at(5, 2 * id + c); }, dtype);
  const Tensor y = model(input, nn::edge_features(graph.positions, graph), graph);
  backward(mean(square(y)));
  Values all = gradients(model);
  all.push_back(to_dense(y));
  return all;
}

template <class F>
void expect_same_bits(const F& f) {
  const Values late = f();
  const AnomalyMode each_result_is_read;  // hence nothing may be in flight
  const Values at_once = f();
  REQUIRE(late.size() == at_once.size());
  for (std::size_t i = 0; i < late.size(); ++i) CHECK(late[i].values == at_once[i].values);
}

/// Ops between each op `start`, in which an exchange of `what` begins, and the op `end` in which it
/// is awaited. Fails where it was awaited earlier.
std::vector<std::vector<std::string>> hidden_behind(const Profile& profile,
                                                    const std::string& what,
                                                    const std::string& start,
                                                    const std::string& end) {
  std::vector<ProfileEvent> ops;
  for (const ProfileEvent& e : profile.events())
    if (e.kind == ProfileKind::kOp) ops.push_back(e);
  std::sort(ops.begin(), ops.end(),
            [](const ProfileEvent& a, const ProfileEvent& b) { return a.start < b.start; });
  std::vector<std::vector<std::string>> lists;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].name != start) continue;
    std::size_t j = i + 1;
    while (j < ops.size() && ops[j].name != end && ops[j].name != start) ++j;
    if (j == ops.size() || ops[j].name != end) continue;  // positions, which are awaited at once
    lists.emplace_back();
    for (std::size_t k = i + 1; k < j; ++k) lists.back().emplace_back(ops[k].name);
    const double due = ops[j - 1].start + ops[j - 1].seconds;
    for (const ProfileEvent& e : profile.events()) {
      if (e.kind == ProfileKind::kWait && profile.text_of(e.detail) == what &&
          std::string(e.name) == "exchange")
        CHECK(!(e.start > ops[i].start && e.start < due));
    }
  }
  return lists;
}

bool has(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

TEST_CASE("mace: bits do not depend on when ghosts are awaited") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  for (const DType dtype : {DType::kFloat64, DType::kFloat32})
    for (const std::int64_t intervals : {0, 40})
      expect_same_bits([&] { return train_mace(options(intervals), mesh, dtype); });
}

TEST_CASE("message passing: bits do not depend on when ghosts are awaited") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  for (const bool recompute : {false, true})
    expect_same_bits([&] { return train_net(mesh, DType::kFloat64, recompute); });
}

TEST_CASE("mace: products of nodes and the radial network run while ghosts and gradients travel") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  const MaceOptions o = options(0);
  const nn::Graph graph = nn::batch_graph(std::vector<nn::Structure>{rod(6)}, mesh,
                                          {.cutoff = o.r_max, .domain_axes = {"x"}});
  Mace model(o, mesh, DType::kFloat64);
  Profile profile;
  profile.start();
  const MaceResult r = model.compute(graph, {.create_graph = true});
  backward(mean(square(r.energy)) + mean(square(r.forces)));
  profile.stop();
  // Two layers; once more in the gradient of the loss, last one first.
  const auto out = hidden_behind(profile, "ghost_rows", "ghost_rows", "ghost_rows_wait");
  const auto back = hidden_behind(profile, "ghost_sum", "ghost_sum_start", "ghost_sum");
  REQUIRE(out.size() == 4);
  REQUIRE(back.size() == 4);
  for (const auto& lists : {out, back}) {
    for (const auto& list : lists) {
      CHECK(has(list, "irreps_linear"));
      CHECK((has(list, "linear") || has(list, "matmul")));
    }
  }
}

TEST_CASE("message passing: the edges' own product runs while ghosts and gradients travel") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  Profile profile;
  profile.start();
  (void)train_net(mesh, DType::kFloat64, false);
  profile.stop();
  const auto out = hidden_behind(profile, "ghost_rows", "ghost_rows", "ghost_rows_wait");
  REQUIRE(out.size() == 2);
  for (const auto& list : out) CHECK(has(list, "linear"));
  const auto back = hidden_behind(profile, "ghost_sum", "ghost_sum_start", "ghost_sum");
  REQUIRE(back.size() == 2);
  for (const auto& list : back) CHECK(has(list, "outer_sum"));
}

}  // namespace tessera::test
