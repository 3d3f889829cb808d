#pragma once

#include <array>
#include <cmath>
#include <tessera/models/atomistic/empirical.hpp>
#include <tessera/models/atomistic/silica.hpp>
#include <tessera/nn/graph/batch.hpp>
#include <vector>

#include "support/op_test.hpp"

namespace tessera::test {

/// A potential's answer for one structure, atoms in order, on every rank.
struct Answer {
  double energy = 0.0;
  std::vector<double> forces;
  std::array<double, 9> virials{};
};

inline Answer evaluate(const atomistic::Potential& potential,
                       const nn::Structure& s,
                       const Mesh& mesh,
                       nn::Cutting cutting = nn::Cutting::kBricks) {
  nn::BatchOptions options{.cutoff = potential.cutoff() + 0.2, .data_axis = "none"};
  options.cutting = cutting;
  for (int a = 0; a < mesh.axis_count(); ++a) options.domain_axes.push_back(mesh.axis_name(a));
  const nn::Graph graph = nn::batch_graph(std::vector<nn::Structure>{s}, mesh, options);
  const atomistic::Evaluation e = potential.evaluate(graph);
  const DenseArray ids = to_dense(graph.ids);
  const DenseArray forces = to_dense(e.forces);
  Answer answer;
  answer.forces.resize(s.positions.size());
  for (std::size_t n = 0; n < ids.values.size(); ++n)
    for (std::size_t c = 0; c < 3; ++c)
      answer.forces[3 * static_cast<std::size_t>(ids.values[n]) + c] = forces.values[3 * n + c];
  answer.energy = to_dense(e.energy).values.at(0);
  const DenseArray virials = to_dense(e.virials);
  std::copy(virials.values.begin(), virials.values.end(), answer.virials.begin());
  return answer;
}

inline Answer evaluate(const atomistic::Potential& potential, const nn::Structure& s) {
  return evaluate(potential, s, Mesh::self());
}

/// Displacements 0.05 A sin(1.3 i + 0.7 c): no symmetry is left.
inline nn::Structure displaced(nn::Structure s, double by = 0.05) {
  for (std::size_t i = 0; i < s.positions.size(); ++i) {
    s.positions[i] +=
        by * std::sin(1.3 * static_cast<double>(i / 3) + 0.7 * static_cast<double>(i % 3));
  }
  return s;
}

/// (F as a row-major matrix) r' = F r for positions and cell.
inline nn::Structure deformed(nn::Structure s, const std::array<double, 9>& f) {
  const auto apply = [&](double* r) {
    const nn::Vec3 x = {r[0], r[1], r[2]};
    for (std::size_t a = 0; a < 3; ++a)
      r[a] = f[3 * a] * x[0] + f[3 * a + 1] * x[1] + f[3 * a + 2] * x[2];
  };
  for (std::size_t i = 0; i < s.positions.size(); i += 3) apply(&s.positions[i]);
  for (nn::Vec3& v : s.cell.vectors) apply(v.data());
  return s;
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

}  // namespace tessera::test
