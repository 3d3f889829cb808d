// ranks: none
// plan --ranks: meshes proposed for a model, a size and a memory, and their prediction beside
// steps.
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <tessera/core/memory.hpp>

#include "program.hpp"

namespace tessera::test {
namespace {

using Json = nlohmann::json;

constexpr const char* kUnet = "plan unet --size 64x64 --base 4 --multipliers 1,2 --batch 2 ";

}  // namespace

TEST_CASE("proposals fit the memory and are ordered by time") {
  const TemporaryFolder at;
  const auto propose = [&](const std::string& more) {
    const Outcome o = program(at, "plan unet --size 256x192 --base 4 --multipliers 1,2 --batch 2 " +
                                      more + " --ranks 8 --scale-to 0 --json " + at / "p.json");
    INFO(o.output);
    REQUIRE(o.code == 0);
    return Json::parse(read_file(at / "p.json")).at("proposals");
  };
  const Json all = propose("");
  REQUIRE(all.size() >= 4);
  std::int64_t least = all[0].at("peak_bytes");
  std::int64_t most = least;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0) CHECK(all[i - 1].at("seconds") <= all[i].at("seconds"));
    least = std::min<std::int64_t>(least, all[i].at("peak_bytes"));
    most = std::max<std::int64_t>(most, all[i].at("peak_bytes"));
    CHECK(all[i].at("efficiency").get<double>() > 0.0);
    CHECK(all[i].at("compute_seconds").get<double>() > 0.0);
    std::int64_t bytes = 0;
    for (const auto& [axes, sent] : all[i].at("by_axes").items())
      bytes += sent.at("bytes").get<std::int64_t>();
    CHECK(bytes == all[i].at("bytes"));
    int ranks = 1;
    const std::string mesh = all[i].at("mesh");
    const std::regex size("=([0-9]+)");
    for (std::sregex_iterator it(mesh.begin(), mesh.end(), size), end; it != end; ++it)
      ranks *= std::stoi((*it)[1]);
    CHECK(ranks == 8);
  }
  for (const std::int64_t limit : {most, most - 1, least}) {
    const auto fit = std::count_if(all.begin(), all.end(), [&](const Json& p) {
      return p.at("peak_bytes").get<std::int64_t>() <= limit;
    });
    if (fit == 0) continue;
    const Json few = propose("--memory " + std::to_string(limit));
    CHECK(std::ssize(few) == fit);
    for (const Json& p : few) CHECK(p.at("peak_bytes").get<std::int64_t>() <= limit);
  }
  // A slow network makes communication dear, a fast one hides it.
  const Json slow = propose("--latency 10ms --bandwidth 1MB/s");
  CHECK(slow[0].at("exposed_seconds").get<double>() >
        10.0 * all[0].at("exposed_seconds").get<double>());
}

TEST_CASE("scaling to 16,384 ranks as tables and pictures") {
  const TemporaryFolder at;
  const Outcome o = program(
      at, "plan unet --size 512x512 --base 4 --multipliers 1,2 --batch 1 --ranks 64 --pictures " +
              at / "pictures --json " + at / "p.json");
  INFO(o.output);
  REQUIRE(o.code == 0);
  CHECK(o.says("mpiexec -n 64 tessera train unet"));
  CHECK(o.says("strong scaling, predicted: 512x512"));
  const Json plan = Json::parse(read_file(at / "p.json"));
  for (const char* const mode : {"strong", "weak"}) {
    INFO(mode);
    const Json& rows = plan.at(mode);
    REQUIRE(rows.size() == 15);
    CHECK(rows.back().at("ranks") == 16384);
    CHECK(rows[0].at("efficiency") == 1.0);
    CHECK(rows.back().at("efficiency").get<double>() < 1.0);
  }
  // Strong: less and less memory; weak: always the same.
  const auto peak = [&](const char* mode, std::size_t i) {
    return plan.at(mode)[i].at("peak_bytes").get<double>();
  };
  CHECK(peak("strong", 8) < 0.1 * peak("strong", 0));
  CHECK(peak("weak", 14) < 2.0 * peak("weak", 6));
  CHECK(std::filesystem::exists(at / "pictures/plan.png"));
  CHECK(read_file(at / "pictures/plan.svg").find("Predicted efficiency") != std::string::npos);
}

TEST_CASE("what is proposed is what steps on it count") {
  const TemporaryFolder at;
  struct Case {
    int ranks;
    std::string line;
  };
  const std::string vit = "plan vit --size 32x32 --channels 16 --depth 1 --heads 2 --batch 2 ";
  const std::vector<Case> cases = {
      {1, kUnet},
      {2, kUnet},
      {4, kUnet},
      {8, kUnet},
      {16, kUnet},
      {2, vit},
      {4, vit + "--shard zero2 --tensor h "},
      {4, "plan swin --size 32x32 --batch 1 "},
      {2,
       "plan mace --size 2x2x1 --batch_size 2 --num_channels 4 --max_ell 2 --correlation 2 "
       "--radial_MLP 8 "},
  };
  for (const Case& c : cases) {
    const Outcome o =
        program(at, c.line + "--check --scale-to 0 --ranks " + std::to_string(c.ranks), c.ranks);
    INFO(c.ranks << ": " << c.line << "\n" << o.output);
    CHECK(o.code == 0);
    CHECK(o.count("check: messages and bytes equal") == 1);
    CHECK(o.says(c.ranks > 1 ? "network, measured" : "network, assumed"));
    std::smatch time;
    REQUIRE(std::regex_search(
        o.output, time,
        std::regex("predicted ([0-9.]+) \\([0-9.]+ exposed\\), measured ([0-9.]+)")));
    CHECK(std::stod(time[1]) > 0.0);
    CHECK(std::stod(time[2]) > 0.0);
  }
}

