// ranks: none
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/program.hpp"

namespace tessera::test {
namespace {

using Json = nlohmann::json;

/// Events of one kind in a trace.
std::vector<Json> events(const Json& trace, const std::string& category) {
  std::vector<Json> found;
  for (const Json& e : trace.at("traceEvents"))
    if (e.value("cat", "") == category) found.push_back(e);
  return found;
}

/// What each row of a viewer needs: complete events that nest.
void check_nesting(const Json& trace) {
  std::map<int, std::vector<std::pair<double, double>>> open;
  double last = 0.0;
  int complete = 0;
  for (const Json& e : trace.at("traceEvents")) {
    if (e.at("ph") != "X") continue;
    ++complete;
    const double start = e.at("ts");
    const double end = start + e.at("dur").get<double>();
    REQUIRE(start >= last);
    REQUIRE(end >= start);
    last = start;
    auto& stack = open[e.at("tid")];
    constexpr double kRounding = 2e-3;  // times are written in thousandths
    while (!stack.empty() && stack.back().second <= start + kRounding) stack.pop_back();
    if (!stack.empty()) REQUIRE(end <= stack.back().second + kRounding);
    stack.emplace_back(start, end);
  }
  CHECK(complete > 50);
}

double flops(const std::vector<Json>& ops, const std::string& name) {
  double sum = 0.0;
  for (const Json& e : ops)
    if (e.at("name") == name) sum += e.at("args").value("flops", 0.0);
  return sum;
}

}  // namespace

TEST_CASE("a profiled training leaves a trace for each rank and the table of the costliest ops") {
  const TemporaryFolder at;
  std::map<std::string, double> alone;
  for (const auto& [ranks, mesh] :
       std::vector<std::pair<int, std::string>>{{1, "h=1"}, {2, "w=2"}, {4, "h=2,w=2"}}) {
    const std::string run = str("on", ranks);
    const Outcome o =
        tessera(at, ranks, train(at, run, {"--mesh", mesh, "--profile", "--profile-steps", "2"}));
    INFO(mesh << "\n" << o.output);
    REQUIRE(o.code == 0);

    std::map<std::string, double> all;
    std::size_t calls = 0;
    for (int r = 0; r < ranks; ++r) {
      const Json trace = Json::parse(read_file(at / run + str("/profile/rank", r, ".json")));
      check_nesting(trace);
      const std::vector<Json> ops = events(trace, "op");
      CHECK((calls == 0 || calls == ops.size()));
      calls = ops.size();
      for (const char* name : {"conv", "conv_transpose", "conv_weight_grad"}) {
        CHECK(flops(ops, name) > 0.0);
        all[name] += flops(ops, name);
      }
      const auto conv = std::find_if(ops.begin(), ops.end(),
                                     [](const Json& e) { return e.at("name") == "conv"; });
      CHECK(conv->at("pid") == r);
      CHECK(conv->at("args").at("bytes") > 0);
      CHECK(std::any_of(ops.begin(), ops.end(), [](const Json& e) {
        return e.at("name") == "conv_weight_grad" &&
               e.at("args").value("layer", "") == "blocks.0.conv1";  // in backward, too
      }));
      CHECK(conv->at("args").at("layouts").get<std::string>().find("f32 [2") == 0);
      CHECK(events(trace, "phase").size() == 8);  // four in each of two steps
      CHECK(events(trace, "wait").empty() == (ranks == 1));
      const std::vector<Json> transfers = events(trace, "transfer");
      CHECK(transfers.empty() == (ranks == 1));
      for (const Json& e : transfers) CHECK(e.at("tid") > 1);
      const Json& list = trace.at("traceEvents");
      CHECK(std::any_of(list.begin(), list.end(), [](const Json& e) {
        return e.at("ph") == "C" && e.at("name") == "memory" &&
               e.at("args").at("bytes in use").get<std::int64_t>() > 10000;
      }));
      CHECK(std::any_of(list.begin(), list.end(), [&](const Json& e) {
        return e.at("name") == "process_name" && e.at("args").at("name") == str("rank ", r);
      }));
    }
    CHECK_FALSE(std::filesystem::exists(at / run + str("/profile/rank", ranks, ".json")));
    // Ranks share the work out without doing any of it twice.
    if (ranks == 1) alone = all;
    for (const auto& [name, count] : alone) CHECK(all[name] == Approx(count).epsilon(1e-12));

    const std::string table = read_file(at / run + "/profile/ops.txt");
    CHECK(o.output.find(table) != std::string::npos);
    CHECK(table.find("2 steps of") != std::string::npos);
    for (const char* word : {"GFLOP/s", "GB/s", "conv_transpose", "of peak", "waiting"})
      CHECK(table.find(word) != std::string::npos);
    CHECK(std::count(table.begin(), table.end(), '\n') == 14);  // two of summary, a gap, head, ten
  }
}

TEST_CASE("without --profile nothing is recorded, and a profile does not change the result") {
  const TemporaryFolder at;
  REQUIRE(tessera(at, 2, train(at, "plain", {})).code == 0);
  CHECK_FALSE(std::filesystem::exists(at / "plain/profile"));
  REQUIRE(tessera(at, 2, train(at, "watched", {"--profile"})).code == 0);
  CHECK(std::filesystem::exists(at / "watched/profile/rank1.json"));
  CHECK(read_file(at / "plain/model.safetensors") == read_file(at / "watched/model.safetensors"));

  REQUIRE(tessera(at, 0, train(at, "short", {"--profile", "--steps", "1"})).code == 0);
  CHECK(read_file(at / "short/profile/ops.txt").find("1 steps of") != std::string::npos);

  std::ofstream(at / "file") << "in the way";
  std::filesystem::create_directories(at / "blocked");
  std::ofstream(at / "blocked/profile") << "in the way";
  CHECK(tessera(at, 2, train(at, "blocked", {"--profile"})).code != 0);
}

}  // namespace tessera::test
