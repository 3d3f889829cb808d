// ranks: 1 2
// Models of the published code, converted by scripts/import_mace.py, give its energies, forces and
// stress: tests/data/mace_published.py writes both.
#include <tessera/models/mace_file.hpp>
#include <tessera/nn/io/safetensors.hpp>

#include "mace_support.hpp"

namespace tessera::test {
namespace {

const std::string kData = TESSERA_SOURCE_DIR "/tests/data/mace_published";

DenseArray array(const io::SafetensorsReader& file, const std::string& name) {
  return to_dense(file.read(name, Layout::replicated(Mesh::self(), file.entry(name).shape)));
}

nn::Structure structure(const io::SafetensorsReader& file, const std::string& at) {
  nn::Structure s;
  for (const double z : array(file, at + "numbers").values)
    s.species.push_back(static_cast<std::int32_t>(z));
  s.positions = array(file, at + "positions").values;
  const DenseArray cell = array(file, at + "cell");
  for (std::size_t i = 0; i < 9; ++i) s.cell.vectors[i / 3][i % 3] = cell.values[i];
  const bool periodic = file.contains(at + "stress");
  s.cell.periodic = {periodic, periodic, periodic};
  return s;
}

}  // namespace

TEST_CASE("models of the published code give its numbers") {
  const io::SafetensorsReader file(kData + ".safetensors");
  const Mesh mesh = Mesh::world({{"x", process().count}});
  // `reduced` is `residual` with another basis of its products.
  for (const std::string name : {"residual", "reduced", "density", "plain"}) {
    const Mace model = models::load_mace(kData + "_" + name + ".safetensors", mesh);
    for (const std::string label : {"molecule", "crystal", "tilted"}) {
      const std::string at = (name == "reduced" ? "residual" : name) + "/" + label + "/";
      INFO(name << " " << label);
      const nn::Structure s = structure(file, at);
      const nn::Graph graph =
          nn::batch_graph(std::vector<nn::Structure>{s}, mesh,
                          {.cutoff = model.options().r_max, .domain_axes = {"x"}});
      const MaceResult r = model.compute(graph, {.stress = true});
      CHECK(compare("energy", to_dense(r.energy), array(file, at + "energy"), 1e-10) == "");
      CHECK(compare("forces", in_order(r.forces, graph), array(file, at + "forces"), 1e-9) == "");
      if (s.cell.periodic[0]) {
        DenseArray stress = to_dense(r.stress);
        stress.shape = {3, 3};
        CHECK(compare("stress", stress, array(file, at + "stress"), 1e-9) == "");
      }
    }
  }
}

TEST_CASE("what the conversion says of the models") {
  const MaceOptions residual = models::read_mace_options(kData + "_residual.safetensors");
  CHECK(residual.elements == std::vector<std::int64_t>{1, 8, 14});
  CHECK(residual.e0 == std::vector<double>{-13.5, -430.25, -290.75});
  CHECK(residual.couplings == kernels::CouplingBasis::kTabulated);
  CHECK(residual.radial_mlp == std::vector<std::int64_t>{7, 9});
  CHECK(residual.avg_num_neighbors == 7.25);
  CHECK(residual.scale == 0.8);
  CHECK(residual.first_block == MaceOptions::FirstBlock::kResidual);
  const MaceOptions density = models::read_mace_options(kData + "_density.safetensors");
  CHECK(density.density);
  CHECK(density.agnesi);
  CHECK(density.pair_repulsion);
  CHECK(density.max_L == 2);
  CHECK(density.first_block == MaceOptions::FirstBlock::kAgnostic);
  const MaceOptions plain = models::read_mace_options(kData + "_plain.safetensors");
  CHECK(plain.layers == 3);
  CHECK(plain.correlation == 2);
  CHECK(plain.scale == 1.0);
}

}  // namespace tessera::test
