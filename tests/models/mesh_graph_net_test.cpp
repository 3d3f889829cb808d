// ranks: 1 2 3 4
#include <map>
#include <set>
#include <tessera/models/mesh_graph_net.hpp>
#include <tessera/nn/graph/batch.hpp>
#include <tessera/nn/graph/mesh_graph.hpp>
#include <tessera/nn/inspect/plan.hpp>

#include "model_support.hpp"

namespace tessera::test {
namespace {

using models::MeshGraphNet;
using models::MeshGraphNetOptions;
using nn::MeshTopology;

/// A sheet of width x height nodes, out of place, cut into triangles.
MeshTopology sheet(std::int64_t width, std::int64_t height) {
  MeshTopology t;
  t.nodes = width * height;
  std::vector<std::int64_t> cells;
  for (std::int64_t j = 0; j < height; ++j) {
    for (std::int64_t i = 0; i < width; ++i) {
      const std::int64_t n = j * width + i;
      for (std::int64_t c = 0; c < 3; ++c) {
        const double place = c == 0 ? double(i) : c == 1 ? double(j) : 0.0;
        t.positions.push_back(place + 0.3 * uniform_at(3, 3 * n + c));
      }
      t.kinds.push_back(i == 0 ? 1 : 0);
      if (i + 1 == width || j + 1 == height) continue;
      for (const std::int64_t corner : {n, n + 1, n + width, n + 1, n + width + 1, n + width})
        cells.push_back(corner);
    }
  }
  t.pairs = nn::sides_of_cells(cells, nn::CellShape::kTriangle);
  return t;
}

MeshGraphNetOptions small(nn::Aggregate aggregate = nn::Aggregate::kSum) {
  return {.node_channels = 2,
          .out_channels = 3,
          .channels = 6,
          .steps = 2,
          .aggregate = aggregate,
          .activation = Activation::kSilu};
}

struct Run {
  DenseArray output;  // rows by id
  std::vector<DenseArray> gradients;
  std::vector<double> losses;
};

DenseArray by_id(const Tensor& x, const nn::Graph& graph) {
  const DenseArray values = to_dense(x);
  const DenseArray ids = to_dense(graph.ids);
  DenseArray sorted(values.shape);
  for (std::int64_t n = 0; n < ids.size(); ++n)
    for (std::int64_t c = 0; c < values.shape[1]; ++c)
      sorted(static_cast<std::int64_t>(ids(n)), c) = values(n, c);
  return sorted;
}

Run train(const MeshTopology& t,
          const Mesh& mesh,
          const std::vector<std::string>& axes,
          const MeshGraphNetOptions& options,
          int steps,
          bool recompute = false) {
  const nn::Graph graph = nn::mesh_graph(t, mesh, axes, DType::kFloat64);
  MeshGraphNet model(options, mesh, DType::kFloat64);
  if (recompute) nn::recompute(model, {"steps.*"});
  optim::AdamW adam(model.parameters(), {.lr = 1e-2});
  const Tensor input = nn::node_values(
      graph, 2, [](std::int64_t id, std::int64_t c) { return uniform_at(5, 2 * id + c); },
      DType::kFloat64);
  const Tensor target = nn::node_values(
      graph, 3, [](std::int64_t id, std::int64_t c) { return uniform_at(6, 3 * id + c); },
      DType::kFloat64);
  Run r;
  for (int s = 0; s < steps; ++s) {
    const Tensor positions = require_grad(graph.positions);
    const Tensor y = model(input, nn::edge_features(positions, graph), graph);
    const Tensor loss = mse_loss(y, target);
    backward(loss);
    if (s == 0) {
      r.output = by_id(y, graph);
      r.gradients.push_back(by_id(gradient(positions), graph));
      for (const nn::Parameter& p : model.parameters())
        r.gradients.push_back(to_dense(gradient(p.value())));
    }
    adam.step();
    r.losses.push_back(loss.item());
  }
  return r;
}

void check_same(const Run& actual, const Run& expected) {
  CHECK(compare("output", actual.output, expected.output, 1e-11) == "");
  REQUIRE(actual.gradients.size() == expected.gradients.size());
  for (std::size_t i = 0; i < expected.gradients.size(); ++i)
    CHECK(compare(str("gradient ", i), actual.gradients[i], expected.gradients[i], 1e-10, 1e-4) ==
          "");
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    CHECK(std::abs(actual.losses[i] - expected.losses[i]) <= 1e-10 * expected.losses[i]);
}

}  // namespace

TEST_CASE("mesh graph net: output, gradients and training are the same on any mesh") {
  for (const auto aggregate : {nn::Aggregate::kSum, nn::Aggregate::kMean, nn::Aggregate::kMax}) {
    const MeshTopology t = sheet(7, 5);
    const Run one = train(t, Mesh::self(), {}, small(aggregate), 4);
    CHECK(one.losses.back() < one.losses.front());
    for (const Mesh& mesh : test_meshes()) {
      INFO("mesh " << mesh.str() << ", " << nn::name(aggregate));
      check_same(train(t, mesh, {}, small(aggregate), 4), one);
      if (mesh.axis_count() > 1)
        check_same(train(t, mesh, {mesh.axis_name(1)}, small(aggregate), 4), one);
    }
  }
}

TEST_CASE("mesh graph net: fewer nodes than ranks, nodes without edges, recomputation") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  MeshTopology t;
  t.nodes = 3;
  t.pairs = {{0, 2}};
  t.positions = {0, 0, 0, 5, 5, 5, 1, 0.5, 0.2};
  check_same(train(t, mesh, {}, small(), 2), train(t, Mesh::self(), {}, small(), 2));
  const MeshTopology s = sheet(4, 4);
  check_same(train(s, mesh, {}, small(), 2, true), train(s, Mesh::self(), {}, small(), 2));
}

