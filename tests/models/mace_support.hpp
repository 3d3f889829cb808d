#pragma once

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/models/mace.hpp>
#include <tessera/nn/graph/batch.hpp>
#include <vector>

#include "support/op_test.hpp"

/// The quartz cell, weights and loss of tests/data/mace_golden.txt.
namespace tessera::test {

using models::Mace;
using models::MaceOptions;
using models::MaceOutputs;
using models::MaceResult;

/// Alpha quartz, 3 Si and 6 O (O first), atoms moved by 0.05 sin(1.3 i + 0.7 c).
inline nn::Structure quartz() {
  constexpr double kA = 4.9019, kC = 5.3988, kU = 0.4673;
  constexpr double x = 0.4130, y = 0.2711, z = 0.2172;
  const double t = 1.0 / 3.0;
  const double fractions[9][3] = {{x, y, z},  {-y, x - y, z + t},      {-x + y, -x, z + 2 * t},
                                  {y, x, -z}, {x - y, -y, -z + 2 * t}, {-x, -x + y, -z + t},
                                  {kU, 0, t}, {0, kU, 2 * t},          {-kU, -kU, 0}};
  nn::Structure s;
  s.cell.vectors = {{{kA, 0, 0}, {-kA / 2, kA * std::sqrt(3.0) / 2, 0}, {0, 0, kC}}};
  s.cell.periodic = {true, true, true};
  for (int i = 0; i < 9; ++i) {
    s.species.push_back(i < 6 ? 8 : 14);
    for (std::size_t c = 0; c < 3; ++c) {
      double r = 0.05 * std::sin(1.3 * i + 0.7 * static_cast<double>(c));
      for (std::size_t k = 0; k < 3; ++k)
        r += (fractions[i][k] - std::floor(fractions[i][k])) * s.cell.vectors[k][c];
      s.positions.push_back(r);
    }
  }
  return s;
}

/// Quartz `n` times along a.
inline nn::Structure rod(int n) {
  const nn::Structure one = quartz();
  nn::Structure s = one;
  for (int k = 1; k < n; ++k) {
    s.species.insert(s.species.end(), one.species.begin(), one.species.end());
    for (std::size_t i = 0; i < one.positions.size(); ++i)
      s.positions.push_back(one.positions[i] + k * one.cell.vectors[0][i % 3]);
  }
  for (double& v : s.cell.vectors[0]) v *= n;
  return s;
}

/// The model of the golden values.
inline MaceOptions golden_options() {
  MaceOptions o;
  o.elements = {8, 14};
  o.r_max = 4.0;
  o.channels = 4;
  o.e0 = {-1.5, -2.5};
  o.scale = 0.7;
  o.shift = 0.13;
  o.avg_num_neighbors = 2.0;
  return o;
}

/// Number i of tensor s: uniform with variance 1, from splitmix64.
inline double golden_weight(std::uint64_t s, std::uint64_t i) {
  std::uint64_t z = (s << 32) + i + 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return std::sqrt(3.0) * (2.0 * (static_cast<double>(z >> 11) * 0x1p-53) - 1.0);
}

/// Sets p[index] = f(index).
template <class F>
void fill(const nn::Parameter& p, const F& f) {
  const View view = p.value().mutable_local();
  std::int64_t at = 0;
  for_each(p.shape(),
           [&](const Index& index) { store_double(view.data, view.dtype, at++, f(index)); });
}

/// Weights in the order of the published model, tensor by tensor.
inline void fill_golden(Mace& model) {
  std::map<std::string, nn::Parameter> all;
  for (const auto& [path, p] : model.named_parameters()) all.emplace(path, p);
  const auto elements = static_cast<std::uint64_t>(model.options().elements.size());
  const auto channels = static_cast<std::uint64_t>(model.options().channels);
  const auto u = [](std::int64_t i) { return static_cast<std::uint64_t>(i); };
  std::uint64_t s = 0;
  // Tensors of a list [count, in, out], one after the other.
  const auto matrices = [&](const nn::Parameter& p) {
    fill(p, [&](const Index& i) {
      return golden_weight(s + 1 + u(i[0]), u(i[1]) * channels + u(i[2]));
    });
    s += u(p.shape()[0]);
  };
  const auto transposed = [&](const nn::Parameter& p) {  // [out, in] from [in, out]
    ++s;
    fill(p, [&](const Index& i) { return golden_weight(s, u(i[1] * p.shape()[0] + i[0])); });
  };
  const auto plain = [&](const nn::Parameter& p, std::uint64_t tensor, double factor) {
    const std::uint64_t n = p.shape().size() > 1 ? u(p.numel() / p.shape()[0]) : 1;
    fill(p, [&](const Index& i) {
      std::uint64_t inner = u(i[0]) * n;
      if (p.shape().size() == 2) inner += u(i[1]);
      if (p.shape().size() == 3) inner += u(i[1] * p.shape()[2] + i[2]);
      return factor * golden_weight(tensor, inner);
    });
  };
  plain(all.at("embedding.weight"), ++s, 1.0);
  for (int t = 0; t < model.options().layers; ++t) {
    const std::string layer = "interactions." + std::to_string(t) + ".";
    matrices(all.at(layer + "linear_up"));
    for (std::size_t w = 0; w < model.options().radial_mlp.size(); ++w)
      transposed(all.at(layer + "radial.weights." + std::to_string(w)));
    plain(all.at(layer + "path_weights"), ++s, 1.0);
    matrices(all.at(layer + "linear"));
    const nn::Parameter& skip = all.at(layer + "skip");  // [l, z, in, out] from [in, z, out]
    fill(skip, [&](const Index& i) {
      return golden_weight(s + 1 + u(i[0]), (u(i[2]) * elements + u(i[1])) * channels + u(i[3]));
    });
    s += u(skip.shape()[0]);
    if (all.count(layer + "density") != 0)
      plain(all.at(layer + "density"), 1000 + static_cast<std::uint64_t>(t), 1.0);
    const std::string product = "products." + std::to_string(t) + ".";
    for (std::size_t b = 0; all.count(product + "weights." + std::to_string(b)) != 0; ++b) {
      const nn::Parameter& p = all.at(product + "weights." + std::to_string(b));
      plain(p, ++s, 1.0 / static_cast<double>(p.shape()[1]));
    }
    matrices(all.at(product + "linear"));
    const std::string readout = "readouts." + std::to_string(t) + ".";
    if (all.count(readout + "hidden") != 0) transposed(all.at(readout + "hidden"));
    transposed(all.at(readout + "linear"));
  }
}

/// ((E + 14) / 9)^2 + 10 mean F^2 + 100 mean stress^2 of one structure of 9 atoms.
inline Tensor golden_loss(const MaceResult& r) {
  return sum(square(affine(r.energy, 1.0 / 9.0, 14.0 / 9.0))) + 10.0 * mean(square(r.forces)) +
         100.0 * mean(square(r.stress));
}

/// Values by name of each configuration in the file.
struct GoldenCase {
  std::map<std::string, std::string> config;
  std::map<std::string, std::vector<double>> values;
};
inline std::vector<GoldenCase> golden_cases() {
  std::ifstream file(TESSERA_SOURCE_DIR "/tests/data/mace_golden.txt");
  REQUIRE(file.good());
  std::vector<GoldenCase> cases;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name == "config") {
      cases.emplace_back();
      for (std::string word; words >> word;)
        cases.back().config[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
      continue;
    }
    if (name == "gradient") words >> name;
    for (double value; words >> value;) cases.back().values[name].push_back(value);
  }
  return cases;
}

/// Rows of a node tensor in the order of (graph, atom), whatever the mesh.
inline DenseArray in_order(const Tensor& x, const nn::Graph& graph) {
  const DenseArray values = to_dense(x);
  const DenseArray ids = to_dense(graph.ids);
  const DenseArray of = to_dense(graph.graph_of_node);
  std::vector<std::int64_t> begin(graph.graph_sizes.size() + 1, 0);
  for (std::size_t g = 0; g < graph.graph_sizes.size(); ++g)
    begin[g + 1] = begin[g] + graph.graph_sizes[g];
  DenseArray sorted(values.shape);
  const std::size_t nodes = ids.values.size();
  const std::size_t row = nodes == 0 ? 0 : values.values.size() / nodes;
  for (std::size_t n = 0; n < nodes; ++n) {
    const auto to = static_cast<std::size_t>(begin[static_cast<std::size_t>(of.values[n])]) +
                    static_cast<std::size_t>(ids.values[n]);
    for (std::size_t k = 0; k < row; ++k) sorted.values[to * row + k] = values.values[n * row + k];
  }
  return sorted;
}

}  // namespace tessera::test
