// ranks: 1 2 3 4 8
// Mace over split atoms against one rank: energies, forces, stress, weight gradients of a loss of
// all three, the losses of a training.
#include <tessera/nn/optim.hpp>

#include "mace_support.hpp"

namespace tessera::test {
namespace {

MaceOptions variant(int which) {
  MaceOptions o = golden_options();
  o.r_max = 3.2;
  o.radial_mlp = {16};
  if (which == 1) {
    o.max_L = 2;
    o.max_ell = 2;
    o.layers = 3;
    o.correlation = 2;
    o.first_block = MaceOptions::FirstBlock::kAgnostic;
    o.density = true;
    o.agnesi = true;
    o.pair_repulsion = true;
  }
  if (which == 2) o.radial_intervals = 60;
  return o;
}

/// Quartz twice along a, stirred; quartz; two atoms in open space. Labels are random.
std::vector<nn::Structure> structures() {
  nn::Structure large = quartz();
  const nn::Structure one = quartz();
  large.species.insert(large.species.end(), one.species.begin(), one.species.end());
  for (std::size_t i = 0; i < one.positions.size(); ++i)
    large.positions.push_back(one.positions[i] + one.cell.vectors[0][i % 3]);
  for (double& v : large.cell.vectors[0]) v *= 2;
  nn::Structure two;
  two.species = {8, 14};
  two.positions = {0, 0, 0, 0.9, 1.1, 0.3};
  std::vector<nn::Structure> all = {large, one, two};
  std::uint64_t seed = 5;
  for (nn::Structure& s : all) {
    const auto n = static_cast<std::int64_t>(s.positions.size());
    const DenseArray noise = random_array({n}, ++seed, -0.05, 0.05);
    for (std::size_t i = 0; i < s.positions.size(); ++i) s.positions[i] += noise.values[i];
    s.energy = -20.0 - static_cast<double>(seed);
    s.forces = random_array({n}, ++seed).values;
  }
  return all;
}

Tensor loss_of(const MaceResult& r, const nn::AtomLabels& labels) {
  return mean(square((r.energy - labels.energy) / labels.atoms)) +
         10.0 * mean(square(r.forces - labels.forces)) + 100.0 * mean(square(r.stress));
}

struct Step {
  std::vector<DenseArray> values;
  double loss = 0.0;
};

Step step(Mace& model, const nn::Graph& graph, const std::vector<nn::Structure>& s) {
  const MaceResult r =
      model.compute(graph, {.stress = true, .node_virials = true, .create_graph = true});
  const Tensor loss = loss_of(r, nn::batch_labels(s, graph));
  backward(loss);
  Step result;
  result.loss = reduced(loss).item();
  result.values = {to_dense(r.energy), in_order(r.node_energy, graph), in_order(r.forces, graph),
                   to_dense(r.stress), in_order(r.node_virials, graph)};
  for (const nn::Parameter& p : model.parameters())
    result.values.push_back(to_dense(gradient(p.value())));
  return result;
}

struct Cut {
  Mesh mesh;
  nn::BatchOptions options;
};

std::vector<Cut> cuts(double cutoff) {
  std::vector<Cut> all;
  for (const Mesh& mesh : test_meshes()) {
    std::vector<std::string> axes;
    for (int a = 0; a < mesh.axis_count(); ++a) axes.push_back(mesh.axis_name(a));
    for (const nn::Cutting cutting : {nn::Cutting::kBricks, nn::Cutting::kBisection})
      all.push_back({mesh, {.cutoff = cutoff, .domain_axes = axes, .cutting = cutting}});
    // Graphs dealt out along the first axis; the others cut them, or replicate.
    all.push_back(
        {mesh,
         {.cutoff = cutoff, .data_axis = axes[0], .domain_axes = {axes.begin() + 1, axes.end()}}});
    if (axes.size() > 1)
      all.push_back({mesh, {.cutoff = cutoff, .domain_axes = {axes.begin() + 1, axes.end()}}});
  }
  return all;
}

}  // namespace

TEST_CASE("mace computes the same on any mesh") {
  const std::vector<nn::Structure> s = structures();
  for (const int which : {0, 1, 2}) {
    const MaceOptions o = variant(which);
    Mace one(o, Mesh::self(), DType::kFloat64);
    const Step expected = step(one, nn::batch_graph(s, Mesh::self(), {.cutoff = o.r_max}), s);
    for (const Cut& cut : cuts(o.r_max)) {
      INFO("variant " << which << ", mesh " << cut.mesh.str() << ", "
                      << cut.options.domain_axes.size() << " axes, cutting "
                      << static_cast<int>(cut.options.cutting));
      Mace many(o, cut.mesh, DType::kFloat64);
      const Step actual = step(many, nn::batch_graph(s, cut.mesh, cut.options), s);
      CHECK(std::abs(actual.loss - expected.loss) <= 1e-11 * expected.loss);
      REQUIRE(actual.values.size() == expected.values.size());
      for (std::size_t i = 0; i < actual.values.size(); ++i)
        CHECK(agreed(compare(str("value ", i), actual.values[i], expected.values[i], 1e-11,
                             1e-3)) == "");
    }
  }
}

TEST_CASE("mace trains alike on any mesh") {
  const std::vector<nn::Structure> s = structures();
  const MaceOptions o = variant(0);
  const auto losses = [&](const Mesh& mesh, const nn::BatchOptions& options) {
    Mace model(o, mesh, DType::kFloat64);
    optim::AdamW adam(model.parameters(), {.lr = 1e-2});
    const nn::Graph graph = nn::batch_graph(s, mesh, options);
    std::vector<double> all;
    for (int n = 0; n < 20; ++n) {
      all.push_back(step(model, graph, s).loss);
      adam.step();
    }
    return all;
  };
  const std::vector<double> expected = losses(Mesh::self(), {.cutoff = o.r_max});
  CHECK(expected.back() < 0.9 * expected.front());
  const Cut cut = cuts(o.r_max)[1];
  const std::vector<double> actual = losses(cut.mesh, cut.options);
  for (std::size_t n = 0; n < actual.size(); ++n)
    CHECK(std::abs(actual[n] - expected[n]) <= 1e-9 * expected[n]);
}

}  // namespace tessera::test
