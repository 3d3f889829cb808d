// ranks: 1
// deep: 1
// Extended XYZ files: conventions, exact round trips, errors with line numbers, damage.
#include <catch2/catch.hpp>
#include <sstream>
#include <tessera/nn/io/extxyz.hpp>

#include "io_support.hpp"
#include "support/op_test.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::test;

namespace {

std::vector<Structure> parse(const std::string& text, const io::ExtxyzOptions& options = {}) {
  std::istringstream stream(text);
  io::ExtxyzReader reader(stream, "file.xyz", options);
  std::vector<Structure> list;
  Structure s;
  while (reader.next(s)) list.push_back(s);
  return list;
}

Structure one(const std::string& comment, const std::string& atoms = "H 0 0 0\nO 0 0 1\n") {
  const auto lines = static_cast<std::size_t>(std::count(atoms.begin(), atoms.end(), '\n'));
  const auto list = parse(std::to_string(lines) + "\n" + comment + "\n" + atoms);
  REQUIRE(list.size() == 1);
  return list[0];
}

/// The error that reading throws must name this line and say this.
void refuse(const std::string& text, int line, const std::string& what) {
  INFO(text);
  try {
    parse(text);
  } catch (const DataError& e) {
    INFO(e.what());
    REQUIRE(std::string(e.what()).find(str("extxyz: file.xyz:", line, ": ")) == 0);
    REQUIRE(std::string(e.what()).find(what) != std::string::npos);
    return;
  }
  FAIL("nothing was thrown");
}

const std::string kFrame =
    "3\n"
    "Lattice=\"5 0 0 0.5 6 0 0 0 7\" Properties=species:S:1:pos:R:3:REF_forces:R:3:tag:I:1:ok:L:1 "
    "REF_energy=-12.25 REF_stress=\"1 2 3 4 5 6\" config_type=\"a b\" config_weight=0.5 pbc=\"T T "
    "F\" note='it is' count=3 flag\n"
    "Si 0.0 0.0 0.0 0.1 0.2 0.3 4 T\n"
    "O 1.5D0 0.25 +1.0 -1e-3 0.0 0.0 5 F\n"
    "8 0.5 2.25 1.0 1 2 3 6 T\n";

}  // namespace

TEST_CASE("a frame with everything") {
  const auto list = parse(kFrame + "\n" + kFrame + "  \n");
  REQUIRE(list.size() == 2);
  REQUIRE(list[1].line == 7);
  const Structure& s = list[0];
  REQUIRE(s.line == 1);
  REQUIRE(s.species == std::vector<std::int32_t>{14, 8, 8});
  REQUIRE(s.positions == std::vector<double>{0, 0, 0, 1.5, 0.25, 1, 0.5, 2.25, 1});
  REQUIRE(s.forces == std::vector<double>{0.1, 0.2, 0.3, -1e-3, 0, 0, 1, 2, 3});
  REQUIRE(s.cell.vectors[1] == Vec3{0.5, 6, 0});
  REQUIRE(s.cell.periodic == std::array<bool, 3>{true, true, false});
  REQUIRE(s.energy == -12.25);
  REQUIRE(*s.stress == std::array<double, 9>{1, 6, 5, 6, 2, 4, 5, 4, 3});
  REQUIRE_FALSE(s.virials.has_value());
  REQUIRE(s.config_type == "a b");
  REQUIRE(s.weight == 0.5);
  REQUIRE(s.energy_weight == 1.0);
  REQUIRE(s.columns.size() == 2);
  REQUIRE(s.columns[0].values == std::vector<std::string>{"4", "5", "6"});
  REQUIRE(s.columns[1].type == 'L');
  const std::vector<std::pair<std::string, std::string>> info = {
      {"note", "it is"}, {"count", "3"}, {"flag", "T"}};
  REQUIRE(s.info == info);
}

TEST_CASE("names of labels") {
  const Structure old = one("energy=1 virial=\"1 0 0 0 1 0 0 0 1\" config_energy_weight=2 head=h");
  REQUIRE(old.energy == 1.0);
  REQUIRE(old.virials.has_value());
  REQUIRE(old.energy_weight == 2.0);
  REQUIRE(old.head == "h");
  const Structure both = one("energy=1 REF_energy=2");
  REQUIRE(both.energy == 2.0);
  REQUIRE(both.info[0] == std::pair<std::string, std::string>("energy", "1"));
  REQUIRE_FALSE(one("").energy.has_value());
  const std::string text =
      "1\nProperties=species:S:1:pos:R:3:f:R:3:forces:R:3 e=4 energy=5\nH 0 0 0 1 1 1 2 2 2\n";
  const Structure named = parse(text, {.energy_key = "e", .forces_key = "f"})[0];
  REQUIRE(named.energy == 4.0);
  REQUIRE(named.forces[0] == 1.0);
  REQUIRE(named.columns[0].name == "forces");
  const Structure absent = parse(text, {.energy_key = "E", .forces_key = "F"})[0];
  REQUIRE_FALSE(absent.energy.has_value());
  REQUIRE(absent.forces.empty());
  REQUIRE(parse(text)[0].forces[0] == 2.0);
}

