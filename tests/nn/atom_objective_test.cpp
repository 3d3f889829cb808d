// ranks: 1 2 3
// Losses, errors and statistics of potentials, against plain loops; published programs'
// conventions.
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/nn/atoms/objective.hpp>
#include <tessera/nn/atoms/statistics.hpp>
#include <tessera/nn/io/data_error.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

using nn::Structure;
using Kind = nn::AtomLossOptions::Kind;

/// Structures of 3, 5, 2 and 4 atoms; the second has no energy, the third no forces, the fourth no
/// stress and half the weight. One force is above 100, one above 300 eV/A.
std::vector<Structure> structures() {
  std::vector<Structure> all;
  std::uint64_t seed = 1;
  for (const int n : {3, 5, 2, 4}) {
    Structure s;
    s.cell.vectors = {{{6, 0, 0}, {0, 6, 0}, {1, 0, 6}}};
    s.cell.periodic = {true, true, true};
    for (int i = 0; i < n; ++i) s.species.push_back(i % 2 == 0 ? 1 : 8);
    s.positions = random_array({3 * n}, ++seed, 0.0, 6.0).values;
    s.forces = random_array({3 * n}, ++seed).values;
    s.energy = -3.0 * n + 0.1 * static_cast<double>(seed);
    s.stress.emplace();
    for (double& v : *s.stress) v = uniform_at(++seed, 0);
    s.virials = s.stress;
    all.push_back(s);
  }
  all[0].forces[0] = 150.0;
  all[1].forces[3] = 350.0;
  all[1].energy.reset();
  all[2].forces.clear();
  all[3].stress.reset();
  all[3].weight = 0.5;
  return all;
}

double huber(double d, double delta) {
  return std::abs(d) <= delta ? 0.5 * d * d : delta * (std::abs(d) - 0.5 * delta);
}

/// Predictions: labels, 0 where there are none, plus random numbers.
struct Made {
  nn::AtomPrediction prediction;
  std::vector<double> energy_errors;
  std::vector<std::vector<double>> force_errors, stress_errors;
};

Made predict(const std::vector<Structure>& s, const nn::Graph& graph) {
  Made made;
  const Mesh& mesh = graph.nodes().mesh();
  const auto graphs = static_cast<std::int64_t>(s.size());
  DenseArray energy({graphs}), stress({graphs, 3, 3});
  for (std::size_t g = 0; g < s.size(); ++g) {
    made.energy_errors.push_back(uniform_at(77, static_cast<std::int64_t>(g)) - 0.5);
    energy.values[g] = s[g].energy.value_or(0.0) + made.energy_errors.back();
    made.stress_errors.emplace_back();
    for (std::size_t k = 0; k < 9; ++k) {
      made.stress_errors.back().push_back(0.1 *
                                          uniform_at(78, static_cast<std::int64_t>(9 * g + k)));
      stress.values[9 * g + k] =
          (s[g].stress ? (*s[g].stress)[k] : 0.0) + made.stress_errors.back().back();
    }
    made.force_errors.emplace_back();
    for (std::size_t i = 0; i < s[g].positions.size(); ++i)
      made.force_errors.back().push_back(0.05 *
                                         (uniform_at(80 + g, static_cast<std::int64_t>(i)) - 0.5));
  }
  const DenseArray ids = to_dense(graph.ids);
  const DenseArray of = to_dense(graph.graph_of_node);
  DenseArray forces({graph.node_count(), 3});
  for (std::size_t n = 0; n < ids.values.size(); ++n) {
    const auto g = static_cast<std::size_t>(of.values[n]);
    for (std::size_t c = 0; c < 3; ++c) {
      const std::size_t i = 3 * static_cast<std::size_t>(ids.values[n]) + c;
      forces.values[3 * n + c] =
          (s[g].forces.empty() ? 0.0 : s[g].forces[i]) + made.force_errors[g][i];
    }
  }
  const auto whole = [&](const DenseArray& a) {
    return to_tensor(a, Layout::replicated(mesh, a.shape));
  };
  made.prediction.energy = whole(energy);
  made.prediction.stress = whole(stress);
  made.prediction.virials = whole(stress);
  made.prediction.forces = to_tensor(forces, graph.nodes().with_inserted_dim(1, 3));
  return made;
}

double reference(const std::vector<Structure>& s, const Made& made, const nn::AtomLossOptions& o) {
  const auto part = [&](double d, double weight, double delta) {
    return o.kind == Kind::kWeighted ? weight * d * d : huber(weight * d, delta);
  };
  double energy = 0.0, forces = 0.0, stress = 0.0, virials = 0.0, components = 0.0;
  for (std::size_t g = 0; g < s.size(); ++g) {
    const auto n = static_cast<double>(s[g].atoms());
    energy += part(made.energy_errors[g] / n, s[g].energy ? s[g].weight : 0.0, o.huber_delta);
    for (std::size_t k = 0; k < 9; ++k) {
      stress += part(made.stress_errors[g][k], s[g].stress ? s[g].weight : 0.0, o.huber_delta);
      const double label = s[g].virials ? (*s[g].virials)[k] : 0.0;
      const double predicted = (s[g].stress ? (*s[g].stress)[k] : 0.0) + made.stress_errors[g][k];
      virials += part((predicted - label) / n, s[g].weight, o.huber_delta);
    }
    for (std::size_t i = 0; i < made.force_errors[g].size(); ++i) {
      double delta = o.huber_delta;
      if (o.kind == Kind::kUniversal && !s[g].forces.empty()) {
        const double* const f = &s[g].forces[i - i % 3];
        const double size = std::sqrt(f[0] * f[0] + f[1] * f[1] + f[2] * f[2]);
        delta *= size < 100 ? 1.0 : size < 200 ? 0.7 : size < 300 ? 0.4 : 0.1;
      }
      forces += part(made.force_errors[g][i], s[g].forces.empty() ? 0.0 : s[g].weight, delta);
      components += 1.0;
    }
  }
  const auto graphs = static_cast<double>(s.size());
  return o.energy * energy / graphs + o.forces * forces / components +
         o.stress * stress / (9 * graphs) + o.virials * virials / (9 * graphs);
}

}  // namespace

