// ranks: none
#include "program.hpp"

namespace tessera::test {
namespace {

std::vector<double> values_of(const std::string& path, const std::string& variable) {
  const io::NetcdfReader reader(path);
  const Shape shape = reader.variable(variable).shape;
  std::vector<double> values(static_cast<std::size_t>(shape.product()));
  reader.read(variable, Box::whole(shape), View::dense(values.data(), DType::kFloat64, shape));
  return values;
}

}  // namespace

TEST_CASE("generate writes the same file on any number of ranks") {
  const TemporaryFolder at;
  struct Case {
    Words words;
    std::string variable;
    Shape shape;
  };
  for (const Case& c : std::vector<Case>{
           {{"heat", "--size", "11,7", "--frames", "3"}, "temperature", {3, 11, 7}},
           {{"heat", "--size", "13", "--dims", "1", "--precision", "f64", "--frames", "2"},
            "temperature",
            {2, 13}},
           {{"gray_scott", "--size", "9,8,10", "--samples", "2", "--frames", "2", "--spin-up", "20",
             "--interval", "3"},
            "v",
            {2, 2, 9, 8, 10}},
           {{"kolmogorov", "--size", "14", "--frames", "2", "--spin-up", "0.1", "--interval",
             "0.1"},
            "vorticity",
            {2, 14, 14}},
           {{"turbulence", "--size", "6", "--dims", "3", "--frames", "1", "--spin-up", "0.1"},
            "w",
            {1, 6, 6, 6}}}) {
    std::string one;
    for (const auto& [ranks, mesh] : std::vector<std::pair<int, std::string>>{
             {0, ""}, {2, ""}, {3, "h=3"}, {4, "data=2,h=2"}}) {
      Words words = {"generate"};
      words.insert(words.end(), c.words.begin(), c.words.end());
      words.insert(words.end(), {"--out", at / "x.nc"});
      if (!mesh.empty()) words.insert(words.end(), {"--mesh", mesh});
      const Outcome o = tessera(at, ranks, words);
      INFO(c.words[0] << " on " << ranks << " " << mesh << "\n" << o.output);
      REQUIRE(o.code == 0);
      CHECK(at.files() == 2);  // the file and the output, nothing temporary
      const std::string file = read_file(at / "x.nc");
      if (one.empty()) one = file;
      CHECK(file == one);
      CHECK(io::NetcdfReader(at / "x.nc").variable(c.variable).shape == c.shape);
      const std::vector<double> values = values_of(at / "x.nc", c.variable);
      double spread = 0.0;
      for (const double v : values) {
        REQUIRE(std::isfinite(v));
        spread = std::max(spread, std::abs(v - values[0]));
      }
      CHECK(spread > 1e-6);
    }
  }
}

TEST_CASE("generate heat tells its error, which falls with the square of the spacing") {
  const TemporaryFolder at;
  std::vector<double> errors;
  for (const char* size : {"32", "64"}) {
    const Outcome o = tessera(at, 2,
                              {"generate", "heat", "--size", size, "--precision", "f64", "--frames",
                               "3", "--largest", "1", "--out", at / "x.nc"});
    REQUIRE(o.code == 0);
    const std::size_t colon = o.output.rfind(": ");
    REQUIRE(colon != std::string::npos);
    errors.push_back(std::stod(o.output.substr(colon + 2)));
  }
  CHECK(errors[1] > 1e-7);
  CHECK(std::log2(errors[0] / errors[1]) == Approx(2.0).margin(0.3));
}

TEST_CASE("a signal stops generate; the old file stays and nothing else") {
  const TemporaryFolder at;
  std::ofstream(at / "x.nc") << "old";
  const pid_t child = start({TESSERA_PROGRAM, "generate", "gray_scott", "--size", "32", "--frames",
                             "100000", "--out", at / "x.nc"},
                            at / "output");
  while (at.files() < 3 && kill(child, 0) == 0) usleep(1000);  // until the temporary file is there
  usleep(20000);
  kill(child, SIGTERM);
  const int code = wait_for(child);
  INFO(read_file(at / "output"));
  CHECK(code == 75);
  CHECK(read_file(at / "x.nc") == "old");
  CHECK(at.files() == 2);
  CHECK(read_file(at / "output").find("was not written") != std::string::npos);
}

TEST_CASE("what is wrong about generate is said once, with an exit code") {
  const TemporaryFolder at;
  const auto check = [&](int ranks, Words words, int code, const std::string& text) {
    words.insert(words.begin(), "generate");
    const Outcome o = tessera(at, ranks, words);
    INFO(o.output);
    CHECK(o.code == code);
    CHECK(o.output.find(text) != std::string::npos);
    CHECK(o.output.find(text) == o.output.rfind(text));
    CHECK(!std::filesystem::exists(at / "x.nc"));
  };
  const std::string out = at / "x.nc";
  check(2, {"heat", "--out", out}, 2, "no size");
  check(0, {"heat", "--size", "8"}, 2, "--out is required");
  check(0, {"heat", "--size", "8,8,8,8", "--out", out}, 2, "4-D");
  check(0, {"heat", "--size", "8,8", "--dims", "3", "--out", out}, 2, "2 sizes for 3 dimensions");
  check(0, {"heat", "--size", "many", "--out", out}, 2, "many");
  check(0, {"heat", "--size", "8", "--courant", "0.9", "--out", out}, 2, "at most 0.5");
  check(2, {"kolmogorov", "--size", "8", "--dims", "3", "--out", out}, 2, "no 3-D form");
  check(0, {"turbulence", "--size", "8", "--viscosity", "0", "--out", out}, 2, "must be positive");
  check(0, {"kolmogorov", "--size", "16", "--forcing", "300", "--out", out}, 2, "not finite");
  check(0, {"gray_scott", "--size", "8", "--largest-step", "3", "--out", out}, 2, "unstable");
  check(0, {"gray_scot", "--size", "8", "--out", out}, 2, "Did you mean \"gray_scott\"?");
  check(2, {"heat", "--size", "8", "--mesh", "a=1,b=1,c=2", "--out", out}, 2, "more axes");
  check(2, {"heat", "--size", "8", "--out", at / "no/x.nc"}, 74, "cannot be created");
}

TEST_CASE("a network learns to step what was generated, on one rank and on two") {
  const TemporaryFolder at;
  REQUIRE(tessera(at, 0,
                  {"generate", "gray_scott", "--size", "10,12,9", "--samples", "3", "--frames", "6",
                   "--spin-up", "60", "--interval", "10", "--out", at / "gs.nc"})
              .code == 0);
  const auto train = [&](int ranks, const std::string& run, const Words& more) {
    Words words = {"train",   "unet", "--task",        "forecast", "--data",   at / "gs.nc",
                   "--test",  "1",    "--base",        "4",        "--blocks", "1",
                   "--steps", "60",   "--multipliers", "1,2",      "--batch",  "2",
                   "--lr",    "3e-3", "--ema",         "0.9",      "--out",    at / run};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome o = tessera(at, ranks, words);
    INFO(o.output);
    REQUIRE(o.code == 0);
    return io::read_json_lines(at / run + "/metrics.jsonl", {"loss"})[0];
  };
  const std::vector<double> one = train(0, "one", {});
  for (const auto& [ranks, mesh] :
       std::vector<std::pair<int, std::string>>{{2, "h=2"}, {2, "data=2"}, {3, "h=1,w=3"}}) {
    const std::vector<double> many = train(ranks, "on-" + mesh, {"--mesh", mesh});
    REQUIRE(many.size() == one.size());
    for (std::size_t i = 0; i < 6; ++i) CHECK(many[i] == Approx(one[i]).epsilon(1e-3));
  }
  CHECK(one.front() > 0.2);

  const Outcome a = tessera(at, 0, {"evaluate", at / "one"});
  INFO(a.output);
  REQUIRE(a.code == 0);
  for (const char* word : {"model", "linear", "persistence", "RMSE, 5 forecasts"})
    CHECK(a.output.find(word) != std::string::npos);
  const auto score = [&](const std::string& name) {
    return std::stod(a.output.substr(a.output.find("\n" + name) + 1 + name.size()));
  };
  CHECK(score("model") < 0.7 * score("persistence"));
  CHECK(score("linear") < score("persistence"));
  const std::string json = read_file(at / "one/evaluation.json");
  CHECK(json.find("skill_over") != std::string::npos);
  CHECK(std::filesystem::file_size(at / "one/prediction.png") > 1000);
  const Outcome b = tessera(at, 2, {"evaluate", at / "one"});
  REQUIRE(b.code == 0);
  CHECK(a.output == b.output);
  std::vector<double> next;
  for (const int ranks : {0, 2}) {
    REQUIRE(tessera(at, ranks, {"predict", at / "one", "--output", at / "next.nc"}).code == 0);
    CHECK(io::NetcdfReader(at / "next.nc").variable("v").shape == Shape{3, 10, 12, 9});
    const std::vector<double> u = values_of(at / "next.nc", "u");
    if (next.empty()) next = u;
    for (std::size_t i = 0; i < u.size(); ++i) REQUIRE(u[i] == Approx(next[i]).margin(1e-4));
  }
  // It stays near the last frame, and is not that.
  const std::vector<double> all = values_of(at / "gs.nc", "u");
  double change = 0.0;
  for (std::size_t i = 0; i < 1080; ++i) {
    change = std::max(change, std::abs(next[i] - all[5 * 1080 + i]));
  }
  CHECK(change > 1e-3);
  CHECK(change < 0.6);
  CHECK(tessera(at, 0, {"predict", at / "one", "--coarsen", "--output", at / "y.nc"}).code == 2);
}

TEST_CASE("forecasts with a season know climatology and the damped anomaly") {
  const TemporaryFolder at;
  constexpr std::int64_t kFrames = 60;
  constexpr std::int64_t kRows = 5;
  constexpr std::int64_t kColumns = 8;
  // x(t) = mean of the month + 0.5 (x(t-1) - mean of that month) + noise: the damped anomaly is the
  // best there is.
  io::NetcdfDimension time = {.name = "TIME", .size = kFrames};
  io::NetcdfDimension y = {.name = "y", .size = kRows, .coordinates = {-60, -30, 0, 30, 60}};
  y.attributes["units"] = std::string("degrees_north");
  io::NetcdfWriter writer(at / "w.nc", {time, y, {.name = "x", .size = kColumns}},
                          {{.name = "wind", .dims = {"TIME", "y", "x"}, .dtype = DType::kFloat64}});
  std::vector<double> values;
  std::vector<double> anomaly(kRows * kColumns, 0.0);
  std::uint64_t bits = 1;
  for (std::int64_t t = 0; t < kFrames; ++t) {
    for (double& a : anomaly) {
      bits = bits * 6364136223846793005u + 1442695040888963407u;
      a = 0.5 * a + static_cast<double>(bits >> 40) / 16777216.0 - 0.5;
      values.push_back(10.0 * std::cos(2.0 * 3.14159265 * static_cast<double>(t % 4) / 4.0) + a);
    }
  }
  writer.write_box("wind", Box::whole({kFrames, kRows, kColumns}),
                   View::dense(values.data(), DType::kFloat64, {kFrames, kRows, kColumns}));
  writer.commit();
  Words words = {"train",      "unet", "--task",        "forecast", "--data",   at / "w.nc",
                 "--test",     "12",   "--base",        "4",        "--season", "4",
                 "--history",  "2",    "--multipliers", "1",        "--steps",  "2",
                 "--blocks",   "1",    "--lr",          "0",        "--out",    at / "run",
                 "--periodic", "x",    "--coordinates", "true"};
  const Outcome trained = tessera(at, 2, words);
  INFO(trained.output);
  REQUIRE(trained.code == 0);
  const Outcome o = tessera(at, 2, {"evaluate", at / "run"});
  INFO(o.output);
  REQUIRE(o.code == 0);
  const auto score = [&](const std::string& name) {
    const std::size_t line = o.output.find("\n" + name);
    REQUIRE(line != std::string::npos);
    return std::stod(o.output.substr(line + 1 + name.size()));
  };
  // The network was not moved from its start, which adds nothing to the damped anomaly.
  CHECK(score("model") == Approx(score("damped anomaly")).epsilon(1e-6));
  CHECK(score("damped anomaly") == Approx(std::sqrt(1.0 / 12.0)).epsilon(0.12));
  CHECK(score("climatology") > 1.05 * score("damped anomaly"));
  CHECK(score("persistence") > 20.0 * score("damped anomaly"));

  // Weighted by area, of the last five frames: the root over the globe first, then the mean.
  const Outcome last = tessera(at, 2, {"evaluate", at / "run", "--last", "5"});
  INFO(last.output);
  REQUIRE(last.code == 0);
  double expected = 0.0;
  for (std::int64_t t = kFrames - 5; t < kFrames; ++t) {
    double squares = 0.0;
    double globe = 0.0;
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t j = 0; j < kColumns; ++j) {
        const auto k = static_cast<std::size_t>((t * kRows + i) * kColumns + j);
        const double area = std::cos(y.coordinates[static_cast<std::size_t>(i)] * 3.14159265 / 180);
        squares += area * std::pow(values[k] - values[k - kRows * kColumns], 2);
        globe += area;
      }
    }
    expected += std::sqrt(squares / globe) / 5.0;
  }
  const std::string table = last.output.substr(last.output.find("weighted by area"));
  CHECK(std::stod(table.substr(table.find("\npersistence") + 12)) ==
        Approx(expected).epsilon(1e-4));
  CHECK(tessera(at, 0, {"evaluate", at / "run", "--last", "13"}).code == 2);

  words[6] = "--test";
  words[7] = "58";
  words.back() = "true";
  words[23] = at / "other";
  CHECK(tessera(at, 0, words).code == 2);
}

}  // namespace tessera::test
