// ranks: none
// `tessera train mace` and `evaluate`: alike on any mesh, resumed, with predictions in the file.
#include <tessera/nn/io/extxyz.hpp>

#include "program.hpp"

namespace tessera::test {
namespace {

/// Twelve water molecules with labels of a spring per bond, half of them in a periodic box.
std::vector<nn::Structure> waters() {
  std::vector<nn::Structure> all;
  for (int n = 0; n < 12; ++n) {
    nn::Structure s;
    s.species = {8, 1, 1};
    s.positions = {0.1 * n, 0, 0, 0.1 * n + 0.9 + 0.01 * n, 0.1, 0, 0.1 * n - 0.2, 0.95, 0.02 * n};
    s.energy = -10.0;
    s.forces.assign(9, 0.0);
    for (std::size_t h = 1; h < 3; ++h) {
      double d[3], r = 0.0;
      for (std::size_t c = 0; c < 3; ++c) {
        d[c] = s.positions[3 * h + c] - s.positions[c];
        r += d[c] * d[c];
      }
      r = std::sqrt(r);
      *s.energy += 5.0 * (r - 0.95) * (r - 0.95);
      for (std::size_t c = 0; c < 3; ++c) {
        const double f = -10.0 * (r - 0.95) * d[c] / r;
        s.forces[3 * h + c] += f;
        s.forces[c] -= f;
      }
    }
    if (n % 2 == 0) {
      s.cell.vectors = {{{6, 0, 0}, {0, 6, 0}, {0, 0, 6}}};
      s.cell.periodic = {true, true, true};
      s.stress.emplace();
    }
    all.push_back(s);
  }
  return all;
}

const char* const kOptions =
    " --E0s average --r_max 3 --num_channels 8 --max-L 1 --max-ell 2 --correlation 2 --radial_MLP "
    "16 --batch_size 4 --loss stress --max-num-epochs 4 --stage-two";

}  // namespace

TEST_CASE("a potential trains alike on any mesh, resumes and is evaluated") {
  const TemporaryFolder folder;
  const std::string file = folder / "waters.xyz";
  io::write_extxyz(file, waters());
  const std::string data = "train mace --train-file " + file + " --valid_file " + file;
  const Outcome one = program(folder, data + kOptions + " --out " + folder / "one");
  INFO(one.output);
  REQUIRE(one.code == 0);
  CHECK(one.says("Epoch 3: loss="));
  CHECK(one.says("meV / A"));
  CHECK(one.says("Stage two"));
  const std::vector<double> expected = losses(folder, "one");
  REQUIRE(expected.size() == 12);

  for (const auto& [ranks, mesh] :
       {std::pair(2, "data=2"), std::pair(2, "x=2"), std::pair(4, "data=2,x=2")}) {
    const std::string out = "mesh" + std::string(mesh);
    const Outcome many =
        program(folder, data + kOptions + " --mesh " + mesh + " --out " + folder / out, ranks);
    INFO(mesh << ": " << many.output);
    REQUIRE(many.code == 0);
    const std::vector<double> actual = losses(folder, out);
    REQUIRE(actual.size() == expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i)
      CHECK(actual[i] == Approx(expected[i]).epsilon(1e-9).scale(0));
  }

  // Half of the epochs, then the rest: the same bits as in one go.
  const std::string half = folder / "half";
  REQUIRE(
      program(folder,
              data + kOptions +
                  " --start-stage-two 3 --max-num-epochs 2 --checkpoint-every 2 --keep 5 --out " +
                  half)
          .code == 0);
  CHECK(checkpoints(half).size() == 4);  // steps 0, 2, 4, 6
  // Also from the middle of an epoch.
  std::filesystem::remove_all(checkpoints(half).back());
  REQUIRE(program(folder, "train mace --resume --max-num-epochs 4 --out " + half).code == 0);
  CHECK(losses(folder, "half") == expected);
  const Outcome other = program(folder, "train mace --resume --r_max 4 --out " + half);
  CHECK(other.code == 2);
  CHECK(other.says("model.r_max"));

  const std::string predicted = folder / "predicted.xyz";
  const Outcome scored =
      program(folder, "evaluate " + folder / "one" + " --output " + predicted, 2);
  INFO(scored.output);
  REQUIRE(scored.code == 0);
  CHECK(std::filesystem::exists(folder / "one/evaluation.json"));
  CHECK(std::filesystem::exists(folder / "one/forces.png"));
  const std::vector<nn::Structure> read = io::read_extxyz(predicted);
  REQUIRE(read.size() == 12);
  io::ExtxyzOptions keys;
  keys.energy_key = "MACE_energy";
  keys.forces_key = "MACE_forces";
  const std::vector<nn::Structure> model = io::read_extxyz(predicted, keys);
  for (std::size_t i = 0; i < read.size(); ++i) {
    CHECK(read[i].forces == waters()[i].forces);
    REQUIRE(model[i].forces.size() == 9);
    REQUIRE(model[i].energy.has_value());
    double sum = 0.0;
    for (std::size_t k = 0; k < 9; k += 3) sum += model[i].forces[k];
    CHECK(std::abs(sum) < 1e-10);
  }

  // Another run starts from these weights, whatever it says of the model; without steps it is them.
  const Outcome tuned =
      program(folder, data + " --E0s average --num_channels 16 --lr 0" +
                          " --max-num-epochs 1 --foundation-model " +
                          folder / "one/model.safetensors" + " --out " + folder / "tuned");
  INFO(tuned.output);
  REQUIRE(tuned.code == 0);
  CHECK(tuned.says("2 layers of 8 channels"));
  std::vector<nn::Structure> salty = waters();
  salty[3].species[0] = 17;
  io::write_extxyz(folder / "salty.xyz", salty);
  const Outcome other_element =
      program(folder, "train mace --train-file " + folder / "salty.xyz" + " --foundation-model " +
                          folder / "one/model.safetensors" + " --out " + folder / "salt");
  CHECK(other_element.code == 65);
  CHECK(other_element.says("is of Cl, which the model does not know"));
  REQUIRE(
      program(folder, "evaluate " + folder / "tuned" + " --output " + folder / "again.xyz").code ==
      0);
  const std::vector<nn::Structure> again = io::read_extxyz(folder / "again.xyz", keys);
  for (std::size_t i = 0; i < again.size(); ++i)
    CHECK(again[i].energy.value() == Approx(model[i].energy.value()).epsilon(1e-12).scale(0));
}

TEST_CASE("a potential's bad input is said once") {
  const TemporaryFolder folder;
  const std::string out = " --out " + folder / "run";
  const Outcome none = program(folder, "train mace" + out);
  CHECK(none.code == 2);
  CHECK(none.says("--train-file"));
  const std::string file = folder / "waters.xyz";
  io::write_extxyz(file, waters());
  const Outcome lone = program(folder, "train mace --train-file " + file + out, 2);
  CHECK(lone.code == 65);
  CHECK(lone.says("IsolatedAtom"));
  const Outcome e0 = program(folder, "train mace --train-file " + file + " --E0s H:1" + out);
  CHECK(e0.code == 2);
  CHECK(e0.says("no energy for O"));
}

}  // namespace tessera::test
