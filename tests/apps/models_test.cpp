// ranks: none
#include <algorithm>
#include <regex>

#include "program.hpp"

// What `tessera` does with every model of fields.
namespace tessera::test {
namespace {

/// Frames of waves that travel around a globe, with a season of 4 frames.
void write_frames(const std::string& path) {
  constexpr std::int64_t kFrames = 20;
  constexpr std::int64_t kRows = 13;
  constexpr std::int64_t kColumns = 16;
  io::NetcdfDimension lat = {.name = "lat", .size = kRows};
  io::NetcdfDimension lon = {.name = "lon", .size = kColumns};
  for (std::int64_t i = 0; i < kRows; ++i) lat.coordinates.push_back(-90.0 + 15.0 * double(i));
  for (std::int64_t i = 0; i < kColumns; ++i) lon.coordinates.push_back(22.5 * double(i));
  lon.attributes["units"] = std::string("degrees_east");
  io::NetcdfWriter writer(path, {{.name = "time", .size = kFrames}, lat, lon},
                          {{.name = "u", .dims = {"time", "lat", "lon"}},
                           {.name = "v", .dims = {"time", "lat", "lon"}}});
  for (const double phase : {0.0, 1.0}) {
    std::vector<float> values;
    for (std::int64_t t = 0; t < kFrames; ++t)
      for (std::int64_t i = 0; i < kRows; ++i)
        for (std::int64_t j = 0; j < kColumns; ++j)
          values.push_back(
              static_cast<float>(std::sin(0.3927 * double(j) + 0.8 * double(t) + phase) +
                                 std::cos(1.5708 * double(t)) * 0.1 * double(i) +
                                 0.3 * std::sin(double(t * t) + phase)));
    writer.write_box(phase == 0.0 ? "u" : "v", Box::whole({kFrames, kRows, kColumns}),
                     View::dense(values.data(), DType::kFloat32, {kFrames, kRows, kColumns}));
  }
  writer.commit();
}

struct Case {
  std::string model;
  bool forecasts;
  Words settings;
};

std::vector<Case> cases() {
  return {
      {"vit", false, {"--channels", "16", "--depth", "2", "--heads", "2", "--patch", "2"}},
      {"vit", true, {"--channels", "16", "--depth", "1", "--heads", "2", "--patch", "4"}},
      {"swin", false, {"--channels", "8", "--heads", "2,4", "--window", "2"}},
      {"unetr",
       false,
       {"--channels", "16", "--depth", "2", "--heads", "2", "--levels", "2", "--base", "4"}},
      {"unetr",
       true,
       {"--channels", "16", "--depth", "1", "--heads", "2", "--levels", "1", "--base", "4"}},
      {"forecaster", true, {"--channels", "16", "--depth", "2", "--heads", "2", "--window", "3"}},
  };
}

Words training(const TemporaryFolder& at,
               const Case& c,
               const std::string& out,
               const Words& more = {}) {
  Words words = {"train", c.model,     "--out", at / out, "--steps", "6",      "--batch",
                 "2",     "--dropout", "0.1",   "--lr",   "1e-2",    "--seed", "3"};
  if (c.forecasts) {
    for (const std::string& w :
         Words{"--task", "forecast", "--data", at / "frames.nc", "--season", "4", "--test", "4"})
      words.push_back(w);
  } else {
    for (const std::string& w : Words{"--data", at.data(), "--holdout", "0,90", "--crop", "32"})
      words.push_back(w);
  }
  words.insert(words.end(), c.settings.begin(), c.settings.end());
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<double> values_of(const std::string& path, const std::string& variable) {
  const io::NetcdfReader reader(path);
  const Shape shape = reader.variable(variable).shape;
  std::vector<double> values(static_cast<std::size_t>(shape.product()));
  reader.read(variable, Box::whole(shape), View::dense(values.data(), DType::kFloat64, shape));
  return values;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

}  // namespace

TEST_CASE("every model trains alike on any mesh, resumes, is evaluated and predicts") {
  const TemporaryFolder at;
  write_frames(at / "frames.nc");
  int number = 0;
  for (const Case& c : cases()) {
    const std::string run = str(c.model, number++);
    const std::string variable = c.forecasts ? "u" : "relief";
    const Outcome alone = tessera(at, 0, training(at, c, run));
    INFO(run << "\n" << alone.output);
    REQUIRE(alone.code == 0);
    const std::vector<double> one = losses(at, run);
    CHECK(one.front() != one.back());
    for (const std::string mesh : {"h=2", "h=1,w=2", "data=2"}) {
      const std::string other = run + mesh;
      const Outcome o = tessera(at, 2, training(at, c, other, {"--mesh", mesh}));
      INFO(mesh << "\n" << o.output);
      REQUIRE(o.code == 0);
      const std::vector<double> many = losses(at, other);
      REQUIRE(many.size() == one.size());
      for (std::size_t i = 0; i < one.size(); ++i) CHECK(many[i] == Approx(one[i]).epsilon(1e-3));
    }

    const Words constant = {"--warmup", "0", "--final-lr", "1e-2"};
    Words half = constant;
    half.insert(half.end(), {"--steps", "3"});
    REQUIRE(tessera(at, 0, training(at, c, run + "whole", constant)).code == 0);
    REQUIRE(tessera(at, 0, training(at, c, run + "parts", half)).code == 0);
    REQUIRE(
        tessera(at, 0, {"train", c.model, "--resume", "--steps", "6", "--out", at / run + "parts"})
            .code == 0);
    CHECK(losses(at, run + "parts") == losses(at, run + "whole"));
    CHECK(tessera(at, 0, {"info", at / run}).says("blocks"));

    const Outcome evaluated = tessera(at, 2, {"evaluate", at / run, "--mesh", "w=2"});
    INFO(evaluated.output);
    REQUIRE(evaluated.code == 0);
    CHECK(evaluated.says(c.forecasts ? "persistence" : "bicubic"));
    CHECK(std::filesystem::exists(at / run + "/evaluation.json"));
    CHECK(std::filesystem::exists(at / run + "/prediction.png"));

    Words predict = {"predict", at / run, "--output", at / "a.nc"};
    if (!c.forecasts) predict.emplace_back("--coarsen");
    REQUIRE(tessera(at, 0, predict).code == 0);
    predict[3] = at / "b.nc";
    predict.insert(predict.end(), {"--mesh", "h=2,w=2"});
    REQUIRE(tessera(at, 4, predict).code == 0);
    const std::vector<double> a = values_of(at / "a.nc", variable);
    CHECK(a.size() == (c.forecasts ? 13u * 16u : 48u * 96u));
    double size = 0.0;
    for (const double v : a) size = std::max(size, std::abs(v));
    CHECK(largest_difference(a, values_of(at / "b.nc", variable)) < 1e-4 * size);
  }
}

TEST_CASE("activations may be computed again, or in bf16") {
  const TemporaryFolder at;
  const Case vit = cases().front();
  const auto train_with = [&](const std::string& run, const Words& more) {
    const Outcome o = tessera(at, 2, training(at, vit, run, more));
    INFO(o.output);
    REQUIRE(o.code == 0);
    return losses(at, run);
  };
  const std::vector<double> plain = train_with("plain", {});
  CHECK(train_with("again", {"--recompute", "blocks.*"}) == plain);
  const std::vector<double> narrow = train_with("narrow", {"--compute", "bf16"});
  CHECK(narrow != plain);
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(narrow[i] == Approx(plain[i]).epsilon(0.05));
  const auto peak = [&](const Words& more) {
    Words words = {"plan",    "vit", "--size",  "256x256", "--channels", "32",
                   "--depth", "6",   "--heads", "2",       "--json",     at / "plan.json"};
    words.insert(words.end(), more.begin(), more.end());
    REQUIRE(tessera(at, 0, words).code == 0);
    const std::string json = read_file(at / "plan.json");
    const std::regex number("\"peak_bytes\": ([0-9]+)");
    double largest = 0.0;
    for (std::sregex_iterator it(json.begin(), json.end(), number), end; it != end; ++it)
      largest = std::max(largest, std::stod((*it)[1]));
    return largest;
  };
  const double kept = peak({});
  CHECK(peak({"--recompute", "blocks.*"}) < 0.7 * kept);
  CHECK(peak({"--compute", "bf16"}) < 0.8 * kept);
  CHECK(tessera(at, 2, {"evaluate", at / "narrow"}).code == 0);
  const Outcome wrong = tessera(at, 2, training(at, vit, "wrong", {"--recompute", "nothing"}));
  INFO(wrong.output);
  CHECK(wrong.code == 2);
  CHECK(wrong.count("nothing") == 1);
}

TEST_CASE("tiles make what the whole makes, away from their edges") {
  const TemporaryFolder at;
  // Taps of 1: the interpolation that is added reaches furthest, 2 coarse points.
  REQUIRE(tessera(at, 0, train(at, "run", {"--kernel", "1", "--multipliers", "1"})).code == 0);
  const auto predict = [&](int ranks, const std::string& out, const Words& more) {
    Words words = {"predict", at / "run", "--coarsen", "--output", at / out};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome o = tessera(at, ranks, words);
    INFO(o.output);
    REQUIRE(o.code == 0);
    return values_of(at / out, "relief");
  };
  const std::vector<double> whole = predict(0, "whole.nc", {});
  CHECK(largest_difference(predict(0, "tiles.nc", {"--tile", "64"}), whole) < 1e-2);
  CHECK(largest_difference(predict(3, "split.nc", {"--tile", "64", "--mesh", "w=3"}), whole) <
        1e-2);
  // Too small for that: they differ, and not by much.
  const double apart = largest_difference(predict(2, "small.nc", {"--tile", "16"}), whole);
  CHECK(apart > 1e-2);
  CHECK(apart < 2000.0);
  const Outcome in_tiles = tessera(at, 0, {"evaluate", at / "run", "--tile", "64"});
  const std::string scores = read_file(at / "run/evaluation.json");
  REQUIRE(in_tiles.code == 0);
  const Outcome at_once = tessera(at, 0, {"evaluate", at / "run"});
  CHECK(at_once.output == in_tiles.output);
}

TEST_CASE("the answer over mirror images turns with the field") {
  const TemporaryFolder at;
  REQUIRE(tessera(at, 0, train(at, "run")).code == 0);
  std::vector<double> field = values_of(at.data(), "relief");
  constexpr std::int64_t kRows = 48, kColumns = 96;
  field.resize(kRows * kColumns);  // that which whole blocks cover
  std::reverse(field.begin(), field.end());
  io::NetcdfDimension lat = {.name = "lat", .size = kRows};
  io::NetcdfDimension lon = {.name = "lon", .size = kColumns};
  for (std::int64_t i = 0; i < kRows; ++i) lat.coordinates.push_back(double(i));
  for (std::int64_t i = 0; i < kColumns; ++i) lon.coordinates.push_back(3.75 * double(i));
  lon.attributes["units"] = std::string("degrees_east");
  io::NetcdfWriter writer(
      at / "turned.nc", {lat, lon},
      {{.name = "relief", .dims = {"lat", "lon"}, .dtype = DType::kFloat64, .attributes = {}}});
  writer.write_box("relief", Box::whole({kRows, kColumns}),
                   View::dense(field.data(), DType::kFloat64, {kRows, kColumns}));
  writer.commit();

  const auto predict = [&](int ranks, const std::string& file, const Words& more) {
    Words words = {"predict", at / "run", "--coarsen", "--input", file, "--output", at / "y.nc"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome o = tessera(at, ranks, words);
    INFO(o.output);
    REQUIRE(o.code == 0);
    return values_of(at / "y.nc", "relief");
  };
  const std::vector<double> plain = predict(0, at.data(), {});
  const std::vector<double> mean = predict(0, at.data(), {"--mirrors"});
  const double apart = largest_difference(plain, mean);
  CHECK(apart > 1e-2);
  CHECK(largest_difference(predict(4, at.data(), {"--mirrors", "--mesh", "h=2,w=2"}), mean) <
        1e-4 * apart + 1e-3);
  std::vector<double> turned = predict(3, at / "turned.nc", {"--mirrors", "--mesh", "w=3"});
  std::reverse(turned.begin(), turned.end());
  CHECK(largest_difference(turned, mean) < 1e-2 * apart + 1e-3);

  const Outcome one = tessera(at, 0, {"evaluate", at / "run", "--mirrors"});
  CHECK(read_file(at / "run/evaluation.json").find("\"mirrors\": true") != std::string::npos);
  CHECK(tessera(at, 2, {"evaluate", at / "run", "--mirrors"}).output == one.output);
  CHECK(tessera(at, 0, {"evaluate", at / "run"}).output != one.output);
}

TEST_CASE(
    "a model of points trains alike on any mesh, is scored beside plain answers and predicts") {
  const TemporaryFolder at;
  constexpr std::int64_t kPoints = 150;
  io::NetcdfWriter writer(at / "cells.nc", {{.name = "cells", .size = kPoints}},
                          {{.name = "x", .dims = {"cells"}},
                           {.name = "y", .dims = {"cells"}},
                           {.name = "wet", .dims = {"cells"}},
                           {.name = "heat", .dims = {"cells"}}});
  for (const char* name : {"x", "y", "wet", "heat"}) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < kPoints; ++i) {
      const double x = double(i * 31 % 150) / 150.0;
      const double y = double(i * 7 % 149) / 149.0;
      const double wet = double(i * 13 % 17) / 17.0;
      const std::string n = name;
      values.push_back(n == "x"     ? x
                       : n == "y"   ? y
                       : n == "wet" ? wet
                                    : std::sin(5 * x) + wet * wet);
    }
    writer.write_box(name, Box::whole({kPoints}),
                     View::dense(values.data(), DType::kFloat64, {kPoints}));
  }
  writer.commit();
  const Words words = {"train",         "transolver", "--data",     at / "cells.nc",
                       "--coordinates", "x,y",        "--inputs",   "wet",
                       "--targets",     "heat",       "--channels", "16",
                       "--depth",       "2",          "--heads",    "2",
                       "--slices",      "8",          "--points",   "40",
                       "--batch",       "2",          "--steps",    "60",
                       "--lr",          "1e-2",       "--out"};
  const auto train = [&](int ranks, const std::string& out, const Words& more) {
    Words all = words;
    all.push_back(at / out);
    all.insert(all.end(), more.begin(), more.end());
    const Outcome o = tessera(at, ranks, all);
    INFO(o.output);
    REQUIRE(o.code == 0);
    return losses(at, out);
  };
  const std::vector<double> one = train(0, "one", {});
  CHECK(one.back() < 0.5 * one.front());
  for (const std::string mesh : {"h=2", "data=2"}) {
    const std::vector<double> many = train(2, mesh, {"--mesh", mesh});
    REQUIRE(many.size() == one.size());
    for (std::size_t i = 0; i < 10; ++i) CHECK(many[i] == Approx(one[i]).epsilon(1e-3));
  }
  const Outcome evaluated = tessera(at, 2, {"evaluate", at / "one"});
  INFO(evaluated.output);
  REQUIRE(evaluated.code == 0);
  for (const char* name : {"model", "linear", "nearest", "mean"}) CHECK(evaluated.says(name));
  CHECK(std::filesystem::exists(at / "one/prediction.png"));
  REQUIRE(tessera(at, 0, {"predict", at / "one", "--output", at / "a.nc"}).code == 0);
  REQUIRE(tessera(at, 3, {"predict", at / "one", "--output", at / "b.nc"}).code == 0);
  const std::vector<double> predicted = values_of(at / "a.nc", "heat");
  CHECK(predicted.size() == std::size_t(kPoints));
  CHECK(largest_difference(predicted, values_of(at / "b.nc", "heat")) < 1e-4);

  const auto refuses = [&](const Words& more, int code, const std::string& text) {
    Words all = words;
    all.push_back(at / "x");
    all.insert(all.end(), more.begin(), more.end());
    const Outcome o = tessera(at, 2, all);
    INFO(o.output);
    CHECK(o.code == code);
    CHECK(o.count(text) == 1);
    std::filesystem::remove_all(at / "x");
  };
  refuses({"--points", "150"}, 2, "data.points");
  refuses({"--holdout", "1"}, 2, "no point is left");
  refuses({"--targets", "heats"}, 65, "heats");
  refuses({"--coordinates", "x,z"}, 65, "\"z\"");
  refuses({"--grid", at / "none.nc"}, 74, "none.nc");
  refuses({"--heads", "3"}, 2, "3 heads");
  refuses({"--input-skip", "cubic"}, 2, "not expected");
}

TEST_CASE("plans of every model are what real steps count, and meshes agree with one rank") {
  const TemporaryFolder at;
  const std::vector<Words> models = {
      {"vit", "--size", "64x48", "--channels", "16", "--depth", "1", "--heads", "2", "--batch",
       "2"},
      {"swin", "--size", "64x64", "--channels", "8", "--heads", "2,4", "--window", "4"},
      {"unetr", "--size", "64x64", "--channels", "16", "--depth", "2", "--heads", "2", "--levels",
       "2", "--base", "4"},
      {"forecaster", "--size", "16x24", "--channels", "16", "--depth", "1", "--heads", "2",
       "--season", "12", "--variables", "u,v", "--periodic", "1"},
      {"transolver", "--size", "101", "--channels", "16", "--heads", "2", "--inputs", "a,b"}};
  for (const Words& model : models) {
    const bool points = model[0] == "transolver";
    Words words = {"plan"};
    words.insert(words.end(), model.begin(), model.end());
    words.insert(words.end(), {"--mesh", points ? "data=2,h=2" : "h=2,w=2", "--check"});
    const Outcome planned = tessera(at, 4, words);
    INFO(planned.output);
    CHECK(planned.code == 0);
    CHECK(planned.says("check: messages and bytes equal"));
    words.pop_back();
    words[0] = "compare";
    words.insert(words.end(), {"--precision", "f64"});
    const Outcome compared = tessera(at, 4, words);
    INFO(compared.output);
    CHECK(compared.code == 0);
    CHECK(compared.says("agree"));
    const Outcome timed = tessera(at, 2,
                                  {"bench", "scaling", model[0], "--size", points ? "64" : "32x32",
                                   "--steps", "1", "--warmup", "1", "--width", "16"});
    INFO(timed.output);
    CHECK(timed.code == 0);
    CHECK(timed.says("\"model\":\"" + model[0] + "\""));
  }
}

TEST_CASE("settings of models that do not fit are said once") {
  const TemporaryFolder at;
  const auto check = [&](int ranks, const Words& words, const std::string& text) {
    const Outcome o = tessera(at, ranks, words);
    INFO(o.output);
    CHECK(o.code == 2);
    CHECK(o.count(text) == 1);
    CHECK(!std::filesystem::exists(at / "x/model.safetensors"));
    std::filesystem::remove_all(at / "x");
  };
  const auto with = [&](const std::string& model, const Words& more) {
    Words words = {"train", model, "--data", at.data(), "--crop", "32", "--out", at / "x"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  check(2, with("vit", {"--preset", "giant"}), "model.preset");
  check(2, with("vit", {"--heads", "7"}), "7");
  check(0, with("vit", {"--key-heads", "5"}), "5");
  check(0, with("vit", {"--patch", "0"}), "model.patch");
  check(0, with("vit", {"--patch", "2,2,2"}), "does not fit 2 domain dimensions");
  check(0, with("vit", {"--patch", "2,2,2,2"}), "patch: 4 numbers");
  check(0, with("vit", {"--base", "8"}), "not expected: 8 --base");
  check(2, with("swin", {"--heads", "2"}), "heads");
  check(0, with("swin", {"--window", "0"}), "model.window");
  check(2, with("unetr", {"--depth", "2", "--levels", "3"}), "3 levels, depth 2");
  check(0, with("unetr", {"--kernel", "2"}), "kernel 2");
  check(0, {"train", "forecaster", "--data", at.data(), "--task", "refine", "--out", at / "x"},
        "data.task");
  check(0, {"plan", "vit", "--size", "30x32"}, "multiple of data.factor");
  check(0, {"plan", "vitt", "--size", "32x32"}, "Did you mean \"vit\"?");
  check(0, {"bench", "scaling", "vit", "--size", "8x8x8x8"}, "1 to 3 dimensions");
  REQUIRE(tessera(at, 0, train(at, "done")).code == 0);
  check(2, {"evaluate", at / "done", "--tile", "30"}, "multiple of data.factor");
  check(0, {"predict", at / "done", "--tile", "-4", "--output", at / "x"}, "--tile");
}

}  // namespace tessera::test
