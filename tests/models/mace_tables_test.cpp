// ranks: 1
// Mace with radial functions from tables beside the same model with networks on every edge.
#include "mace_support.hpp"

namespace tessera::test {
namespace {

double difference(const DenseArray& a, const DenseArray& b) {
  double worst = 0.0;
  for (std::size_t i = 0; i < b.values.size(); ++i)
    worst = std::max(worst, std::abs(a.values[i] - b.values[i]));
  return worst / b.largest();
}

TEST_CASE("radial tables give the energies, forces and gradients of the networks") {
  MaceOptions o = golden_options();
  const nn::Graph graph =
      nn::batch_graph(std::vector<nn::Structure>{quartz()}, Mesh::self(), {.cutoff = o.r_max});
  Mace exact(o, Mesh::self(), DType::kFloat64);
  fill_golden(exact);
  const MaceResult expected = exact.compute(graph, {.stress = true, .create_graph = true});
  backward(golden_loss(expected));
  double previous = 0.0;
  for (const std::int64_t intervals : {128, 256, 512}) {
    o.radial_intervals = intervals;
    Mace model(o, Mesh::self(), DType::kFloat64);
    fill_golden(model);
    const MaceResult r = model.compute(graph, {.stress = true, .create_graph = true});
    const double off = std::abs(r.energy.at({0}) - expected.energy.at({0}));
    INFO(intervals << " intervals: energy off by " << off);
    CHECK(off < 1e-6 * std::pow(256.0 / static_cast<double>(intervals), 4));
    // Fourth order, where the points of the edges happen to lie between knots.
    if (previous > 0.0) CHECK(off < previous);
    previous = off;
    if (intervals < 512) continue;
    CHECK(difference(to_dense(r.forces), to_dense(expected.forces)) < 1e-5);
    CHECK(difference(to_dense(r.stress), to_dense(expected.stress)) < 1e-5);
    backward(golden_loss(r));
    const auto parameters = exact.named_parameters();
    std::size_t i = 0;
    for (const auto& [path, p] : model.named_parameters()) {
      INFO(path);
      CHECK(difference(to_dense(gradient(p.value())),
                       to_dense(gradient(parameters[i].second.value()))) < 1e-4);
      ++i;
    }
  }
  o.agnesi = true;
  CHECK_THROWS_AS(Mace(o, Mesh::self(), DType::kFloat64), UsageError);
}

}  // namespace
}  // namespace tessera::test
