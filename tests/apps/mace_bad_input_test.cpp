// ranks: none
// Structures that nothing can be computed on: one message with file and line, in every command on
// atoms; labels that are absent count with weight 0.
#include <tessera/nn/io/extxyz.hpp>

#include "program.hpp"

namespace tessera::test {
namespace {

/// A model in the folder, where evaluate may write beside it.
std::string model(const TemporaryFolder& at) {
  const std::string path = at / "model.safetensors";
  std::filesystem::copy_file(TESSERA_SOURCE_DIR "/tests/data/mace_published_residual.safetensors",
                             path, std::filesystem::copy_options::overwrite_existing);
  return path;
}

void put(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

/// A frame of water in a box, with all labels.
std::string water(double bend, const std::string& labels = "", const std::string& columns = "") {
  const std::string x = std::to_string(bend);
  const bool bare = columns == "none";
  const std::string f = bare ? "" : " 0.1 0 0", g = bare ? "" : " -0.1 0 0",
                    h = bare ? "" : " 0 0 0";
  return "3\nLattice=\"6 0 0 0 6 0 0 0 6\" Properties=species:S:1:pos:R:3" +
         std::string(bare ? "" : ":REF_forces:R:3") + " " + labels + "\nO 0 0 0" + f + "\nH 0.96 " +
         x + " 0" + g + "\nH -0.24 0.93 " + x + h + "\n";
}
const char* const kLabels = "REF_energy=-10 REF_stress=\"1e-3 0 0 0 1e-3 0 0 0 1e-3\"";

const char* const kTrain =
    " --E0s average --r_max 3 --num_channels 4 --max-L 0 --max-ell 1 --correlation 2 --radial_MLP "
    "8 "
    "--batch_size 2 --loss stress --max-num-epochs 2 ";

}  // namespace

TEST_CASE("broken structures are refused with their line, whatever reads them") {
  const TemporaryFolder at;
  const std::string kept = model(at);
  put(at / "good.xyz", water(0.1, kLabels) + water(0.2, kLabels));
  const std::string first = water(0.1, kLabels);  // lines 1 to 5
  struct Case {
    const char* name;
    std::string frame;
    std::string says;
  };
  const std::vector<Case> cases = {
      {"fewer atoms", "3\n\nO 0 0 0\nH 0 0 1\n", ":9: the file ends after 2 of 3"},
      {"more atoms", "1\n\nO 0 0 0\nH 0 0 1\n", ":9: "},
      {"no count", "water\n\nO 0 0 0\n", ":6: "},
      {"columns", "2\n\nO 0 0 0\nH 0 0\n", ":9: atom 2 of 2 has 3 columns"},
      {"lattice of 8", "1\nLattice=\"9 0 0 0 9 0 0 0\"\nO 0 0 0\n", ":7: Lattice holds 8 numbers"},
      {"zero volume", "1\nLattice=\"9 0 0 9 0 0 0 0 9\"\nO 0 0 0\n", ":7: "},
      {"box not given", "1\npbc=\"T T T\"\nO 0 0 0\n", ":7: "},
      {"coordinate", "1\n\nO 0 nan 0\n", ":8: atom 1, pos: nan is not a finite number"},
      {"energy", "1\nREF_energy=inf\nO 0 0 0\n", ":7: REF_energy holds inf"},
      {"force", "1\nProperties=species:S:1:pos:R:3:REF_forces:R:3\nO 0 0 0 0 nan 0\n",
       ":8: atom 1, REF_forces: nan"},
      {"element", "1\n\nQq 0 0 0\n", ":8: Qq is no element"},
      {"overlap", "2\n\nO 0 0 0\nH 0 0 0.0005\n", ":6: atoms 1 (O) and 2 (H) overlap"},
      {"overlap of images", "2\nLattice=\"3 0 0 0 3 0 0 0 3\"\nO 0 0 0\nH 3 0 0\n",
       ":6: atoms 1 (O) and 2 (H) overlap"}};
  int turn = 0;
  for (const Case& c : cases) {
    put(at / "bad.xyz", first + c.frame);
    const std::string bad = at / "bad.xyz", good = at / "good.xyz", out = " --out " + at / "x ";
    const std::vector<std::string> lines = {
        "train mace --train-file " + bad + kTrain + out,
        "train mace --train-file " + good + " --valid_file " + bad + kTrain + out,
        "evaluate " + kept + " --configs " + bad, "md " + kept + " " + bad + out,
        "relax " + kept + " " + bad + out};
    for (const std::string& line : lines) {
      const int ranks = turn++ % 2 == 0 ? 0 : 2;
      const Outcome o = program(at, line, ranks);
      INFO(c.name << ": " << line << " on " << ranks << ":\n" << o.output);
      CHECK(o.code == 65);
      CHECK(o.count("bad.xyz" + c.says) == 1);
      CHECK(o.count("tessera: ") == 1);
    }
  }
}

TEST_CASE("files without structures are refused") {
  const TemporaryFolder at;
  const std::string kept = model(at);
  put(at / "empty.xyz", "");
  put(at / "atomless.xyz", "0\nLattice=\"9 0 0 0 9 0 0 0 9\"\n");
  const auto check = [&](const std::string& line, int code, const std::string& text) {
    const Outcome o = program(at, line, 2);
    INFO(line << ":\n" << o.output);
    CHECK(o.code == code);
    CHECK(o.count(text) == 1);
  };
  const std::string out = " --out " + at / "x";
  check("train mace --train-file " + at / "empty.xyz" + kTrain + out, 65, "no structures");
  check("evaluate " + kept + " --configs " + at / "empty.xyz", 65, "has no structures");
  check("md " + kept + " " + at / "empty.xyz" + out, 65, "has no structures");
  check("relax " + kept + " " + at / "empty.xyz" + out, 65, "has no structures");
  check("md " + kept + " " + at / "none.xyz" + out, 74, "none.xyz");
  check("md " + kept + " " + at / "atomless.xyz" + out, 2, "no atoms");
}

TEST_CASE("absent labels count with weight 0; without any there is nothing to learn") {
  const TemporaryFolder at;
  const std::string energy = "REF_energy=-10";
  // Each kind of label is absent somewhere; a stress without a box means nothing.
  std::string mixed = water(0.1, kLabels) + water(0.2, energy, "none") + water(0.3) +
                      water(0.15, energy) +
                      "2\nREF_energy=-5 REF_stress=\"9e9 0 0 0 9e9 0 0 0 9e9\"\nO 0 0 0\nH 0 0 1\n";
  put(at / "mixed.xyz", mixed);
  put(at / "bare.xyz", water(0.1, "", "none") + water(0.2, "", "none"));
  put(at / "energies.xyz", water(0.1, energy, "none") + water(0.2, energy, "none"));
  const auto train = [&](const std::string& file, const std::string& more, int ranks) {
    std::filesystem::remove_all(at / "run");
    return program(
        at, "train mace --train-file " + at / file + kTrain + more + " --out " + at / "run", ranks);
  };
  const std::string same = " --valid_file " + at / "mixed.xyz ";
  std::vector<std::vector<double>> losses_of;
  for (const int ranks : {0, 2}) {
    const Outcome o = train("mixed.xyz", same, ranks);
    INFO(o.output);
    REQUIRE(o.code == 0);
    losses_of.push_back(losses(at, "run"));
    for (const double loss : losses_of.back()) CHECK(loss < 1e6);
  }
  CHECK(losses_of[0].size() == 4);
  for (std::size_t i = 0; i < losses_of[0].size(); ++i)
    CHECK(losses_of[1][i] == Approx(losses_of[0][i]).epsilon(1e-9).scale(0));

  const std::string fixed = " --E0s H:-1,O:-8 --scaling no_scaling ";
  const Outcome bare = train("bare.xyz", fixed + same, 2);
  INFO(bare.output);
  CHECK(bare.code == 65);
  CHECK(bare.count("bare.xyz has no labels that the loss compares (energy, forces, stress)") == 1);
  CHECK(bare.says("--energy-key"));
  const Outcome valid = train("mixed.xyz", " --valid_file " + at / "bare.xyz", 0);
  CHECK(valid.code == 65);
  CHECK(valid.count("bare.xyz has no labels that the loss compares") == 1);
  const Outcome few = train("energies.xyz", " --scaling no_scaling " + same, 0);
  INFO(few.output);
  CHECK(few.code == 0);
  CHECK(few.count("energies.xyz: no structure has forces, stress, which count with weight 0") == 1);
  const Outcome unscaled = train("energies.xyz", same, 0);
  CHECK(unscaled.code == 65);
  CHECK(unscaled.says("no structure has forces"));
}

}  // namespace tessera::test
