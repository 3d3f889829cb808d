// ranks: 1
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <iostream>
#include <limits>
#include <random>
#include <tessera/core/error.hpp>
#include <tessera/nn/io/settings.hpp>

#include "io_support.hpp"

using namespace tessera;
using io::Settings;
using tessera::test::TempDir;

namespace {

struct Options {
  bool resume = false;
  int threads = 2;
  std::int64_t steps = 1000;
  std::uint64_t seed = 7;
  double lr = 1e-3;
  std::string data = "relief.nc";
  std::string schedule = "cosine";
  std::vector<std::int64_t> crop = {256, 256};
  std::vector<double> betas = {0.9, 0.999};
  std::vector<std::string> periodic = {};
};

Settings settings_for(Options& o) {
  Settings s;
  s.add("data", o.data, "File with the field.\nNetCDF.");
  s.add("train.steps", o.steps, "Optimiser steps.", {.min = 1});
  s.add("train.lr", o.lr, "Learning rate.", {.min = 0, .max = 1});
  s.add("train.resume", o.resume, "Go on.");
  s.add("train.schedule", o.schedule, "Learning rate over time.",
        {.choices = {"constant", "cosine"}});
  s.add("train.adam.betas", o.betas, "Decay of the moments.", {.min = 0, .max = 1});
  s.add("threads", o.threads, "Threads.");
  s.add("seed", o.seed, "Random key.");
  s.add("crop", o.crop, "Points.");
  s.add("periodic", o.periodic, "Dimensions.");
  return s;
}

}  // namespace

TEST_CASE("a file, then the command line") {
  Options o;
  Settings s = settings_for(o);
  s.load_text(R"(
data = "a b.nc"
crop = [32, 64]
seed = 9
[train]
steps = 10
lr = 1          # an integer for a number
adam.betas = [0.5, 1]
)",
              "run.toml");
  CHECK(o.data == "a b.nc");
  CHECK(o.crop == std::vector<std::int64_t>{32, 64});
  CHECK(o.seed == 9);
  CHECK(o.steps == 10);
  CHECK(o.lr == 1.0);
  CHECK(o.betas == std::vector<double>{0.5, 1.0});
  CHECK(s.given("train.steps"));
  CHECK_FALSE(s.given("threads"));
  s.set("train.steps", "20");
  s.set("train.lr", "2.5e-4");
  s.set("train.resume", "true");
  s.set("crop", "[1, 2,3]");
  s.set("periodic", "lon,x");
  s.set("data", "");
  CHECK(o.steps == 20);
  CHECK(o.lr == 2.5e-4);
  CHECK(o.resume);
  CHECK(o.crop == std::vector<std::int64_t>{1, 2, 3});
  CHECK(o.periodic == std::vector<std::string>{"lon", "x"});
  CHECK(o.data.empty());
  s.set("crop", "");
  CHECK(o.crop.empty());
  CHECK(s.get("train.lr") == "0.00025");
}

TEST_CASE("what is wrong is said, and nothing changes") {
  Options o;
  Settings s = settings_for(o);
  const auto says = [&](const std::string& text, const std::string& what) {
    CHECK_THROWS_WITH(s.load_text("threads = 9\n" + text, "run.toml"), Catch::Contains(what));
    CHECK_THROWS_AS(s.load_text("threads = 9\n" + text, "run.toml"), UsageError);
    CHECK(o.threads == 2);
  };
  says("[train]\nstep = 5",
       "run.toml:3: unknown setting \"train.step\". Did you mean \"train.steps\"?");
  says("setps = 5", "Did you mean \"train.steps\"?");
  says("lr = 5", "Did you mean \"train.lr\"?");
  says("nothing_like_it = 5", "unknown setting \"nothing_like_it\".");
  says("[train]\nsteps = 5.0", "run.toml:3: setting \"train.steps\": must be of type integer.");
  says("[train]\nsteps = [5]", "must be of type integer");
  says("[train]\nsteps = 0", "must be at least 1");
  says("[train]\nlr = 1.5", "must be between 0 and 1");
  says("[train]\nlr = nan", "must be between 0 and 1");
  says("[train]\nadam.betas = [0.5, 2]", "must be between 0 and 1");
  says("[train]\nschedule = \"cosin\"",
       "must be one of constant, cosine. Did you mean \"cosine\"?");
  says("[train]\nresume = 1", "must be of type true or false");
  says("crop = 5", "must be of type list of integers");
  says("crop = [5, \"a\"]", "must be of type integer");
  says("crop = [[5]]", "neither");
  says("data = 2020-01-01", "neither");
  says("train = 5", "unknown setting \"train\"");
  says("[data]\nx = 1", "unknown setting \"data.x\"");
  says("seed = -1", "is out of range");
  says("a = = 3", "run.toml:2: not valid TOML");
  says("seed = 1\nseed = 2", "not valid TOML");
  CHECK_THROWS_WITH(s.set("train.stpes", "5"), Catch::Contains("Did you mean \"train.steps\"?"));
  CHECK_THROWS_WITH(s.set("train.steps", "5x"),
                    Catch::Contains("must be of type integer (given: \"5x\")"));
  CHECK_THROWS_AS(s.set("train.steps", ""), UsageError);
  CHECK_THROWS_AS(s.set("seed", "18446744073709551615"), UsageError);
  CHECK_THROWS_AS(s.set("train.resume", "2"), UsageError);
  CHECK_THROWS_AS(s.set("data", "\xff"), UsageError);
  CHECK_THROWS_AS(s.load("/nonexistent/run.toml"), IoError);
  CHECK(o.steps == 1000);

  bool b = false;
  CHECK_THROWS_AS(s.add("threads", b, ""), UsageError);
  CHECK_THROWS_AS(s.add("threads.x", b, ""), UsageError);
  CHECK_THROWS_AS(s.add("train", b, ""), UsageError);
  CHECK_THROWS_AS(s.add("a..b", b, ""), UsageError);
  CHECK_THROWS_AS(s.add("a b", b, ""), UsageError);
}

