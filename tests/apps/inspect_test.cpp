// ranks: none
#include <algorithm>
#include <regex>

#include "program.hpp"

namespace tessera::test {

TEST_CASE("a plan says what a training then counts") {
  const TemporaryFolder at;
  const std::vector<Words> cases = {{"h=2,w=2"},
                                    {"data=2,h=2"},
                                    {"data=2,h=2", "--shard", "zero1"},
                                    {"data=2,h=2", "--shard", "zero3"},
                                    {"data=2,h=2", "--shard", "zero2", "--tensor", "h"}};
  for (std::size_t c = 0; c < cases.size(); ++c) {
    const std::string mesh = cases[c][0];
    const std::string run = str("plan-", c);
    Words words = {"--mesh"};
    words.insert(words.end(), cases[c].begin(), cases[c].end());
    const Outcome trained = tessera(at, 4, train(at, run, words));
    INFO("case " << c);
    INFO(trained.output);
    REQUIRE(trained.code == 0);
    const auto columns =
        io::read_json_lines(at / run + "/metrics.jsonl", {"comm_bytes", "peak_bytes"});

    const Outcome planned =
        tessera(at, 0,
                {"plan", "unet", "--size", "32,32", "--config", at / run + "/config.toml", "--mesh",
                 mesh, "--json", at / "plan.json"});
    INFO(planned.output);
    REQUIRE(planned.code == 0);
    CHECK(planned.output.find("up.0.blocks.0.conv1") != std::string::npos);
    std::smatch bytes;
    REQUIRE(std::regex_search(planned.output, bytes,
                              std::regex("all 4 ranks: [0-9]+ messages, .* \\(([0-9]+) bytes\\)")));
    double peak = 0.0;
    const std::string json = read_file(at / "plan.json");
    const std::regex number("\"peak_bytes\": ([0-9]+)");
    for (std::sregex_iterator it(json.begin(), json.end(), number), end; it != end; ++it)
      peak = std::max(peak, std::stod((*it)[1]));
    for (std::size_t step = 1; step < columns[0].size(); ++step) {
      CHECK(columns[0][step] == std::stod(bytes[1]));
      CHECK(columns[1][step] == Approx(peak).epsilon(0.05));
    }
  }
  const Outcome checked = tessera(at, 4,
                                  {"plan", "unet", "--size", "16,16,8", "--factor", "2", "--base",
                                   "4", "--mesh", "h=2,w=2", "--check"});
  INFO(checked.output);
  CHECK(checked.code == 0);
  CHECK(checked.output.find("check: messages and bytes equal") != std::string::npos);
  const Outcome large = tessera(at, 0,
                                {"plan", "unet", "--size", "65536,65536", "--base", "4", "--mesh",
                                 "h=40,w=25", "--batch", "1"});
  INFO(large.output);
  CHECK(large.code == 0);
  CHECK(large.output.find("that stand for all 1000") != std::string::npos);
}

TEST_CASE("compare says whether a mesh computes what one rank does") {
  const TemporaryFolder at;
  const Words words = {"compare", "unet",    "--size", "32,48",  "--base",
                       "4",       "--batch", "2",      "--mesh", "h=2,w=2"};
  const Outcome same = tessera(at, 4, words);
  INFO(same.output);
  CHECK(same.code == 0);
  CHECK(same.output.find("h=2 w=2 and one rank agree") != std::string::npos);
  Words spread = words;
  for (const char* word : {"--shard", "zero3"}) spread.emplace_back(word);
  const Outcome other = tessera(at, 4, spread);
  INFO(other.output);
  CHECK(other.code == 0);
  for (const char* word : {"--tensor", "h", "--precision", "f64"}) spread.emplace_back(word);
  const Outcome split = tessera(at, 4, spread);
  INFO(split.output);
  CHECK(split.code == 0);
  CHECK(split.says("h=2 w=2 and one rank agree"));
  CHECK(split.says("compared: gradients and weights"));
  Words strict = words;
  for (const char* word : {"--tolerance", "1e-12"}) strict.emplace_back(word);
  const Outcome different = tessera(at, 4, strict);
  INFO(different.output);
  CHECK(different.code == 1);
  CHECK(different.output.find("first difference: step 0: ") != std::string::npos);
}

TEST_CASE("what plan and compare refuse") {
  const TemporaryFolder at;
  const auto check = [&](int ranks, const Words& words, const std::string& text) {
    const Outcome o = tessera(at, ranks, words);
    INFO(o.output);
    CHECK(o.code == 2);
    CHECK(o.output.find(text) != std::string::npos);
    CHECK(o.output.find(text) == o.output.rfind(text));
  };
  check(0, {"plan", "unet", "--size", "30,32"}, "multiple of data.factor");
  check(0, {"plan", "unet", "--size", "32,32", "--mesh", "h"}, "h=2,w=2");
  check(0, {"plan", "unet", "--size", "32x32x32x32"}, "1 to 3 dimensions");
  check(2, {"compare", "unet", "--size", "32x32", "--mesh", "h=3"}, "describe 3 ranks");
  check(0, {"compare", "vnet", "--size", "32,32"}, "vnet");
}

}  // namespace tessera::test
