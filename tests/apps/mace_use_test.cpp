// ranks: none
// Converted and trained potentials in evaluate, md and relax.
#include <tessera/nn/io/extxyz.hpp>
#include <tessera/nn/io/safetensors.hpp>

#include "program.hpp"

namespace tessera::test {
namespace {

const std::string kData = TESSERA_SOURCE_DIR "/tests/data/mace_published";
const std::string kModel = kData + "_residual.safetensors";

/// Structures of the published code with its labels (tests/data/mace_published.py).
std::vector<nn::Structure> published() {
  const io::SafetensorsReader file(kData + ".safetensors");
  const auto values = [&](const std::string& name) {
    const io::SafetensorsReader::Entry& entry = file.entry(name);
    std::vector<double> v(static_cast<std::size_t>(entry.shape.product()));
    file.read_box(name, Box::whole(entry.shape),
                  View::dense(v.data(), DType::kFloat64, entry.shape));
    return v;
  };
  std::vector<nn::Structure> all;
  for (const char* const label : {"molecule", "crystal", "tilted"}) {
    const std::string at = "residual/" + std::string(label) + "/";
    nn::Structure s;
    for (const double z : values(at + "numbers")) s.species.push_back(static_cast<std::int32_t>(z));
    s.positions = values(at + "positions");
    const std::vector<double> cell = values(at + "cell");
    for (std::size_t i = 0; i < 9; ++i) s.cell.vectors[i / 3][i % 3] = cell[i];
    s.energy = values(at + "energy")[0];
    s.forces = values(at + "forces");
    if (file.contains(at + "stress")) {
      s.cell.periodic = {true, true, true};
      const std::vector<double> stress = values(at + "stress");
      std::copy(stress.begin(), stress.end(), s.stress.emplace().begin());
    }
    all.push_back(s);
  }
  return all;
}

std::vector<double> totals(const std::string& run) {
  return io::read_json_lines(run + "/thermo.jsonl", {"total"})[0];
}

}  // namespace

TEST_CASE("evaluate gives a converted model the published code's numbers") {
  const TemporaryFolder at;
  const std::string file = at / "published.xyz";
  io::write_extxyz(file, published());
  const std::string model = at / "model.safetensors";
  std::filesystem::copy(kModel, model);
  for (const int ranks : {0, 2}) {
    const std::string mesh = ranks > 0 ? " --mesh x=2" : "";
    const Outcome o = program(at, "evaluate " + model + " --configs " + file + mesh, ranks);
    INFO(o.output);
    REQUIRE(o.code == 0);
    CHECK(o.says("0.00               0.00                    0.000"));
    io::ExtxyzOptions keys;
    keys.energy_key = "MACE_energy";
    keys.forces_key = "MACE_forces";
    keys.stress_key = "MACE_stress";
    const auto predicted = io::read_extxyz(model + ".predictions.xyz", keys);
    REQUIRE(predicted.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
      const nn::Structure expected = published()[i];
      CHECK(*predicted[i].energy == Approx(*expected.energy).epsilon(1e-10));
      for (std::size_t k = 0; k < expected.forces.size(); ++k)
        CHECK(predicted[i].forces[k] == Approx(expected.forces[k]).margin(1e-10));
      CHECK(predicted[i].stress.has_value() == expected.stress.has_value());
    }
    CHECK(std::filesystem::exists(model + ".evaluation.json"));
  }
  nn::Structure bare = published()[0];
  bare.energy.reset();
  bare.forces.clear();
  io::write_extxyz(file, {bare});
  const Outcome none = program(at, "evaluate " + model + " --configs " + file);
  INFO(none.output);
  CHECK(none.code == 0);
  CHECK_FALSE(none.says("nan"));
}

TEST_CASE("md with a converted model goes on where it stopped, on any ranks") {
  const TemporaryFolder at;
  io::write_extxyz(at / "start.xyz", published());
  const std::string md = "md " + kModel + " " + at / "start.xyz" +
                         " --dt 0.5 --log-every 2 --frame-every 5 --save-every 10 --skin 0.4 "
                         "--ensemble langevin --temperature 400";
  for (const int ranks : {0, 2}) {
    const std::string whole = at / ("whole" + std::to_string(ranks));
    const std::string parts = at / ("parts" + std::to_string(ranks));
    const Outcome o = program(at, md + " --steps 30 --out " + whole, ranks);
    INFO(o.output);
    REQUIRE(o.code == 0);
    CHECK(o.says("9 atoms, 30 steps"));
    REQUIRE(program(at, md + " --steps 20 --out " + parts, ranks).code == 0);
    REQUIRE(program(at, md + " --steps 30 --resume --out " + parts, ranks).code == 0);
    for (const char* name : {"/thermo.jsonl", "/thermo.txt", "/trajectory.xyz", "/final.xyz"}) {
      INFO(name);
      CHECK(!read_file(whole + name).empty());
      CHECK(read_file(whole + name) == read_file(parts + name));
    }
  }
  const std::vector<double> one = totals(at / "whole0");
  const std::vector<double> two = totals(at / "whole2");
  REQUIRE(one.size() == 16);
  REQUIRE(two.size() == 16);
  for (std::size_t i = 0; i < one.size(); ++i)
    CHECK(two[i] == Approx(one[i]).epsilon(1e-11).scale(0));

  // Radial tables and fp32 are close, and not the same.
  const std::string few = " --steps 4 --out " + at / "other";
  REQUIRE(program(at, md + few + " --radial-intervals 256", 2).code == 0);
  const std::vector<double> tables = totals(at / "other");
  REQUIRE(program(at, md + few + " --default-dtype float32", 2).code == 0);
  const std::vector<double> narrow = totals(at / "other");
  REQUIRE(tables.size() == 3);
  REQUIRE(narrow.size() == 3);
  CHECK(tables != narrow);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(tables[i] != one[i]);
    CHECK(std::abs(tables[i] - one[i]) < 1e-5);
    CHECK(narrow[i] != one[i]);
    CHECK(std::abs(narrow[i] - one[i]) < 1e-3);
  }
}

