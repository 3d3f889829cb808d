// ranks: none
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/program.hpp"

namespace tessera::test {
namespace {

using Json = nlohmann::json;

Words bench(const TemporaryFolder& at, const Words& more) {
  Words words = {"bench",    "scaling", "unet",  "--width",         "4", "--steps", "3",
                 "--warmup", "1",       "--out", at / "lines.jsonl"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> lines;
  std::istringstream in(read_file(path));
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

/// A line as `bench scaling` prints it.
Json line(int ranks, double seconds, const std::string& mode = "strong") {
  return {{"benchmark", "scaling"},
          {"model", "unet"},
          {"mode", mode},
          {"size", "64x64"},
          {"width", 16},
          {"precision", "f32"},
          {"version", "1.2.3"},
          {"ranks", ranks},
          {"nodes", 1},
          {"mesh", "h=" + std::to_string(ranks)},
          {"threads", 1},
          {"cores_per_node", 4},
          {"voxels", mode == "weak" ? 4096 * ranks : 4096},
          {"seconds", seconds},
          {"seconds_low", 0.9 * seconds},
          {"seconds_high", 1.2 * seconds},
          {"exposed_seconds", 0.05 * seconds},
          {"exposed", {{"h", 0.05 * seconds}}},
          {"cpu_seconds", 4.096},
          {"wait_cpu_seconds", 0.0},
          {"sent_bytes", 2048},
          {"peak_bytes", 1048576}};
}

void write(const std::string& path, const std::vector<Json>& lines) {
  std::ofstream out(path);
  for (const Json& l : lines) out << l.dump() << "\n";
}

/// The row of the table that starts with `ranks`, words apart by single blanks.
std::string row(const std::string& table, const std::string& ranks, int occurrence = 0) {
  std::istringstream in(table);
  for (std::string text; std::getline(in, text);) {
    std::istringstream words(text);
    std::string word;
    std::string joined;
    while (words >> word) joined += (joined.empty() ? "" : " ") + word;
    if (joined.rfind(ranks + " ", 0) == 0 && occurrence-- == 0) return joined + " ";
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void script(const std::string& path, const std::string& text) {
  std::ofstream(path) << "#!/bin/bash\n" << text;
  chmod(path.c_str(), 0700);
}

}  // namespace

TEST_CASE("a scaling run prints one line of what its steps took, the same model on any mesh") {
  const TemporaryFolder at;
  struct Run {
    int ranks;
    Words more;
    std::string mesh;
    std::string domain;
  };
  const std::vector<Run> runs = {
      {0, {"--strong", "--size", "32x24"}, "h=1 w=1", "32x24"},
      {2, {"--size", "32x24"}, "h=2 w=1", "32x24"},
      {4, {"--size", "32x24", "--mesh", "h=2,w=2"}, "h=2 w=2", "32x24"},
      {2, {"--weak", "--size", "16x8"}, "h=2 w=1", "32x8"},
      {4, {"--weak", "--size", "16x8"}, "h=2 w=2", "32x16"},
      {4, {"--weak", "--size", "16x8", "--mesh", "data=2,h=2"}, "data=2 h=2", "32x8"},
      {2, {"--size", "8x8x16", "--precision", "f64"}, "d=1 h=1 w=2", "8x8x16"},
      {2, {"--size", "48"}, "w=2", "48"}};
  for (const Run& r : runs) {
    const Outcome o = tessera(at, r.ranks, bench(at, r.more));
    INFO(r.mesh << "\n" << o.output);
    REQUIRE(o.code == 0);
    CHECK(std::count(o.output.begin(), o.output.end(), '\n') == 1);
    const Json l = Json::parse(o.output);
    const int ranks = std::max(r.ranks, 1);
    CHECK(l.at("ranks") == ranks);
    CHECK(l.at("nodes") == 1);
    CHECK(l.at("mesh") == r.mesh);
    CHECK(l.at("domain") == r.domain);
    CHECK(l.at("steps") == 3);
    CHECK(l.at("seconds").get<double>() > 0.0);
    CHECK(l.at("seconds_low") <= l.at("seconds"));
    CHECK(l.at("seconds") <= l.at("seconds_high"));
    CHECK(l.at("cpu_seconds") >= l.at("wait_cpu_seconds"));
    CHECK(l.at("peak_bytes").get<double>() > 1000.0);
    CHECK((l.at("sent_bytes") == 0) == (ranks == 1));
    double exposed = 0.0;
    for (const auto& [axis, seconds] : l.at("exposed").items()) exposed += seconds.get<double>();
    CHECK(exposed == Approx(l.at("exposed_seconds").get<double>()).margin(1e-12));
    CHECK(l.at("exposed_seconds").get<double>() <=
          l.at("exposed_seconds_most").get<double>() * (1 + 1e-12));
    CHECK(l.at("loss").get<double>() > 0.0);
  }
  const std::vector<Json> lines = lines_of(at / "lines.jsonl");
  REQUIRE(lines.size() == runs.size());
  for (const int other : {1, 2}) {
    CHECK(lines[static_cast<std::size_t>(other)].at("loss").get<double>() ==
          Approx(lines[0].at("loss").get<double>()).epsilon(1e-4));
  }
  // On two axes, halos lie along each and sums over both.
  CHECK(lines[2].at("exposed").contains("h"));
  CHECK(lines[2].at("exposed").contains("w"));
  CHECK(lines[2].at("exposed").contains("h+w"));
  CHECK(lines[5].at("batch") == 2);
  CHECK(lines[5].at("voxels") == 2 * 32 * 8);

  const Outcome report =
      tessera(at, 2, {"bench", "report", at / "lines.jsonl", "--out", at / "pictures"});
  INFO(report.output);
  REQUIRE(report.code == 0);
  CHECK(has(report.output, "unet strong, 32x24, 768 elements"));
  CHECK(has(report.output, "unet weak, 16x8 per rank"));
  CHECK(read_file(at / "pictures/scaling.png").substr(1, 3) == "PNG");
  const std::string svg = read_file(at / "pictures/scaling.svg");
  CHECK(svg.rfind("<svg xmlns=", 0) == 0);
  CHECK(has(svg, "</svg>"));
  CHECK_FALSE(has(svg, "nan"));
  const std::string page = read_file(at / "pictures/scaling.html");
  CHECK(has(page, svg));
  CHECK(has(page, "&quot;benchmark&quot;:&quot;scaling&quot;"));
  for (const char* word : {"src=", "href=", "<script"}) CHECK_FALSE(has(page, word));
}

TEST_CASE("a profile of further steps does not enter the measurement") {
  const TemporaryFolder at;
  const Outcome o = tessera(
      at, 2, bench(at, {"--size", "16x16", "--profile", at / "seen", "--profile-steps", "2"}));
  INFO(o.output);
  REQUIRE(o.code == 0);
  CHECK(Json::parse(o.output.substr(0, o.output.find('\n'))).at("steps") == 3);
  CHECK(has(read_file(at / "seen/ops.txt"), "2 steps of"));
  for (const char* file : {"seen/rank0.json", "seen/rank1.json"})
    CHECK(Json::parse(read_file(at / file)).at("traceEvents").size() > 100);
}

TEST_CASE("a report computes speed-up and efficiency from its lines") {
  const TemporaryFolder at;
  write(at / "a.jsonl", {line(1, 0.8), line(4, 0.25), line(8, 0.2)});
  // Of three equal runs the median counts, of two meshes the faster one is on the curve.
  Json slow = line(2, 0.9);
  slow["mesh"] = "w=2";
  write(at / "b.jsonl", {line(2, 0.3), line(2, 0.4), line(2, 7.0), slow, line(1, 0.5, "weak"),
                         line(2, 0.625, "weak")});
  const Outcome o =
      tessera(at, 0, {"bench", "report", at / "a.jsonl", at / "b.jsonl", "--out", at / "."});
  INFO(o.output);
  REQUIRE(o.code == 0);
  CHECK(has(row(o.output, "1"), " 800.00 720.00 960.00 1.00 100 % 5.0 % h 40.00 ms 1000000.0 "));
  CHECK(has(row(o.output, "2"), "h=2 400.00 360.00 480.00 2.00 100 %"));
  CHECK(has(row(o.output, "2", 1), "w=2 900.00 810.00 1080.00 0.89 44 %"));
  CHECK(has(row(o.output, "4"), " 3.20 80 %"));
  CHECK(has(row(o.output, "8*"), " 4.00 50 %"));
  CHECK(has(row(o.output, "2", 2), " 1.60 80 %"));  // weak: twice the domain in 1.25 times the time
  CHECK(has(o.output, "more ranks and threads than cores"));
  CHECK(has(o.output, "2.0 KiB 1.0 MiB") == false);  // columns lie apart
  CHECK(has(row(o.output, "4"), "2.0 KiB 1.0 MiB"));
}

TEST_CASE("lines that no scaling run has written are refused with their place") {
  const TemporaryFolder at;
  const auto check = [&](const std::string& text, const std::string& problem, int ranks = 0) {
    std::ofstream(at / "bad.jsonl") << line(1, 1.0).dump() << "\n\n" << text << "\n";
    const Outcome o = tessera(at, ranks, {"bench", "report", at / "bad.jsonl", "--out", at / "x"});
    INFO(text << "\n" << o.output);
    CHECK(o.code == 65);
    CHECK(has(o.output, "bad.jsonl:3"));
    CHECK(has(o.output, problem));
    CHECK(o.output.find("bad.jsonl:3") == o.output.rfind("bad.jsonl:3"));
    CHECK_FALSE(std::filesystem::exists(at / "x"));
  };
  check("{", "not a JSON object", 2);
  check("7", "not a JSON object");
  check(std::string(100000, '['), "not a JSON object");
  check("{\"benchmark\":\"conv\"}", "another benchmark");
  Json bad = line(1, 1.0);
  for (const char* key : {"seconds", "ranks", "mesh", "exposed", "version", "voxels"}) {
    Json copy = bad;
    copy.erase(key);
    check(copy.dump(), key);
    copy[key] = nullptr;
    check(copy.dump(), key);
    copy[key] = -1;
    check(copy.dump(), key);
  }
  bad["seconds"] = 0.0;
  check(bad.dump(), "seconds");
  bad = line(1, 1.0);
  bad["exposed"] = {{"h", "long"}};
  check(bad.dump(), "\"h\"");
  bad = line(1, 1.0, "medium");
  check(bad.dump(), "neither strong nor weak");

  std::ofstream(at / "empty.jsonl") << "\n";
  CHECK(tessera(at, 0, {"bench", "report", at / "empty.jsonl"}).code == 65);
  CHECK(tessera(at, 2, {"bench", "report", at / "none.jsonl"}).code == 74);
  write(at / "good.jsonl", {line(1, 1.0)});
  CHECK(tessera(at, 0, {"bench", "report", at / "good.jsonl", "--out", at / "good.jsonl"}).code !=
        0);
}

TEST_CASE("wrong options of a scaling run are said once") {
  const TemporaryFolder at;
  const auto check = [&](int ranks, const Words& words, int code, const std::string& text) {
    const Outcome o = tessera(at, ranks, words);
    INFO(o.output);
    CHECK(o.code == code);
    CHECK(has(o.output, text));
    CHECK(o.output.find(text) == o.output.rfind(text));
  };
  check(2, {"bench", "scaling", "nonet", "--size", "8"}, 2, "there is no model \"nonet\"");
  check(2, bench(at, {}), 2, "--size");
  for (const char* size : {"8x", "x8", "8x0", "8x8x8x8", "eight", ""})
    check(0, bench(at, {"--size", size}), 2, "is not a domain");
  check(2, bench(at, {"--size", "8", "--weak", "--strong"}), 2, "--weak");
  check(2, bench(at, {"--size", "8", "--mesh", "h=3"}), 2, "describe 3 ranks");
  check(2, bench(at, {"--size", "8", "--mesh", "h=1,w=2"}), 2, "more axes");
  check(2,
        {"bench", "scaling", "unet", "--width", "4", "--size", "8x8", "--steps", "1", "--out",
         at / "no/such/file"},
        74, "cannot be written");
}

TEST_CASE("the last mesh axis lies within nodes, however processes are placed") {
  const TemporaryFolder at;
  Words words = {TESSERA_MPIEXEC};
  for (const char* node : {"alpha", "beta", "alpha", "beta"}) {
    const Words part = {"-n",     "1",       "-env", "TESSERA_NODE", node, TESSERA_PROGRAM, "info",
                        "--mesh", "h=2,w=2", ":"};
    words.insert(words.end(), part.begin(), part.end());
  }
  words.pop_back();
  const Outcome o = run(at, words);
  INFO(o.output);
  REQUIRE(o.code == 0);
  CHECK(has(o.output, "mesh h=2 w=2: 4 ranks on 2 nodes"));
  CHECK(has(row(o.output, "0"), "0 0 alpha 0 0 "));
  CHECK(has(row(o.output, "1"), "1 2 alpha 0 1 "));
  CHECK(has(row(o.output, "2"), "2 1 beta 1 0 "));
  CHECK(has(row(o.output, "3"), "3 3 beta 1 1 "));
  CHECK(has(o.output, "axis h: crosses nodes"));
  CHECK(has(o.output, "axis w: within a node"));
  CHECK_FALSE(has(tessera(at, 2, {"info", "--mesh", "h=2"}).output, "crosses nodes"));
}

TEST_CASE("the templates for clusters sweep over nodes and end with the report") {
  const TemporaryFolder at;
  const std::string scripts = std::string(TESSERA_SOURCE_DIR) + "/scripts/cluster/";
  std::filesystem::create_directories(at / "bin");
  // Stand-ins for the launchers that start everything here.
  script(at / "bin/srun",
         "while [[ $1 == --* ]]; do [[ $1 == --ntasks=* ]] && n=${1#*=}; shift; done\n"
         "exec " TESSERA_MPIEXEC " -n $n \"$@\"\n");
  script(at / "bin/mpiexec",
         "[[ $1 == -hosts && $3 == -ppn && $4 == 2 ]] || exit 9\n"
         "echo \"$2\" >> \"$HOSTS\"; shift 4\n"
         "exec env -u PBS_NODEFILE " TESSERA_MPIEXEC " \"$@\"\n");
  std::ofstream(at / "hosts") << "a\na\nb\nb\n";
  const std::string common = "export PATH='" + at / "bin" +
                             "':$PATH TESSERA='" TESSERA_PROGRAM
                             "' SIZE=16x16 STEPS=2 OMP_NUM_THREADS=1 HOSTS='" +
                             at / "used" + "'\n";
  script(at / "slurm", common +
                           "export SLURM_NNODES=3 SLURM_NTASKS_PER_NODE=1 SLURM_CPUS_PER_TASK=1 "
                           "OUT='" +
                           at / "s" + "'\nexec " + scripts + "scaling.slurm\n");
  script(at / "pbs", common + "export PBS_NODEFILE='" + at / "hosts" + "' MODE=weak OUT='" +
                         at / "p" + "'\nexec " + scripts + "scaling.pbs\n");

  const Outcome slurm = run(at, {at / "slurm"});
  INFO(slurm.output);
  REQUIRE(slurm.code == 0);
  std::vector<int> ranks;
  for (const Json& l : lines_of(at / "s/scaling.jsonl")) ranks.push_back(l.at("ranks"));
  CHECK(ranks == std::vector<int>{1, 2, 3});
  CHECK(has(slurm.output, "efficiency"));
  CHECK(std::filesystem::exists(at / "s/scaling.html"));

  const Outcome pbs = run(at, {at / "pbs"});
  INFO(pbs.output);
  REQUIRE(pbs.code == 0);
  ranks.clear();
  for (const Json& l : lines_of(at / "p/scaling.jsonl")) {
    ranks.push_back(l.at("ranks"));
    CHECK(l.at("mode") == "weak");
  }
  CHECK(ranks == std::vector<int>{2, 4});
  CHECK(read_file(at / "used") == "a\na,b\n");
  CHECK(std::filesystem::exists(at / "p/scaling.svg"));
}

}  // namespace tessera::test
