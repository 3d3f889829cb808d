// ranks: none
// Every benchmark is described, and what is described exists.

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

namespace {

const std::string kRoot = TESSERA_SOURCE_DIR;

std::string read(const std::string& path) {
  std::ifstream file(kRoot + "/" + path);
  INFO("file " << path);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("each benchmark has a row in docs/benchmarks.md and ends with a JSON line") {
  const std::string table = read("docs/benchmarks.md");
  const std::string turns = read("benchmarks/turns.hpp");
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot + "/benchmarks")) {
    if (entry.path().extension() != ".cpp") continue;
    const std::string name = entry.path().stem();
    INFO(name);
    CHECK(table.find("| `" + name + "` |") != std::string::npos);
    const std::string source = read("benchmarks/" + name + ".cpp");
    CHECK(source.rfind("// ", 0) == 0);
    // Its own line, or that of turns.hpp.
    const bool shared = source.find("last_line(\"" + name + "\"") != std::string::npos;
    const std::string& line = shared ? turns : source;
    for (const char* key : {"benchmark", "value", "unit", "peer", "ratio"}) {
      INFO(key);
      CHECK(std::regex_search(line, std::regex(std::string("\"") + key + R"(\\?")")));
    }
    ++found;
  }
  CHECK(found >= 4);
  for (std::size_t at = table.find("\n| `"); at != std::string::npos;
       at = table.find("\n| `", at + 1)) {
    const std::size_t from = at + 4;
    const std::string name = table.substr(from, table.find('`', from) - from);
    if (name.find(' ') != std::string::npos) continue;
    INFO(name);
    CHECK(std::filesystem::exists(kRoot + "/benchmarks/" + name + ".cpp"));
  }
}