TEST_CASE("the saved file names every setting and explains it") {
  Options o;
  const Settings s = settings_for(o);
  CHECK(s.toml() == R"(# File with the field.
# NetCDF.
data = "relief.nc"
# Threads.
threads = 2
# Random key.
seed = 7
# Points.
crop = [256, 256]
# Dimensions.
periodic = []

[train]
# Optimiser steps.
steps = 1000
# Learning rate.
lr = 0.001
# Go on.
resume = false
# Learning rate over time.
schedule = "cosine"

[train.adam]
# Decay of the moments.
betas = [0.9, 0.999]
)");
  const auto entries = s.entries();
  REQUIRE(entries.size() == 10);
  CHECK(entries[1].key == "train.steps");
  CHECK(entries[1].standard == "1000");
  CHECK(entries[1].type == "integer");
  CHECK(entries[3].flag);
  CHECK(entries[4].choices.size() == 2);
}

TEST_CASE("every value survives the file exactly") {
  const TempDir dir;
  const auto seed = std::random_device{}();
  std::cout << "settings seed " << seed << "\n";
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const double special[] = {
      0.0,      -0.0,      3.0, -1e20, 1e-5, 5e-324,     1.7976931348623157e308,
      INFINITY, -INFINITY, NAN, 0.1,   1e16, 123456789.0};
  struct Values {
    double d = 0;
    std::int64_t i = 0;
    std::string t;
    std::vector<double> ds;
    std::vector<std::int64_t> is;
    std::vector<std::string> ts;
    void declare(Settings& s) {
      s.add("d", d, "")
          .add("a.i", i, "")
          .add("a.t", t, "")
          .add("a.b.ds", ds, "")
          .add("is", is, "")
          .add("ts", ts, "");
    }
  };
  const auto number = [&]() -> double {
    if (random() % 3 == 0) return special[random() % std::size(special)];
    return std::bit_cast<double>(random());
  };
  const auto integer = [&] {
    const std::int64_t ends[] = {0, -1, std::numeric_limits<std::int64_t>::min(),
                                 std::numeric_limits<std::int64_t>::max()};
    return random() % 2 ? ends[random() % 4] : static_cast<std::int64_t>(random());
  };
  const auto text = [&] {
    const char* const pieces[] = {"\"",
                                  "\\",
                                  "\n",
                                  "\t",
                                  "\r",
                                  "\x7f",
                                  "\x01",
                                  "#",
                                  "'",
                                  "]",
                                  "=",
                                  "\xc3\xa9",
                                  "\xf0\x9f\x8c\x8d",
                                  "abc",
                                  " ",
                                  "\\u0041"};
    std::string s;
    for (auto n = random() % 8; n > 0; --n) s += pieces[random() % std::size(pieces)];
    if (random() % 5 == 0) s += '\0';
    return s;
  };
  const auto same = [](double a, double b) {
    return (std::isnan(a) && std::isnan(b)) ||
           std::bit_cast<std::int64_t>(a) == std::bit_cast<std::int64_t>(b);
  };
  for (int repeat = 0; repeat < 300; ++repeat) {
    Values a;
    a.d = number();
    a.i = integer();
    a.t = text();
    for (auto n = random() % 4; n > 0; --n) {
      a.ds.push_back(number());
      a.is.push_back(integer());
      a.ts.push_back(text());
    }
    Settings from;
    a.declare(from);
    from.save(dir / "config.toml");
    Values b;
    Settings to;
    b.declare(to);
    to.load(dir / "config.toml");
    INFO(from.toml());
    REQUIRE(same(a.d, b.d));
    REQUIRE(a.i == b.i);
    REQUIRE(a.t == b.t);
    REQUIRE(a.is == b.is);
    REQUIRE(a.ts == b.ts);
    REQUIRE(a.ds.size() == b.ds.size());
    for (std::size_t k = 0; k < a.ds.size(); ++k) REQUIRE(same(a.ds[k], b.ds[k]));
    CHECK(to.toml() == from.toml());
  }
  CHECK(dir.list().size() == 1);
}