TEST_CASE("boxes and elements") {
  REQUIRE(one("plain comment words").cell.periodic == std::array<bool, 3>{});
  REQUIRE(one("Lattice=\"9 0 0 0 9 0 0 0 9\"").cell.periodic ==
          std::array<bool, 3>{true, true, true});
  REQUIRE(one("Lattice=[[9,0,0],[0,8,0],[0,0,7]] pbc=[True, F, 1]").cell.vectors[2][2] == 7.0);
  REQUIRE(one("Lattice={9 0 0 0 8 0 0 0 7}").cell.vectors[1][1] == 8.0);
  REQUIRE(one("Lattice=\"0 0 0 0 0 0 0 0 9\" pbc=\"F F T\"").cell.periodic[2]);
  REQUIRE(one("Properties=pos:R:3:Z:I:1", "0 0 0 26\n").species[0] == 26);
  REQUIRE(one("", "si 0 0 0\n").species[0] == 14);
  REQUIRE(parse("0\nenergy=0\n").at(0).atoms() == 0);
  REQUIRE(parse("").empty());
  REQUIRE(parse("2\r\nenergy=3\r\nH 0 0 0\r\nH 0 0 1\r\n").at(0).energy == 3.0);
  REQUIRE(element_mass(8) == Approx(15.999));
  REQUIRE(element_number("Xx") == -1);
  REQUIRE(std::string(element_symbol(118)) == "Og");
}

TEST_CASE("broken files say where and why") {
  refuse("H 0 0 0\n", 1, "number of atoms");
  refuse("-1\n\n", 1, "number of atoms");
  refuse("2\n", 1, "the file ends");
  refuse("2\n\nH 0 0 0\n", 3, "ends after 1 of 2");
  refuse("1\n\nH 0 0 0\nH 0 0 1\n", 4, "number of atoms");
  refuse("3\n\nH 0 0 0\nH 0 0 1\n2\n\nH 0 0 0\nH 0 0 1\n", 5, "1 columns");
  refuse("1\n\nH 0 0\n", 3, "3 columns");
  refuse("1\n\nH 0 0 0 0\n", 3, "5 columns");
  refuse("1\n\nQq 0 0 0\n", 3, "no element");
  refuse("1\n\n119 0 0 0\n", 3, "no element");
  refuse("1\n\nH 0 nan 0\n", 3, "not a finite number");
  refuse("1\n\nH 0 x 0\n", 3, "not a finite number");
  refuse("1\nProperties=species:S:1:pos:R:3:forces:R:3\nH 0 0 0 1 inf 1\n", 3, "forces");
  refuse("1\nenergy=nan\nH 0 0 0\n", 2, "energy");
  refuse("1\nenergy=\"1 2\"\nH 0 0 0\n", 2, "2 numbers");
  refuse("1\nstress=\"1 2 3\"\nH 0 0 0\n", 2, "9, or 6");
  refuse("1\nLattice=\"1 0 0 0 1 0 0 0\"\nH 0 0 0\n", 2, "9");
  refuse("1\nLattice=\"1 0 0 0 1 0 0 0 a\"\nH 0 0 0\n", 2, "finite");
  refuse("1\nLattice=\"1 0 0 2 0 0 0 0 1\"\nH 0 0 0\n", 2, "volume");
  refuse("1\nLattice=\"1 0 0 0 0 0 0 0 1\"\nH 0 0 0\n", 2, "vector 2");
  refuse("1\npbc=\"T T T\"\nH 0 0 0\n", 2, "not given");
  refuse("1\npbc=\"T T\"\nH 0 0 0\n", 2, "pbc");
  refuse("1\npbc=\"T T Q\"\nH 0 0 0\n", 2, "pbc");
  refuse("1\nProperties=species:S:1:pos:R\nH 0 0 0\n", 2, "triples");
  refuse("1\nProperties=species:S:1:pos:R:2\nH 0 0\n", 2, "pos");
  refuse("1\nProperties=species:S:1:pos:Q:3\nH 0 0 0\n", 2, "types");
  refuse("1\nProperties=pos:R:3\n0 0 0\n", 2, "species");
  refuse("1\nProperties=species:S:1\nH\n", 2, "pos");
  refuse("1\nnote=\"open\nH 0 0 0\n", 2, "quote");
  refuse("1\nconfig_weight=-1\nH 0 0 0\n", 2, "weight");
  refuse("2\n\nH 0 0 0\nO 0 0 0\n", 1, "overlap");
  refuse("2\nLattice=\"2 0 0 0 2 0 0 0 2\"\nH 0 0 0\nO 2 2 -2\n", 1, "overlap");
  REQUIRE(parse("2\n\nH 0 0 0\nO 0 0 0\n", {.nearest = 0.0}).size() == 1);
  REQUIRE_THROWS_AS(io::ExtxyzReader("/nowhere/file.xyz"), IoError);
  REQUIRE_THROWS_AS(io::ExtxyzWriter("/nowhere/file.xyz"), IoError);
}

