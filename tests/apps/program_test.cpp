// ranks: none
#include "program.hpp"

namespace tessera::test {

TEST_CASE("training gives the same losses on any mesh; evaluation and prediction work on others") {
  const TemporaryFolder at;
  REQUIRE(tessera(at, 0, train(at, "one")).code == 0);
  for (const auto& [ranks, mesh] : std::vector<std::pair<int, std::string>>{
           {2, "h=2"}, {2, "data=2"}, {3, "w=3"}, {4, "h=2,w=2"}}) {
    const std::string run = "on-" + mesh;
    const Outcome o = tessera(at, ranks, train(at, run, {"--mesh", mesh}));
    INFO(mesh << "\n" << o.output);
    REQUIRE(o.code == 0);
    const std::vector<double> one = losses(at, "one");
    const std::vector<double> many = losses(at, run);
    REQUIRE(many.size() == 6);
    for (std::size_t i = 0; i < 6; ++i) CHECK(many[i] == Approx(one[i]).epsilon(1e-4));
    CHECK(many.front() != many.back());
  }
  for (const char* file :
       {"config.toml", "checkpoints/step-000000006/index.json", "model.safetensors", "loss.png"}) {
    CHECK(std::filesystem::file_size(at / "one" + "/" + file) > 100);
  }

  // 6 steps of a warm-up of 50.
  const auto one = io::read_json_lines(at / "one/metrics.jsonl", {"lr", "grad_norm"});
  const auto on_two = io::read_json_lines(at / "on-h=2/metrics.jsonl", {"lr", "grad_norm"});
  REQUIRE(one[1].size() == 6);
  for (std::size_t step = 0; step < 6; ++step) {
    CHECK(one[0][step] == Approx(1e-2 * double(step + 1) / 50.0));
    CHECK(one[1][step] > 0.0);
    CHECK(on_two[0][step] == one[0][step]);
    CHECK(on_two[1][step] == Approx(one[1][step]).epsilon(1e-3));
  }

  const Outcome evaluated = tessera(at, 3, {"evaluate", at / "on-h=2", "--mesh", "w=3"});
  INFO(evaluated.output);
  REQUIRE(evaluated.code == 0);
  const std::string json = read_file(at / "on-h=2/evaluation.json");
  for (const char* word : {"model", "bicubic", "bilinear", "overall", "land", "ocean", "rmse"}) {
    CHECK(json.find(word) != std::string::npos);
  }
  CHECK(std::filesystem::exists(at / "on-h=2/prediction.png"));
  CHECK(tessera(at, 0, {"info", at / "one"}).output.find("stem.weight") != std::string::npos);

  REQUIRE(tessera(at, 2, {"predict", at / "one", "--coarsen", "--output", at / "a.nc"}).code == 0);
  REQUIRE(tessera(at, 2, {"predict", at / "one", "--output", at / "b.nc", "--mesh", "w=2"}).code ==
          0);
  CHECK(io::NetcdfReader(at / "a.nc").variable("relief").shape == Shape{48, 96});
  CHECK(io::NetcdfReader(at / "b.nc").variable("relief").shape == Shape{196, 384});
  CHECK(std::filesystem::exists(at / "b.png"));
}

TEST_CASE("a training that a signal stopped goes on as if nothing had happened") {
  const TemporaryFolder at;
  const Words more = {"--steps", "40"};
  REQUIRE(tessera(at, 0, train(at, "whole", more)).code == 0);

  Words words = train(at, "parts", more);
  words.insert(words.begin(), TESSERA_PROGRAM);
  const pid_t child = start(words, at / "output");
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto lines = [&] {
    const std::string text = read_file(at / "parts/metrics.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  };
  while (lines() < 3 && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(child, SIGTERM);
  const int code = wait_for(child);
  INFO(read_file(at / "output"));
  REQUIRE((code == 75 || code == 0));  // 0: it was faster than the signal
  if (code == 75) CHECK(losses(at, "parts").size() < 40);

  const Outcome again = tessera(at, 0, {"train", "unet", "--resume", "--out", at / "parts"});
  INFO(again.output);
  REQUIRE(again.code == 0);
  CHECK(losses(at, "parts") == losses(at, "whole"));
  CHECK(read_file(at / "parts/model.safetensors") == read_file(at / "whole/model.safetensors"));
}

TEST_CASE("a training with any optimiser is alike on any mesh, is planned and goes on") {
  const TemporaryFolder at;
  const std::string o = GENERATE("adam", "sgd", "rmsprop", "adagrad", "lion", "lamb", "muon");
  const Words more = {"--optimizer",    o,
                      "--lr",           o == "sgd" ? "0.5" : "1e-3",
                      "--final-lr",     o == "sgd" ? "0.5" : "1e-3",
                      "--warmup",       "0",
                      "--weight-decay", "0.01"};
  const auto with = [&](Words words) {
    words.insert(words.begin(), more.begin(), more.end());
    return words;
  };
  REQUIRE(tessera(at, 0, train(at, "one", more)).code == 0);
  const std::vector<double> one = losses(at, "one");
  CHECK(one.back() < one.front());
  REQUIRE(tessera(at, 2, train(at, "two", with({"--mesh", "h=2", "--shard", "zero1"}))).code == 0);
  const std::vector<double> two = losses(at, "two");
  REQUIRE(two.size() == one.size());
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(two[i] == Approx(one[i]).epsilon(1e-3));

  REQUIRE(tessera(at, 0, train(at, "parts", with({"--steps", "3"}))).code == 0);
  REQUIRE(
      tessera(at, 0, {"train", "unet", "--resume", "--steps", "6", "--out", at / "parts"}).code ==
      0);
  CHECK(losses(at, "parts") == one);

  // A plan has room for clipping, which these steps do not need.
  const Outcome checked = tessera(at, 2,
                                  {"plan", "unet", "--config", at / "one/config.toml", "--clip",
                                   "0", "--size", "32,32", "--mesh", "h=2", "--check"});
  INFO(checked.output);
  CHECK(checked.code == 0);
}

TEST_CASE("a training goes on with other numbers of processes") {
  const TemporaryFolder at;
  const Words more = {"--checkpoint-every", "2", "--keep", "3"};
  REQUIRE(tessera(at, 0, train(at, "whole", more)).code == 0);
  CHECK(checkpoints(at / "whole").size() == 3);
  Words first = more;
  first.insert(first.end(), {"--steps", "2", "--mesh", "h=2"});
  REQUIRE(tessera(at, 2, train(at, "parts", first)).code == 0);
  const Words resume = {"train", "unet", "--resume", "--out", at / "parts", "--steps"};
  const auto go_on = [&](int ranks, const char* steps, const char* mesh) {
    Words words = resume;
    words.insert(words.end(), {steps, "--mesh", mesh});
    const Outcome o = tessera(at, ranks, words);
    INFO(o.output);
    REQUIRE(o.code == 0);
  };
  go_on(4, "3", "h=2,w=2");
  go_on(3, "5", "w=3");
  go_on(1, "6", "h=1");
  CHECK(checkpoints(at / "parts").size() == 2);
  const std::vector<double> one = losses(at, "whole");
  const std::vector<double> many = losses(at, "parts");
  REQUIRE(many.size() == 6);
  for (std::size_t i = 0; i < 6; ++i) CHECK(many[i] == Approx(one[i]).epsilon(1e-4));
}

TEST_CASE("what goes wrong is said once, with an exit code") {
  const TemporaryFolder at;
  const auto check = [&](int ranks, const Words& words, int code, const std::string& text) {
    const Outcome o = tessera(at, ranks, words);
    INFO(o.output);
    CHECK(o.code == code);
    CHECK(o.output.find(text) != std::string::npos);
    CHECK(o.output.find(text) == o.output.rfind(text));
  };
  check(0, {"--help"}, 0, "Exit codes");
  check(2, {"info"}, 0, "processes  2");
  check(2, {"trian"}, 2, "subcommand");
  check(2, {"train", "unet", "--out", at / "x"}, 2, "--data");
  check(2, train(at, "x", {"--base", "many"}), 2, "base");
  check(2, train(at, "x", {"--mesh", "h=3"}), 2, "describe 3 ranks");
  check(0, train(at, "x", {"--mesh", "h"}), 2, "h=2,w=2");
  check(0, train(at, "x", {"--crop", "30"}), 2, "crop");
  std::ofstream(at / "bad.toml") << "[training]\nstpes = 3\n";
  check(0, train(at, "x", {"--config", at / "bad.toml"}), 2, "training.steps");
  check(2, {"train", "unet", "--data", at / "no.nc", "--out", at / "x"}, 74, "no.nc");
  check(2, {"evaluate", at / "x"}, 74, "model.safetensors");
  check(0, train(at, "x", {"--stpes", "3"}), 2, "Did you mean \"--steps\"?");
  check(0, {"evalute", at / "x"}, 2, "Did you mean \"evaluate\"?");
  std::ofstream(at / "bad.nc") << "no such data";
  check(2, {"train", "unet", "--data", at / "bad.nc", "--out", at / "x"}, 65, "bad.nc");
  check(2, {"train", "unet", "--data", at.data(), "--variable", "relif", "--out", at / "x"}, 65,
        "Did you mean \"relief\"?");
  REQUIRE(tessera(at, 0, train(at, "done")).code == 0);
  check(0, train(at, "done"), 2, "--resume");
}

}  // namespace tessera::test
