// ranks: 1
// Energies, forces, stress and weight gradients of a loss of all three against the numbers of an
// independent implementation.
#include "mace_support.hpp"

namespace tessera::test {
namespace {

/// The published names of our parameters: layer-wise lists are one tensor there.
std::string published_name(const std::string& path) {
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string s = path;
    return s.replace(s.find(from), from.size(), to);
  };
  if (path == "embedding.weight") return "node_embedding.linear.weight";
  if (path.ends_with(".linear_up")) return path + ".weight";
  if (path.find(".radial.weights.") != std::string::npos)
    return replaced("radial.weights.", "conv_tp_weights.layer") + ".weight";
  if (path.ends_with(".path_weights"))
    return replaced("path_weights", "conv_tp_weights.layer3.weight");
  if (path.ends_with(".skip")) return replaced("skip", "skip_tp.weight");
  if (path.starts_with("products.") && path.find(".weights.") != std::string::npos) {
    const std::size_t at = path.rfind('.') + 1;
    const int block = std::stoi(path.substr(at));
    const char* const orders[] = {"weights_max", "weights.0", "weights.1"};
    return path.substr(0, path.find("weights")) + "symmetric_contractions.contractions." +
           std::to_string(block / 3) + "." + orders[block % 3];
  }
  if (path.starts_with("readouts.1.")) {
    return path.ends_with("hidden") ? "readouts.1.linear_1.weight" : "readouts.1.linear_2.weight";
  }
  return path + ".weight";
}

MaceOptions options_of(const GoldenCase& c) {
  MaceOptions o = golden_options();
  o.channels = std::stoi(c.config.at("K"));
  o.max_L = std::stoi(c.config.at("L"));
  o.max_ell = std::stoi(c.config.at("lmax"));
  o.correlation = std::stoi(c.config.at("nu"));
  o.layers = std::stoi(c.config.at("layers"));
  o.r_max = std::stod(c.config.at("rc"));
  o.first_block = c.config.at("first") == "agnostic" ? MaceOptions::FirstBlock::kAgnostic
                                                     : MaceOptions::FirstBlock::kResidual;
  return o;
}

DenseArray array_of(const std::vector<double>& values, const Shape& shape) {
  DenseArray a(shape);
  a.values = values;
  return a;
}

}  // namespace

TEST_CASE("mace gives the golden values") {
  for (const GoldenCase& c : golden_cases()) {
    const MaceOptions o = options_of(c);
    INFO("K " << o.channels << ", L " << o.max_L << ", first " << c.config.at("first"));
    Mace model(o, Mesh::self(), DType::kFloat64);
    fill_golden(model);
    const nn::Graph graph =
        nn::batch_graph(std::vector<nn::Structure>{quartz()}, Mesh::self(), {.cutoff = o.r_max});
    CHECK(graph.edge_count() == static_cast<std::int64_t>(c.values.at("edges")[0]));
    const MaceResult r = model.compute(graph, {.stress = true, .create_graph = true});
    CHECK(r.energy.at({0}) == Approx(c.values.at("energy")[0]).epsilon(1e-10).scale(0));
    CHECK(compare("node energies", in_order(r.node_energy, graph),
                  array_of(c.values.at("node"), {9}), 1e-10) == "");
    CHECK(compare("interaction", to_dense(sum(r.interaction)),
                  array_of(c.values.at("interaction"), {}), 1e-10) == "");
    CHECK(compare("forces", in_order(r.forces, graph), array_of(c.values.at("forces"), {9, 3}),
                  1e-9) == "");
    CHECK(compare("stress", to_dense(r.stress), array_of(c.values.at("stress"), {1, 3, 3}), 1e-9) ==
          "");
    const Tensor loss = golden_loss(r);
    CHECK(loss.item() == Approx(c.values.at("loss")[0]).epsilon(1e-9).scale(0));
    backward(loss);
    double norm2 = 0.0;
    std::size_t found = 0;
    for (const auto& [path, p] : model.named_parameters()) {
      const DenseArray g = to_dense(gradient(p.value()));
      double total = 0.0, squares = 0.0;
      for (const double v : g.values) {
        total += v;
        squares += v * v;
      }
      norm2 += squares;
      const std::string name = published_name(path);
      INFO(path << " is " << name);
      REQUIRE(c.values.count(name) == 1);
      const std::vector<double>& expected = c.values.at(name);
      ++found;
      CHECK(std::abs(total - expected[0]) <= 1e-9 * std::sqrt(squares));
      CHECK(squares == Approx(expected[1]).epsilon(1e-9).scale(0));
    }
    CHECK(found == model.parameters().size());
    CHECK(norm2 == Approx(c.values.at("norm2")[0]).epsilon(1e-9).scale(0));
  }
}

TEST_CASE("mace with density, Agnesi distances and nuclear repulsion gives the golden energy") {
  MaceOptions o = golden_options();
  o.first_block = MaceOptions::FirstBlock::kAgnostic;
  o.density = true;
  o.agnesi = true;
  o.pair_repulsion = true;
  Mace model(o, Mesh::self(), DType::kFloat64);
  fill_golden(model);
  const nn::Graph graph =
      nn::batch_graph(std::vector<nn::Structure>{quartz()}, Mesh::self(), {.cutoff = o.r_max});
  const MaceResult r = model.compute(graph, {.stress = true, .create_graph = true});
  CHECK(r.energy.at({0}) == Approx(-15.76511740239421).epsilon(1e-10).scale(0));
  const Tensor loss = golden_loss(r);
  CHECK(loss.item() == Approx(0.0704294217544394).epsilon(1e-9).scale(0));
  backward(loss);
  double norm2 = 0.0;
  for (const nn::Parameter& p : model.parameters())
    for (const double v : to_dense(gradient(p.value())).values) norm2 += v * v;
  CHECK(norm2 == Approx(0.5616707799148201).epsilon(1e-9).scale(0));
}

}  // namespace tessera::test