TEST_CASE("parameters are shared and split where that is what fits") {
  const TemporaryFolder at;
  const auto propose = [&](const std::string& more, int processes) {
    return program(at,
                   kUnet + ("--ranks 2 --scale-to 2 --rows 100 --json " + at / "p.json " + more),
                   processes);
  };
  const Outcome all = propose("", 0);
  INFO(all.output);
  REQUIRE(all.code == 0);
  std::map<std::string, std::int64_t> memory;  // by mesh and spread
  const Json proposals = Json::parse(read_file(at / "p.json"));
  for (const Json& p : proposals.at("proposals")) {
    const auto word = [&](const char* key) { return p.at(key).get<std::string>(); };
    memory[word("mesh") + " " + word("shard") + " " + word("tensor")] = p.at("peak_bytes");
  }
  for (const char* const mesh : {"data=2", "h=2"}) {
    INFO(mesh);
    for (const char* const less : {" zero1 ", " zero2 ", " zero3 "})
      CHECK(memory.at(mesh + std::string(less)) < memory.at(mesh + std::string(" none ")));
    CHECK(memory.at(mesh + std::string(" zero3 ")) < memory.at(mesh + std::string(" zero1 ")));
  }
  for (const char* const shard : {"none", "zero1", "zero2", "zero3"})
    CHECK(memory.contains(str("h=2 ", shard, " h")));
  CHECK_FALSE(memory.contains("h=1,w=2 zero3 "));  // more cut surface than h=2

  // Room for less than what any mesh needs with whole parameters.
  std::int64_t whole = std::numeric_limits<std::int64_t>::max();
  for (const auto& [choice, bytes] : memory)
    if (choice.ends_with(" none ")) whole = std::min(whole, bytes);
  const Outcome few = propose("--check --memory " + std::to_string(whole - 1), 2);
  INFO(few.output);
  CHECK(few.code == 0);
  CHECK(few.says(" --shard zero"));
  CHECK(few.count("check: messages and bytes equal") == 1);
  const Json fit = Json::parse(read_file(at / "p.json"));
  for (const Json& p : fit.at("proposals")) CHECK(p.at("peak_bytes") < whole);
  for (const Json& row : fit.at("strong"))
    if (row.at("ranks") == 2) CHECK(row.at("peak_bytes") < whole);

  // What is given stays.
  const Outcome given = propose("--shard zero1", 0);
  INFO(given.output);
  REQUIRE(given.code == 0);
  const Json kept = Json::parse(read_file(at / "p.json"));
  for (const Json& p : kept.at("proposals")) CHECK(p.at("shard") == "zero1");
  CHECK(given.count("--shard zero1") == 1);
}

TEST_CASE("what the planner refuses, once for all ranks") {
  const TemporaryFolder at;
  const auto check = [&](int ranks, const std::string& line, const std::string& text) {
    const Outcome o = program(at, line, ranks);
    INFO(o.output);
    CHECK(o.code == 2);
    CHECK(o.count(text) == 1);
  };
  const std::string unet = kUnet;
  for (const int processes : {0, 2}) {
    const Outcome o = program(at, unet + "--ranks 2 --memory 180KiB --scale-to 0", processes);
    INFO(o.output);
    CHECK(o.code == 2);
    CHECK(o.count("no mesh of 2 ranks fits unet of 64x64 into 180.0 KiB") == 1);
    std::smatch larger;
    REQUIRE(std::regex_search(o.output, larger, std::regex("Give --ranks ([0-9]+)")));
    const Outcome fits =
        program(at, unet + "--memory 180KiB --scale-to 0 --ranks " + larger[1].str(), processes);
    INFO(fits.output);
    CHECK(fits.code == 0);
  }
  check(0, unet + "--ranks 2 --memory 10KB", "weights and optimiser state");
  check(0, unet + "--ranks 10007", "no mesh of 10007 ranks cuts");
  check(2, unet + "--ranks 4 --check", "2 processes of this job");
  check(0, unet + "--ranks 2 --latency 2", "Write for example 2us");
  check(0, unet + "--ranks 2 --bandwidth fast", "Write for example 12.5GB/s");
  check(0, unet + "--ranks 2 --memory much", "much");
  const Outcome o = program(at, unet + "--ranks 2 --mesh h=2");
  CHECK(o.code == 2);
}

}  // namespace tessera::test
