// A page of the documentation and its code. Blocks of a page with `<!-- ranks: 1 3 -->` make a
// program: ```cpp blocks in their order are the body of main(), where `runtime` exists; a word
// before a block says otherwise:
//   <!-- file -->   the block stands outside of main()
//   <!-- scope -->  the block has a scope of its own
// A page with a main() of its own is taken as it is. ```text blocks are what rank 0 prints, in
// order.
#pragma once

#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tessera::test {

struct PageBlock {
  std::string language;
  std::string label;  // of a comment on the line before: `<!-- label -->`
  int line = 0;       // of its first line of code, from 1
  std::string text;
};

struct Page {
  std::vector<int> ranks;
  std::vector<PageBlock> blocks;

  explicit Page(const std::string& path) {
    std::ifstream in(path);
    if (!in) throw std::runtime_error(path + " cannot be read");
    std::string label;
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      if (line.rfind("<!-- ", 0) == 0) {
        label = line.substr(5, line.find(" -->") - 5);
        if (label.rfind("ranks: ", 0) == 0) {
          std::istringstream numbers(label.substr(7));
          ranks.assign(std::istream_iterator<int>(numbers), {});
        }
        continue;
      }
      if (line.rfind("```", 0) == 0) {
        PageBlock block{line.substr(3), label, number + 1, ""};
        while (std::getline(in, line) && line != "```") {
          ++number;
          block.text += line + "\n";
        }
        ++number;
        blocks.push_back(block);
      }
      label.clear();
    }
  }

  std::string program(const std::string& path) const {
    std::string outside;
    std::string body;
    for (const PageBlock& block : blocks) {
      if (block.language != "cpp") continue;
      const std::string code =
          "#line " + std::to_string(block.line) + " \"" + path + "\"\n" + block.text;
      if (block.label == "file" || block.text.find("int main(") != std::string::npos) {
        outside += code;
      } else {
        body += block.label == "scope" ? "{\n" + code + "}\n" : code;
      }
    }
    std::string all =
        "#include <cmath>\n#include <cstdio>\n#include <tessera/tessera.hpp>\n"
        "namespace ts = tessera;\n" +
        outside;
    if (outside.find("int main(") != std::string::npos) return all;
    return all + "int main(int argc, char** argv) {\nts::Runtime runtime(argc, argv);\n" +
           "return runtime.guard([&] {\n" + body + "});\n}\n";
  }

  /// All that the page says is printed.
  std::string output() const {
    std::string all;
    for (const PageBlock& block : blocks)
      if (block.language == "text") all += block.text;
    return all;
  }
};

}  // namespace tessera::test