TEST_CASE("a step of message passing is what its formula says") {
  const MeshTopology t = sheet(3, 3);
  const nn::Graph graph = nn::mesh_graph(t, Mesh::self(), {}, DType::kFloat64);
  struct Holder : nn::Module {
    nn::MessagePassing step;
    explicit Holder(const nn::MessagePassingOptions& o) : step(o, Mesh::self(), DType::kFloat64) {
      nn::initialize(*this, 4);
    }
    void fields(nn::Fields& f) override { f("step", step); }
  };
  const std::int64_t width = 4;
  Holder model({.channels = width, .activation = Activation::kRelu});
  std::map<std::string, DenseArray> w;
  for (auto& [name, p] : model.named_parameters()) w[name] = to_dense(p.value());
  using Row = std::vector<double>;
  const auto affine = [&](const std::string& layer, const Row& x, bool bias) {
    const DenseArray& weight = w.at(layer + ".weight");
    Row y(static_cast<std::size_t>(width), 0.0);
    for (std::int64_t o = 0; o < width; ++o) {
      auto& sum = y[static_cast<std::size_t>(o)];
      if (bias) sum = w.at(layer + ".bias")(o);
      for (std::int64_t i = 0; i < width; ++i) sum += weight(o, i) * x[static_cast<std::size_t>(i)];
    }
    return y;
  };
  const auto network = [&](const std::string& at, const std::vector<Row>& inputs) {
    Row y(static_cast<std::size_t>(width), 0.0);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Row part = affine(str(at, ".first.", i), inputs[i], i == 0);
      for (std::size_t c = 0; c < y.size(); ++c) y[c] += part[c];
    }
    for (int l = 0; l < 2; ++l) {
      for (double& v : y) v = std::max(v, 0.0);
      y = affine(str(at, ".more.", l), y, true);
    }
    double mean = 0.0;
    double square = 0.0;
    for (const double v : y) mean += v / static_cast<double>(width);
    for (const double v : y) square += (v - mean) * (v - mean) / static_cast<double>(width);
    for (double& v : y) v = (v - mean) / std::sqrt(square + 1e-6);
    return y;
  };
  const DenseArray x = random_array({9, width}, 1);
  const DenseArray e = random_array({graph.edge_count(), width}, 2);
  const auto row = [&](const DenseArray& a, std::int64_t r) {
    const auto from = a.values.begin() + r * width;
    return Row(from, from + width);
  };
  const nn::GraphState out = model.step({to_self(x), to_self(e)}, graph);
  DenseArray edges = e;
  DenseArray sums(x.shape);
  DenseArray nodes = x;
  const DenseArray senders = to_dense(graph.senders);
  const DenseArray receivers = to_dense(graph.receivers);
  for (std::int64_t k = 0; k < graph.edge_count(); ++k) {
    const auto i = static_cast<std::int64_t>(receivers(k));
    const auto j = static_cast<std::int64_t>(senders(k));
    const Row m = network("step.edge", {row(e, k), row(x, j), row(x, i)});
    for (std::int64_t c = 0; c < width; ++c) {
      edges(k, c) += m[static_cast<std::size_t>(c)];
      sums(i, c) += edges(k, c);
    }
  }
  for (std::int64_t i = 0; i < 9; ++i) {
    const Row m = network("step.node", {row(x, i), row(sums, i)});
    for (std::int64_t c = 0; c < width; ++c) nodes(i, c) += m[static_cast<std::size_t>(c)];
  }
  CHECK(compare("edges", out.edges, edges, 1e-12) == "");
  CHECK(compare("nodes", out.nodes, nodes, 1e-12) == "");
}

