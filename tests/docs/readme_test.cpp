// ranks: none
// What the README shows is what the examples are. A code block behind `<!-- FILE -->` is the file
// from its first #include on; behind `<!-- lines of FILE -->` each of its lines stands in the file.

#include <catch2/catch.hpp>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::string read(const std::string& path) {
  std::ifstream file(std::string(TESSERA_SOURCE_DIR) + "/" + path);
  INFO("file " << path);
  REQUIRE(file.good());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Snippet {
  std::string file;
  bool lines_only = false;
  std::string code;
};

std::vector<Snippet> snippets_of(const std::string& markdown) {
  std::vector<Snippet> snippets;
  std::istringstream in(markdown);
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind("<!-- ", 0) != 0) continue;
    std::string label = line.substr(5, line.find(" -->") - 5);
    Snippet snippet;
    const std::string lines_of = "lines of ";
    if (label.rfind(lines_of, 0) == 0) {
      snippet.lines_only = true;
      label = label.substr(lines_of.size());
    }
    snippet.file = label;
    if (!std::getline(in, line) || line.rfind("```", 0) != 0) continue;
    while (std::getline(in, line) && line != "```") snippet.code += line + "\n";
    snippets.push_back(snippet);
  }
  return snippets;
}

}  // namespace

TEST_CASE("the README shows the examples as they are") {
  const std::vector<Snippet> snippets = snippets_of(read("README.md"));
  REQUIRE(snippets.size() >= 2);
  for (const Snippet& snippet : snippets) {
    INFO("snippet of " << snippet.file);
    const std::string file = read(snippet.file);
    if (!snippet.lines_only) {
      CHECK(snippet.code == file.substr(file.find("#include")));
      continue;
    }
    std::set<std::string> lines;
    std::istringstream in(file);
    for (std::string line; std::getline(in, line);) lines.insert(line);
    std::istringstream shown(snippet.code);
    for (std::string line; std::getline(shown, line);) {
      INFO("line " << line);
      CHECK(lines.contains(line));
    }
  }
}
