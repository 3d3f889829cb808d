// Files of real labelled structures; their sources and licences: tests/data/atoms.
#include <catch2/catch.hpp>
#include <filesystem>
#include <tessera/nn/graph/batch.hpp>
#include <tessera/nn/io/extxyz.hpp>

using namespace tessera;
using namespace tessera::nn;

namespace {

const std::string kTests = TESSERA_SOURCE_DIR "/tests/data/atoms/";
const std::string kExamples = TESSERA_SOURCE_DIR "/examples/data/";

}  // namespace

TEST_CASE("molecules with isolated atoms are read") {
  const auto frames = io::read_extxyz(kTests + "acac.xyz");
  REQUIRE(frames.size() == 6);
  const Structure& first = frames[0];
  REQUIRE(first.atoms() == 15);
  REQUIRE(first.species[0] == 6);
  REQUIRE(first.species[3] == 8);
  REQUIRE(first.positions[1] == 1.40230941);
  REQUIRE(first.forces[2] == 0.06391102);
  REQUIRE(first.energy == -9391.45554428476);
  REQUIRE(first.config_type == "300K_MD");
  REQUIRE(first.cell.vectors[1][1] == 50.0);
  REQUIRE_FALSE(first.cell.periodic[0]);
  REQUIRE(first.info ==
          std::vector<std::pair<std::string, std::string>>{{"dihedral_angle", "8.02164373962562"}});
  for (std::size_t i = 0; i < 6; ++i) REQUIRE(frames[i].is_isolated_atom() == (i > 2));
  REQUIRE(frames[4].energy == -1026.8538996116154);
  REQUIRE(frames[4].species[0] == 6);
  REQUIRE(frames[4].forces.empty());
}

TEST_CASE("a crystal is read, and its atoms see images") {
  const auto frames = io::read_extxyz(kTests + "si.xyz");
  REQUIRE(frames.size() == 1);
  const Structure& s = frames[0];
  REQUIRE(s.cell.periodic == std::array<bool, 3>{true, true, true});
  REQUIRE(s.energy.has_value());
  REQUIRE(s.forces.size() == 3 * s.species.size());
  const Graph graph = batch_graph(frames, Mesh::self(), {.cutoff = 5.0});
  // Silicon has 4 + 12 + 12 neighbours within 5 A.
  REQUIRE(static_cast<double>(graph.edge_count()) / static_cast<double>(graph.node_count()) ==
          Approx(28.0).margin(3.0));
}

TEST_CASE("all frames of the example sets are read") {
  const std::vector<std::pair<std::string, std::size_t>> sets = {
      {"acac/train_300K.xyz", 500},   {"acac/test_MD_300K.xyz", 650},
      {"acac/test_MD_600K.xyz", 650}, {"acac/isolated_atoms.xyz", 3},
      {"si/train.xyz", 214},          {"si/test.xyz", 25}};
  for (const auto& [file, frames] : sets) {
    INFO(file);
    REQUIRE(io::read_extxyz(kExamples + file).size() == frames);
    REQUIRE(std::filesystem::exists(kExamples + file.substr(0, file.find('/')) + "/LICENSE"));
  }
}
