// ranks: none
// plan, compare and bench scaling of a potential over cut atoms.
#include <nlohmann/json.hpp>

#include "program.hpp"

namespace tessera::test {
namespace {

using Json = nlohmann::json;

constexpr const char* kSmall =
    " --num_channels 4 --max_ell 2 --correlation 2 --radial_MLP 8 --loss stress ";

}  // namespace

TEST_CASE("a plan of mace is what steps count, with the ghosts of later layers") {
  const TemporaryFolder at;
  for (const auto& [ranks, mesh] :
       {std::pair(2, "x=2"), std::pair(3, "x=3"), std::pair(4, "data=2,x=2")}) {
    const Outcome o = program(
        at,
        std::string("plan mace --size 2x2x2 --batch_size 3") + kSmall + "--check --mesh " + mesh,
        ranks);
    INFO(mesh << ": " << o.output);
    CHECK(o.code == 0);
    CHECK(o.says("check: messages and bytes equal"));
  }
  const Outcome o = program(at, std::string("plan mace --size 4x3x3 --batch_size 1") + kSmall +
                                    "--mesh x=2,y=2,z=2 --json " + at / "plan.json");
  INFO(o.output);
  REQUIRE(o.code == 0);
  const Json plan = Json::parse(read_file(at / "plan.json"));
  const auto sent = [&](const std::string& name) {
    std::int64_t bytes = 0;
    for (const Json& rank : plan.at("plans")) {
      for (const Json& layer : rank.at("layers"))
        if (layer.at("layer") == name) bytes += layer.at("forward").at("bytes").get<std::int64_t>();
    }
    return bytes;
  };
  CHECK(plan.at("plans").size() == 8);
  CHECK(sent("interactions.0") == 0);  // senders are products of the species table
  // Rows of (L + 1)^2 channels in f64, whole numbers of ghosts.
  CHECK(sent("interactions.1") > 0);
  CHECK(sent("interactions.1") % (4 * 4 * 8) == 0);
}

TEST_CASE("compare trains mace on a mesh and on one rank") {
  const TemporaryFolder at;
  for (const auto& [ranks, mesh] :
       {std::pair(2, "x=2"), std::pair(2, "data=2"), std::pair(4, "data=2,x=2")}) {
    const std::string words = std::string("compare mace --size 2x2x1 --batch_size 3 --steps 2") +
                              kSmall + "--mesh " + mesh;
    const Outcome o = program(at, words, ranks);
    INFO(mesh << ": " << o.output);
    CHECK(o.code == 0);
    CHECK(o.says(" and one rank agree: "));
    const Outcome strict = program(at, words + " --tolerance 1e-18", ranks);
    CHECK(strict.code == 1);
    CHECK(strict.says("first difference: step 0: "));
  }
}

TEST_CASE("bench scaling trains mace, the same on any mesh") {
  const TemporaryFolder at;
  const std::string bench =
      "bench scaling mace --width 4 --steps 2 --warmup 1 --precision f64 --out " +
      at / "lines.jsonl ";
  std::vector<Json> lines;
  for (const auto& [ranks, more] :
       {std::pair(0, "--size 2x2x2"), std::pair(2, "--size 2x2x2"), std::pair(2, "--weak --size 2"),
        std::pair(4, "--size 2x2x2 --batch 2 --mesh data=2,x=2")}) {
    const Outcome o = program(at, bench + more, ranks);
    INFO(o.output);
    REQUIRE(o.code == 0);
    lines.push_back(Json::parse(o.output));
  }
  CHECK(lines[0].at("voxels") == 72);
  CHECK(lines[2].at("voxels") == 36);
  CHECK(lines[3].at("voxels") == 144);
  CHECK(lines[0].at("sent_bytes") == 0);
  CHECK(lines[1].at("sent_bytes").get<std::int64_t>() > 0);
  CHECK(lines[1].at("loss").get<double>() ==
        Approx(lines[0].at("loss").get<double>()).epsilon(1e-9).scale(0));
  const Outcome report = program(at, "bench report " + at / "lines.jsonl --out " + at / "pictures");
  INFO(report.output);
  CHECK(report.code == 0);
  CHECK(report.says("mace strong, 2x2x2"));
}

TEST_CASE("what plan and compare of mace refuse") {
  const TemporaryFolder at;
  const auto check = [&](const std::string& line, int code, const std::string& text) {
    const Outcome o = program(at, line);
    INFO(o.output);
    CHECK(o.code == code);
    CHECK(o.count(text) == 1);
  };
  check("plan mace --size 2x2x2x2", 2, "1 to 3 dimensions");
  check("plan mace --size 2x2x2 --mesh x=2 --max_L 4", 2, "max_L 4 above max_ell 3");
  check("plan mace --size 2 --foundation_model " + at / "none.safetensors", 74, "none.safetensors");
}

}  // namespace tessera::test
