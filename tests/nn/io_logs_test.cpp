// ranks: 1 3
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <tessera/core/error.hpp>
#include <tessera/core/mesh.hpp>
#include <tessera/nn/io/jsonl.hpp>
#include <tessera/nn/io/progress.hpp>

#include "io_support.hpp"

using namespace tessera;
using tessera::test::TempDir;

TEST_CASE("only the first process writes logs") {
  const TempDir dir;
  std::ostringstream out;
  {
    io::JsonLines lines(dir / "m.jsonl");
    lines.write({{"step", std::int64_t{1}}});
    io::Progress progress(10, {.bar = false, .out = &out});
    progress.update(10);
  }
  CHECK(dir.list().size() == (process().rank == 0 ? 1 : 0));
  CHECK(out.str().empty() == (process().rank != 0));
}

TEST_CASE("metrics read back as the same bits") {
  if (process().rank != 0) return;
  const TempDir dir;
  std::mt19937_64 random(1);
  std::vector<double> values = {0.0, -0.0, 0.1, 1.0, 1e300, 5e-324, NAN, INFINITY, -INFINITY};
  for (int i = 0; i < 200; ++i) values.push_back(std::bit_cast<double>(random()));
  {
    io::JsonLines lines(dir / "m.jsonl");
    for (std::size_t i = 0; i < values.size(); ++i)
      lines.write({{"step", static_cast<std::int64_t>(i)},
                   {"loss", values[i]},
                   {"name", std::string("a\"\n\xff")},
                   {"ok", true}});
    lines.write({});
  }
  const auto columns = io::read_json_lines(dir / "m.jsonl", {"step", "loss"});
  REQUIRE(columns[1].size() == values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    CHECK(columns[0][i] == static_cast<double>(i));
    if (std::isnan(values[i])) {
      CHECK(std::isnan(columns[1][i]));
    } else {
      CHECK(std::bit_cast<std::int64_t>(columns[1][i]) == std::bit_cast<std::int64_t>(values[i]));
    }
  }
  const std::string text = test::read_file(dir / "m.jsonl");
  CHECK(text.substr(0, text.find('\n')) ==
        "{\"step\": 0, \"loss\": 0.0, \"name\": \"a\\\"\\n\xef\xbf\xbd\", \"ok\": true}");
  CHECK(text.find("\"loss\": 0.10000000000000001") != std::string::npos);
}

TEST_CASE("resuming drops what came after the checkpoint") {
  if (process().rank != 0) return;
  const TempDir dir;
  const std::string path = dir / "m.jsonl";
  const auto steps = [&] { return io::read_json_lines(path, {"step"})[0]; };
  {
    io::JsonLines lines(path, 5);  // no file yet
    for (std::int64_t i = 1; i <= 6; ++i) lines.write({{"step", i}});
  }
  test::write_file(path, test::read_file(path) + "{\"step\": 7, \"lo");  // cut off
  CHECK(steps().size() == 6);
  {
    io::JsonLines lines(path, 4);
    CHECK(steps() == std::vector<double>{1, 2, 3, 4});
    lines.write({{"step", std::int64_t{5}}});
  }
  CHECK(steps() == std::vector<double>{1, 2, 3, 4, 5});
  {
    test::write_file(path, test::read_file(path) + "{\"step\": 7, \"lo");
    io::JsonLines lines(path, 100);  // only the broken line goes
    lines.write({{"step", std::int64_t{6}}});
  }
  CHECK(steps() == std::vector<double>{1, 2, 3, 4, 5, 6});
  CHECK(test::read_file(path).find("lo") == std::string::npos);
  io::JsonLines(path, 0);
  CHECK(test::read_file(path).empty());
  CHECK_THROWS_AS(io::JsonLines(dir / "none/m.jsonl"), IoError);
  CHECK_THROWS_AS(io::read_json_lines(dir / "none", {}), IoError);
}

TEST_CASE("a JSON file with nested objects") {
  if (process().rank != 0) return;
  const TempDir dir;
  io::write_json(dir / "e.json", {{"model.rmse", 97.25},
                                  {"model.land.rmse", 80.0},
                                  {"model.ocean.rmse", NAN},
                                  {"cubic.rmse", 0.1},
                                  {"points", std::int64_t{12}},
                                  {"name", std::string("x")}});
  const auto json = nlohmann::json::parse(test::read_file(dir / "e.json"));
  CHECK(json["model"]["rmse"] == 97.25);
  CHECK(json["model"]["land"]["rmse"] == 80.0);
  CHECK(json["model"]["ocean"]["rmse"] == "nan");
  CHECK(json["cubic"]["rmse"] == 0.1);
  CHECK(json["points"] == 12);
  CHECK(json.size() == 4);
  io::write_json(dir / "e.json", {});
  CHECK(nlohmann::json::parse(test::read_file(dir / "e.json")).empty());
}

TEST_CASE("progress in a log and on a terminal") {
  if (process().rank != 0) return;
  double now = 100;
  std::ostringstream out;
  {
    io::Progress log(
        20, {.label = "train", .first = 10, .interval = 5, .bar = false, .out = &out, .clock = [&] {
               return now;
             }});
    for (std::int64_t step = 11; step <= 20; ++step) {
      now += 2;
      log.update(step, "loss 0.5");
    }
  }
  CHECK(out.str() ==
        "train 11/20 (55 %)  2.00 s/step  0:18 left  loss 0.5\n"
        "train 14/20 (70 %)  2.00 s/step  0:12 left  loss 0.5\n"
        "train 17/20 (85 %)  2.00 s/step  0:06 left  loss 0.5\n"
        "train 20/20 (100 %)  2.00 s/step  took 0:20  loss 0.5\n");

  out.str("");
  {
    io::Progress bar(4, {.bar = true, .out = &out, .clock = [&] { return now; }});
    now += 0.05;
    bar.update(1);
    now += 0.01;
    bar.update(2);  // too early
    now += 0.44;
    bar.update(3);
  }
  CHECK(out.str() ==
        "\r[#######.....................] 1/4  20.00 steps/s  0:00 left\033[K"
        "\r[#####################.......] 3/4  6.00 steps/s  0:00 left\033[K\n");
  out.str("");
  io::Progress(0, {.bar = false, .out = &out}).update(0);
  CHECK(out.str().starts_with("0/0 (100 %)"));
  CHECK(io::format_seconds(83) == "1:23");
  CHECK(io::format_seconds(3725.4) == "1:02:05");
  CHECK(io::format_seconds(NAN) == "?");
}