TEST_CASE("losses of energies, forces and stress follow their formulas") {
  const std::vector<Structure> s = structures();
  const Mesh mesh = Mesh::world({{"x", process().count}});
  const nn::Graph graph = nn::batch_graph(s, mesh, {.cutoff = 2.0, .domain_axes = {"x"}});
  const nn::AtomLabels labels = nn::batch_labels(s, graph);
  const Made made = predict(s, graph);
  for (const Kind kind : {Kind::kWeighted, Kind::kHuber, Kind::kUniversal}) {
    const nn::AtomLossOptions o = {.kind = kind,
                                   .energy = 2.0,
                                   .forces = 30.0,
                                   .stress = 5.0,
                                   .virials = 0.7,
                                   .huber_delta = 0.01};
    INFO("kind " << static_cast<int>(kind));
    CHECK(reduced(nn::atom_loss(made.prediction, labels, o)).item() ==
          Approx(reference(s, made, o)).epsilon(1e-12));
    nn::AtomPrediction some = made.prediction;
    some.stress = some.virials = {};
    nn::AtomLossOptions less = o;
    less.stress = less.virials = 0.0;
    CHECK(reduced(nn::atom_loss(some, labels, o)).item() ==
          Approx(reference(s, made, less)).epsilon(1e-12));
  }
  CHECK_THROWS_AS(nn::atom_loss({}, labels, {}), UsageError);

  nn::AtomErrors errors;
  errors.add(made.prediction, labels);
  double squares = 0.0, sizes = 0.0, count = 0.0, e2 = 0.0;
  for (std::size_t g = 0; g < s.size(); ++g) {
    if (s[g].energy)
      e2 += std::pow(made.energy_errors[g] / static_cast<double>(s[g].atoms()), 2) / 3.0;
    for (const double d : made.force_errors[g]) {
      if (s[g].forces.empty()) continue;
      squares += d * d;
      sizes += std::abs(d);
      count += 1;
    }
  }
  CHECK(errors.forces().rmse == Approx(std::sqrt(squares / count)).epsilon(1e-12));
  CHECK(errors.forces().mae == Approx(sizes / count).epsilon(1e-12));
  CHECK(errors.energy_per_atom().rmse == Approx(std::sqrt(e2)).epsilon(1e-12));
  CHECK(std::isfinite(errors.stress().rmse));
  CHECK(std::isnan(nn::AtomErrors().forces().rmse));
}

TEST_CASE("statistics of training data") {
  std::vector<Structure> s;
  for (const auto& [hydrogen, oxygen] : {std::pair(2, 1), std::pair(2, 2), std::pair(0, 2)}) {
    Structure m;
    for (int i = 0; i < hydrogen + oxygen; ++i) {
      m.species.push_back(i < hydrogen ? 1 : 8);
      m.positions.insert(m.positions.end(), {1.1 * i, 0.0, 0.0});
      m.forces.insert(m.forces.end(), {0.3, -0.4, 0.0});
    }
    m.energy = -1.5 * hydrogen - 7.0 * oxygen;
    s.push_back(m);
  }
  const std::vector<std::int64_t> elements = nn::elements_of(s);
  CHECK(elements == std::vector<std::int64_t>{1, 8});
  const std::vector<double> e0 = nn::average_energies(s, elements);
  CHECK(e0[0] == Approx(-1.5));
  CHECK(e0[1] == Approx(-7.0));
  CHECK_THROWS_AS(nn::isolated_energies(s, elements), DataError);
  // A composition that never changes: the shortest vector.
  const std::vector<double> shortest = nn::average_energies({s[1], s[1]}, elements);
  CHECK(shortest[0] == Approx(-4.25));
  CHECK(shortest[1] == Approx(-4.25));

  // Chains of 3, 4 and 2 atoms 1.1 A apart.
  CHECK(nn::mean_neighbors(s, 1.2) == Approx((4.0 + 6.0 + 2.0) / 9.0));
  CHECK(nn::mean_neighbors(s, 0.5) == 1.0);

  const nn::ScaleShift forces =
      nn::scale_shift(s, elements, {0.0, 0.0}, nn::EnergyScaling::kRmsForces);
  CHECK(forces.scale == Approx(0.5 / std::sqrt(3.0)));
  const double a = -10.0 / 3, b = -17.0 / 4, c = -14.0 / 2;
  CHECK(forces.shift == Approx((a + b + c) / 3));
  const nn::ScaleShift spread = nn::scale_shift(s, elements, {0.0, 0.0}, nn::EnergyScaling::kStd);
  const double m = (a + b + c) / 3;
  CHECK(spread.scale ==
        Approx(std::sqrt(((a - m) * (a - m) + (b - m) * (b - m) + (c - m) * (c - m)) / 2)));

  for (const std::int32_t z : {1, 8}) {
    Structure lone;
    lone.species = {z};
    lone.positions = {0, 0, 0};
    lone.energy = -0.5 * z;
    lone.config_type = "IsolatedAtom";
    s.push_back(lone);
  }
  CHECK(nn::isolated_energies(s, elements) == std::vector<double>{-0.5, -4.0});
  CHECK(nn::scale_shift(s, elements, {0.0, 0.0}, nn::EnergyScaling::kRmsForces).shift == Approx(m));
}

}  // namespace tessera::test