TEST_CASE("relax goes downhill with a converted model") {
  const TemporaryFolder at;
  io::write_extxyz(at / "start.xyz", published());
  std::vector<double> energies;
  for (const int ranks : {0, 2}) {
    const Outcome o = program(at,
                              "relax " + kModel + " " + at / "start.xyz" + " --cell --steps 20 " +
                                  "--out " + at / "relaxed.xyz",
                              ranks);
    INFO(o.output);
    CHECK(o.code == 1);  // 20 steps are few
    energies.push_back(*io::read_extxyz(at / "relaxed.xyz").at(0).energy);
  }
  CHECK(energies[0] < *published()[2].energy - 1e-4);
  CHECK(energies[1] == Approx(energies[0]).epsilon(1e-11).scale(0));
}

TEST_CASE("a run that was trained makes md, relax and structures") {
  const TemporaryFolder at;
  REQUIRE(program(at,
                  "generate sio2 --cells 1,1,1 --frames 6 --settle 5 --interval 5 --rattle "
                  "0.05 --out " +
                      at / "sio2.xyz")
              .code == 0);
  const std::string run = at / "run";
  REQUIRE(
      program(at, "train mace --train-file " + at / "sio2.xyz" +
                      " --E0s average --r_max 3.5 --num_channels 4 --max-L 1 --max-ell 2 "
                      "--correlation 2 --radial_MLP 8 --batch_size 2 --max-num-epochs 2 --out " +
                      run)
          .code == 0);
  for (const int ranks : {0, 2}) {
    const Outcome md = program(at,
                               "md " + run + " " + at / "sio2.xyz" + " --steps 6 --dt 0.5 " +
                                   "--log-every 2 --cutting bisection --out " + at / "md",
                               ranks);
    INFO(md.output);
    CHECK(md.code == 0);
    CHECK(totals(at / "md").size() == 4);
    const Outcome relaxed = program(at,
                                    "relax " + run + "/model.safetensors " + at / "sio2.xyz" +
                                        " --steps 3 --out " + at / "relaxed.xyz",
                                    ranks);
    INFO(relaxed.output);
    CHECK(relaxed.code == 1);
  }
  const Outcome made = program(at, "generate sio2 --potential " + run +
                                       " --cells 1,1,1 --frames 2 --settle 2 --interval 2 " +
                                       "--out " + at / "made.xyz");
  INFO(made.output);
  CHECK(made.code == 0);
  CHECK(made.says("labelled by mace"));
}

TEST_CASE("what is wrong with a potential or its structures is said once") {
  const TemporaryFolder at;
  io::write_extxyz(at / "start.xyz", published());
  std::vector<nn::Structure> iron = published();
  iron[1].species[2] = 26;
  io::write_extxyz(at / "iron.xyz", iron);
  const auto fails = [&](const std::string& line, int code, const std::string& text, int ranks) {
    const Outcome o = program(at, line, ranks);
    INFO(line << ": " << o.output);
    CHECK(o.code == code);
    CHECK(o.count(text) == 1);
    CHECK(o.count("\n") <= 2);
  };
  const std::string agnesi = kData + "_density.safetensors ";
  const std::string start = at / "start.xyz" + " --out " + at / "x ";
  for (const int ranks : {0, 2}) {
    fails("evaluate " + kModel + " --configs " + at / "iron.xyz", 65, "iron.xyz:7: atom 3 is of Fe",
          ranks);
    fails("md " + kModel + " " + at / "iron.xyz --frame 1 --out " + at / "x", 2,
          "there are atoms of Fe (26)", ranks);
    fails("relax " + kModel + " " + at / "iron.xyz --frame 1 --out " + at / "x", 2,
          "there are atoms of Fe (26)", ranks);
    fails("md " + at / "none.safetensors " + start, 74, "none.safetensors", ranks);
    fails("md " + at / "none/ " + start, 74, "none//model.safetensors", ranks);
    fails("md " + kData + ".safetensors " + start, 65, "holds no MACE model", ranks);
    fails("md " + agnesi + start + "--radial-intervals 256", 2, "with agnesi", ranks);
    fails("md lennard-jones " + start + "--radial-intervals 256", 2, "is no network", ranks);
  }
  fails("md " + kModel + " " + start + "--default-dtype bfloat16", 2, "float64", 0);
  fails("evaluate " + kModel, 2, "--configs", 0);
}

}  // namespace tessera::test
