// ranks: none
#include <tessera/nn/io/extxyz.hpp>

#include "program.hpp"

namespace tessera::test {
namespace {

void write_silicon(const std::string& path) {
  nn::Structure s;
  constexpr double kA = 5.431;
  s.cell.vectors = {nn::Vec3{kA, 0, 0}, nn::Vec3{0, kA, 0}, nn::Vec3{0, 0, kA}};
  s.cell.periodic = {true, true, true};
  for (int i = 0; i < 8; ++i) {
    s.species.push_back(14);
    const double offset = i % 2 == 0 ? 0.0 : 0.25;
    for (int c = 0; c < 3; ++c) {
      const bool half = i / 2 != 0 && c != i / 2 - 1;
      s.positions.push_back((offset + (half ? 0.5 : 0.0)) * kA + 0.03 * std::sin(3.0 * i + c));
    }
  }
  io::write_extxyz(path, {s});
}

Words md(const TemporaryFolder& at, const std::string& out, const Words& more = {}) {
  Words words = {"md",  "stillinger-weber", at / "si.xyz", "--out",  at / out, "--temperature",
                 "400", "--log-every",      "2",           "--dt",   "1",      "--save-every",
                 "10",  "--frame-every",    "5",           "--skin", "0.4"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

void expect_files_alike(const std::string& a, const std::string& b) {
  for (const char* name : {"/thermo.jsonl", "/thermo.txt", "/trajectory.xyz", "/final.xyz"}) {
    INFO(name);
    CHECK(!read_file(a + name).empty());
    CHECK(read_file(a + name) == read_file(b + name));
  }
}

}  // namespace

TEST_CASE("md goes on where it stopped, and its files do not show it") {
  const TemporaryFolder at;
  write_silicon(at / "si.xyz");
  for (const int ranks : {0, 2}) {
    for (const char* ensemble : {"langevin", "npt"}) {
      const Words which = {"--ensemble", ensemble};
      const auto with = [&](const Words& more) {
        Words all = which;
        all.insert(all.end(), more.begin(), more.end());
        return all;
      };
      for (const char* name : {"whole", "parts"}) std::filesystem::remove_all(at / name);
      const Outcome whole = tessera(at, ranks, md(at, "whole", with({"--steps", "30"})));
      INFO(whole.output);
      REQUIRE(whole.code == 0);
      CHECK(whole.says("8 atoms, 30 steps"));
      REQUIRE(tessera(at, ranks, md(at, "parts", with({"--steps", "20"}))).code == 0);
      // As if killed after step 20: lines and half a frame of a later step.
      std::ofstream(at / "parts/trajectory.xyz", std::ios::app) << "8\nLattice=\"1 0 0";
      std::ofstream(at / "parts/thermo.txt", std::ios::app) << "         22  22.0 0\n";
      const Outcome rest = tessera(at, ranks, md(at, "parts", with({"--steps", "30", "--resume"})));
      INFO(rest.output);
      REQUIRE(rest.code == 0);
      expect_files_alike(at / "whole", at / "parts");
      CHECK(io::read_extxyz(at / "whole/trajectory.xyz").size() == 7);
      CHECK(io::read_json_lines(at / "whole/thermo.jsonl", {"step"})[0].size() == 16);
    }
  }
}

TEST_CASE("md on several ranks follows md on one") {
  const TemporaryFolder at;
  write_silicon(at / "si.xyz");
  std::vector<std::vector<double>> totals;
  for (const int ranks : {0, 3}) {
    const Outcome o =
        tessera(at, ranks, md(at, "run", {"--steps", "20", "--cutting", "bisection"}));
    INFO(o.output);
    REQUIRE(o.code == 0);
    totals.push_back(io::read_json_lines(at / "run/thermo.jsonl", {"total"})[0]);
  }
  REQUIRE(totals[0].size() == 11);
  for (std::size_t i = 0; i < totals[0].size(); ++i)
    CHECK(totals[1][i] == Approx(totals[0][i]).epsilon(1e-11));
}

TEST_CASE("relax finds the crystal") {
  const TemporaryFolder at;
  write_silicon(at / "si.xyz");
  const Outcome o = tessera(
      at, 2, {"relax", "stillinger-weber", at / "si.xyz", "--out", at / "out.xyz", "--cell"});
  INFO(o.output);
  REQUIRE(o.code == 0);
  const auto frames = io::read_extxyz(at / "out.xyz");
  REQUIRE(frames.size() == 1);
  CHECK(*frames[0].energy / 8.0 == Approx(-2.0 * 2.1683).epsilon(1e-5));
  const Outcome few = tessera(
      at, 0, {"relax", "stillinger-weber", at / "si.xyz", "--out", at / "out.xyz", "--steps", "2"});
  CHECK(few.code == 1);
  CHECK(few.says("not converged after 2 steps"));
}

TEST_CASE("generate sio2 writes labelled structures") {
  const TemporaryFolder at;
  const Words words = {"generate",      "sio2",
                       "--kind",        "both",
                       "--cells",       "1,1,1",
                       "--frames",      "4",
                       "--settle",      "5",
                       "--interval",    "2",
                       "--melt-time",   "10",
                       "--quench-time", "10",
                       "--strain",      "0.01",
                       "--out",         at / "sio2.xyz",
                       "--picture",     at / "order.png"};
  for (const int ranks : {0, 2}) {
    const Outcome o = tessera(at, ranks, words);
    INFO(o.output);
    REQUIRE(o.code == 0);
    CHECK(o.says("4 frames of 9 atoms"));
    CHECK(o.says("quartz: 2.6"));
    CHECK(o.says("amorphous: 2.2"));
    CHECK(std::filesystem::exists(at / "order.png"));
    const auto frames = io::read_extxyz(at / "sio2.xyz");
    REQUIRE(frames.size() == 4);
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(frames[i].config_type == (i < 2 ? "quartz" : "amorphous"));
      CHECK(frames[i].energy.has_value());
      CHECK(frames[i].stress.has_value());
      CHECK(frames[i].forces.size() == 27);
    }
    CHECK(frames[0].positions != frames[1].positions);
  }
}

TEST_CASE("commands on atoms say what is wrong") {
  const TemporaryFolder at;
  write_silicon(at / "si.xyz");
  const auto fails = [&](const Words& words, int code, const std::string& text) {
    const Outcome o = tessera(at, 0, words);
    INFO(o.output);
    CHECK(o.code == code);
    CHECK(o.says(text));
  };
  fails({"md", "vashista", at / "si.xyz", "--out", at / "x"}, 2, "Did you mean \"vashishta\"?");
  fails({"md", "lennard-jones", at / "si.xyz", "--out", at / "x"}, 2, "atoms of Si (14)");
  fails({"md", "lennard-jones", "--out", at / "x"}, 2, "start");
  fails({"md", "lennard-jones", "--out", at / "x", "--resume"}, 74, "state.safetensors");
  fails(md(at, "x", {"--ensemble", "nvt"}), 2, "there is no ensemble");
  fails(md(at, "x", {"--frame", "3"}), 65, "has 1 structures, not number 3");
  fails({"md", "stillinger-weber", at / "si.xyz", "--out", at / "x", "--dt", "0"}, 2,
        "the time step is 0");
  fails({"generate", "sio2", "--cells", "2,2", "--out", at / "y"}, 2, "are not three numbers");
}

}  // namespace tessera::test