TEST_CASE("meshes become graphs: sides of cells, parts of METIS") {
  using Pairs = std::vector<std::array<std::int64_t, 2>>;
  const std::vector<std::int64_t> two = {0, 1, 2, 2, 1, 3};
  CHECK(nn::sides_of_cells(two, nn::CellShape::kTriangle) ==
        Pairs{{0, 1}, {0, 2}, {1, 2}, {1, 3}, {2, 3}});
  const std::vector<std::int64_t> eight = {0, 1, 2, 3, 4, 5, 6, 7};
  CHECK(nn::sides_of_cells(eight, nn::CellShape::kHexahedron).size() == 12);
  CHECK(nn::sides_of_cells(eight, nn::CellShape::kTetrahedron).size() == 12);
  CHECK(nn::sides_of_cells(eight, nn::CellShape::kQuad).size() == 8);
  CHECK(nn::sides_of_cells(eight, nn::CellShape::kLine).size() == 4);
  CHECK_THROWS_AS(nn::sides_of_cells(eight, nn::CellShape::kTriangle), ShapeError);

  const MeshTopology t = sheet(20, 10);
  for (const int parts : {1, 2, 5, 12}) {
    const auto part = nn::partition_graph(t, parts);
    std::vector<double> work(static_cast<std::size_t>(parts), 0.0);
    for (std::int64_t n = 0; n < t.nodes; ++n) work[static_cast<std::size_t>(part[n])] += 1;
    std::int64_t cut = 0;
    for (const auto& [a, b] : t.pairs) {
      work[static_cast<std::size_t>(part[static_cast<std::size_t>(a)])] += 1;
      work[static_cast<std::size_t>(part[static_cast<std::size_t>(b)])] += 1;
      cut += part[static_cast<std::size_t>(a)] != part[static_cast<std::size_t>(b)] ? 1 : 0;
    }
    const double mean = (static_cast<double>(t.nodes) + 2.0 * double(t.pairs.size())) / parts;
    for (const double v : work) CHECK(v < 1.25 * mean);
    CHECK(cut <= 30 * (parts - 1));
  }

  // Ghosts are the neighbours across the cut; each travels once.
  const Mesh mesh = Mesh::world({{"x", process().count}});
  const nn::Graph graph = nn::mesh_graph(t, mesh);
  CHECK(graph.edge_count() == 2 * static_cast<std::int64_t>(t.pairs.size()));
  const auto part = nn::partition_graph(t, process().count);
  std::set<std::pair<std::int64_t, std::int64_t>> ghosts;  // (part, node)
  for (const auto& [a, b] : t.pairs) {
    const auto pa = part[static_cast<std::size_t>(a)];
    const auto pb = part[static_cast<std::size_t>(b)];
    if (pa == pb) continue;
    ghosts.insert({pa, b});
    ghosts.insert({pb, a});
  }
  const auto total = static_cast<std::int64_t>(ghosts.size());
  CHECK(graph.ghosts.total() == total);
  const Tensor x = Tensor::full(graph.nodes().with_inserted_dim(1, 6), 1.0);
  CHECK(traffic_of([&] { nn::node_rows(x, graph); }).bytes == 24 * total);

  MeshTopology wrong = t;
  wrong.pairs.push_back({3, 200});
  CHECK_THROWS_AS(nn::mesh_graph(wrong, mesh), ShapeError);
  wrong.pairs.back() = {3, 3};
  CHECK_THROWS_AS(nn::mesh_graph(wrong, mesh), ShapeError);
  wrong = t;
  wrong.kinds.pop_back();
  CHECK_THROWS_AS(nn::mesh_graph(wrong, mesh), ShapeError);
}