TEST_CASE("what is written is read again, to the bit") {
  Rng rng(test::run_seed());
  std::vector<Structure> list = parse(kFrame);
  for (int f = 0; f < 20; ++f) {
    Structure s;
    const auto n = rng.integer(0, 6);
    for (std::int64_t i = 0; i < n; ++i) {
      s.species.push_back(static_cast<std::int32_t>(rng.integer(1, 118)));
      for (int c = 0; c < 3; ++c) {
        s.positions.push_back(rng.real(-9, 9) + 20.0 * static_cast<double>(i));
        s.forces.push_back(rng.real(-1, 1) * 1e-7);
      }
    }
    if (rng.coin()) s.forces.clear();
    if (rng.coin()) s.energy = rng.real(-1e5, 1e5);
    if (rng.coin()) s.stress = {rng.real(), 0, 1e-17, 0, rng.real(), 0, 1e-17, 0, -0.0};
    if (rng.coin()) s.head = "a \"quoted\" head";
    if (rng.coin()) s.weight = rng.real(0, 1);
    if (rng.coin()) {
      s.cell = {.vectors = {Vec3{9.1, 0.1, 0}, Vec3{0, 8, 0.3}, Vec3{0, 0, 300}},
                .periodic = {true, rng.coin(), rng.coin()}};
    }
    s.info = {{"key", "v"}, {"with space", "x = {1, 2}"}, {"empty", ""}};
    list.push_back(s);
  }
  const TempDir folder;
  io::write_extxyz(folder / "a.xyz", list);
  {
    io::ExtxyzWriter more(folder / "a.xyz", {}, true);
    more.write(list[0]);
  }
  auto back = io::read_extxyz(folder / "a.xyz");
  list.push_back(list[0]);
  REQUIRE(back.size() == list.size());
  for (std::size_t f = 0; f < list.size(); ++f) {
    const Structure& a = list[f];
    const Structure& b = back[f];
    REQUIRE(a.species == b.species);
    REQUIRE(a.positions == b.positions);
    REQUIRE(a.forces == b.forces);
    REQUIRE(a.energy == b.energy);
    REQUIRE(a.stress == b.stress);
    REQUIRE(a.cell == b.cell);
    REQUIRE(a.head == b.head);
    REQUIRE(a.weight == b.weight);
    REQUIRE(a.config_type == b.config_type);
    REQUIRE(a.info == b.info);
    REQUIRE(a.columns.size() == b.columns.size());
  }
  Structure wrong = list[0];
  wrong.positions.pop_back();
  std::ostringstream out;
  io::ExtxyzWriter writer(out, "out");
  REQUIRE_THROWS_AS(writer.write(wrong), DataError);
}

TEST_CASE("damaged files are read or refused") {
  const std::vector<std::string> pieces = {
      "\"",  "{",  "}",          "=",        "\n", " ",  "nan", "1e999", "-",  "T",       ":",
      "pos", "\0", "REF_energy", "99999999", "H",  "\\", "[",   "0 0 0", "\r", "Lattice", "1"};
  random_cases(draw_count(400), [&](Rng& rng) -> std::string {
    std::string text = kFrame + kFrame;
    for (std::int64_t n = rng.integer(1, 4); n > 0; --n) {
      const auto at =
          static_cast<std::size_t>(rng.integer(0, static_cast<std::int64_t>(text.size()) - 1));
      switch (rng.integer(0, 4)) {
        case 0:
          text[at] = static_cast<char>(rng.integer(0, 255));
          break;
        case 1:
          text.insert(at, rng.choice(pieces));
          break;
        case 2:
          text.erase(at, static_cast<std::size_t>(rng.integer(1, 30)));
          break;
        case 3:
          text.resize(at + 1);
          break;
        default:
          text.replace(at, 1, rng.choice(pieces));
      }
      if (text.empty()) text = "1";
    }
    try {
      for (const Structure& s : parse(text)) {
        // What was accepted can be computed on, written, and read again.
        std::ostringstream out;
        io::ExtxyzWriter(out, "out").write(s);
        const auto again = parse(out.str());
        if (again.size() != 1 || again[0].positions != s.positions || again[0].forces != s.forces ||
            again[0].energy != s.energy)
          return "a frame changed: " + out.str();
      }
    } catch (const DataError& e) {
      if (std::string(e.what()).find("extxyz: file.xyz:") != 0)
        return std::string("no place in: ") + e.what();
    }
    return "";
  });
}