namespace {

/// Forces on two boxes of atoms that differ in size, or values on a sheet.
class GraphFit : public nn::Workload {
 public:
  GraphFit(const Mesh& mesh, bool atoms)
      : graph_(atoms ? boxes(mesh) : nn::mesh_graph(sheet(9, 8), mesh)),
        model_(small(), mesh),
        adam_(model_.parameters(), {.lr = 1e-3}) {}
  nn::Module& model() override { return model_; }
  Tensor loss(std::int64_t) override {
    const auto one = [](std::int64_t id, std::int64_t c) { return 0.1 * double(id % 7 + c); };
    const Tensor y = model_(nn::node_values(graph_, 2, one),
                            nn::edge_features(graph_.positions, graph_), graph_);
    return mse_loss(y, nn::node_values(graph_, 3, one));
  }
  void update() override { adam_.step(); }

 private:
  static nn::Graph boxes(const Mesh& mesh) {
    std::vector<nn::Structure> list(2);
    for (std::size_t g = 0; g < 2; ++g) {
      const double size = g == 0 ? 5.0 : 6.0;
      for (std::size_t k = 0; k < 3; ++k) list[g].cell.vectors[k][k] = size;
      list[g].cell.periodic = {true, true, g == 0};
      for (int i = 0; i < 30; ++i) {
        list[g].species.push_back(8);
        for (int c = 0; c < 3; ++c)
          list[g].positions.push_back(size * uniform_at(20 + g, 3 * i + c));
      }
    }
    nn::BatchOptions options{.cutoff = 2.0, .dtype = DType::kFloat32};
    for (int a = 0; a < mesh.axis_count(); ++a)
      if (mesh.axis_name(a) != "data") options.domain_axes.push_back(mesh.axis_name(a));
    return nn::batch_graph(list, mesh, options);
  }

  nn::Graph graph_;
  MeshGraphNet model_;
  optim::AdamW adam_;
};

}  // namespace

TEST_CASE("a step on a graph is planned as it happens") {
  const int ranks = process().count;
  std::vector<std::vector<MeshAxis>> meshes = {{{"x", ranks}}};
  if (ranks % 2 == 0) meshes.push_back({{"data", 2}, {"x", ranks / 2}});
  for (const auto& axes : meshes) {
    for (const bool atoms : {false, true}) {
      const Mesh mesh = Mesh::world(axes);
      const auto planned = nn::plan_rank(
          axes, mesh.rank(), [&](const Mesh& on) { return std::make_unique<GraphFit>(on, atoms); });
      GraphFit real(mesh, atoms);
      const auto measured = nn::measure_rank(mesh, real);
      for (std::size_t k = 0; k < measured.sent.kinds.size(); ++k) {
        INFO(name(static_cast<parallel::CallKind>(k)) << (atoms ? ", atoms" : ", sheet"));
        CHECK(planned.sent.kinds[k].messages == measured.sent.kinds[k].messages);
        CHECK(planned.sent.kinds[k].bytes == measured.sent.kinds[k].bytes);
      }
      CHECK(planned.peak_bytes == measured.peak_bytes);
    }
  }
  // A mesh that is not here: every rank of 64.
  const auto plan = nn::plan_step(
      {{"x", 8}, {"y", 8}}, [](const Mesh& on) { return std::make_unique<GraphFit>(on, true); });
  CHECK(plan.plans.size() == 64);
  CHECK(plan.total().bytes > 0);
}

TEST_CASE("mesh graph net refuses what does not fit") {
  const nn::Graph graph = nn::mesh_graph(sheet(3, 3), Mesh::self());
  const MeshGraphNet model(small(), Mesh::self());
  const auto zeros = [](const Shape& s) {
    return Tensor::zeros(Layout::replicated(Mesh::self(), s));
  };
  CHECK_THROWS_AS(model(zeros({9, 3}), zeros({graph.edge_count(), 4}), graph), ShapeError);
  CHECK_THROWS_AS(model(zeros({9, 2}), zeros({7, 4}), graph), ShapeError);
  MeshGraphNetOptions o = small();
  o.steps = 0;
  CHECK_THROWS_AS(MeshGraphNet(o, Mesh::self()), UsageError);
  o = small();
  o.channels = 0;
  CHECK_THROWS_AS(MeshGraphNet(o, Mesh::self()), UsageError);
}

}  // namespace tessera::test
