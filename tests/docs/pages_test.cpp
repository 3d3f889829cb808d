// ranks: none
// The code of each page is a program (tests/docs/page.hpp). It runs on the numbers of ranks that
// the page names, and prints what the page says it prints, numbers to their last but one digit.

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <regex>
#include <set>
#include <tessera/core/error.hpp>

#include "page.hpp"
#include "support/temp_dir.hpp"
#include "support/watchdog.hpp"

namespace tessera::test {
namespace {

/// A number and how far another may be from it to read the same: two of its last digit.
bool alike(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const auto number = [](const std::string& word, double& value) {
    std::size_t used = 0;
    try {
      value = std::stod(word, &used);
    } catch (const std::exception&) {
      return false;
    }
    return word.find_first_not_of(",.;:", used) == std::string::npos;
  };
  double x = 0.0;
  double y = 0.0;
  if (!number(a, x) || !number(b, y)) return false;
  const std::size_t point = a.find('.');
  const std::size_t end = a.find_first_not_of("0123456789", point == a.npos ? a.npos : point + 1);
  if (point == std::string::npos) return x == y;
  const auto digits = static_cast<double>((end == a.npos ? a.size() : end) - point - 1);
  const std::size_t exponent = a.find('e');
  const double scale = exponent == a.npos ? 0.0 : std::stod(a.substr(exponent + 1));
  return std::abs(x - y) <= 2.1 * std::pow(10.0, scale - digits);
}

void compare(const std::string& shown, const std::string& printed) {
  std::istringstream a(shown);
  std::istringstream b(printed);
  std::string line_a;
  std::string line_b;
  while (std::getline(a, line_a)) {
    REQUIRE(std::getline(b, line_b));
    INFO("shown:   " << line_a << "\nprinted: " << line_b);
    std::istringstream words_a(line_a);
    std::istringstream words_b(line_b);
    std::string word_a;
    std::string word_b;
    while (words_a >> word_a) {
      REQUIRE(words_b >> word_b);
      REQUIRE(alike(word_a, word_b));
    }
    REQUIRE(!(words_b >> word_b));
  }
  REQUIRE(!std::getline(b, line_b));
}

/// Pages of docs/ and docs/tutorial/.
std::vector<std::filesystem::path> markdown() {
  std::vector<std::filesystem::path> files;
  for (const char* folder : {"/docs", "/docs/tutorial"})
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(TESSERA_SOURCE_DIR) + folder))
      if (entry.path().extension() == ".md") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

TEST_CASE("pages: numbers read the same up to two of their last digit") {
  CHECK(alike("1.25", "1.27"));
  CHECK(!alike("1.25", "1.28"));
  CHECK(alike("1.2e-3,", "1.3e-3,"));
  CHECK(!alike("1.2e-3", "1.2e-2"));
  CHECK(!alike("3", "4"));
  CHECK(!alike("loss", "lost"));
}

TEST_CASE("pages print what they say") {
  int pages = 0;
  for (const std::filesystem::path& path : markdown()) {
    const Page page(path.string());
    if (page.ranks.empty()) continue;
    ++pages;
    const std::string file = path.filename().string();
    const std::string program = std::string(TESSERA_PAGES) + "/" + path.stem().string();
    for (const int ranks : page.ranks) {
      INFO(file << " on " << ranks << " ranks");
      Watchdog::instance().begin(str("page ", file, " on ", ranks, " ranks"));
      const TempDir folder_of_run;
      const std::string command = str("cd '", folder_of_run / "", "' && ", TESSERA_MPIEXEC, " -n ",
                                      ranks, " '", program, "' 2>'", folder_of_run / "errors", "'");
      FILE* const pipe = popen(command.c_str(), "r");
      REQUIRE(pipe != nullptr);
      std::string printed;
      std::array<char, 4096> part;
      while (const std::size_t n = fread(part.data(), 1, part.size(), pipe))
        printed.append(part.data(), n);
      const int status = pclose(pipe);
      INFO(printed << read_file(folder_of_run / "errors"));
      REQUIRE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
      compare(page.output(), printed);
    }
  }
  REQUIRE(pages >= 7);
}

TEST_CASE("pages: all their C++ is compiled, and the names that they promise exist") {
  const std::filesystem::path root = TESSERA_SOURCE_DIR;
  std::string headers;
  for (const char* module : {"core", "kernels", "parallel", "autograd", "nn", "models"})
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(root / module / "include"))
      if (entry.path().extension() == ".hpp") headers += read_file(entry.path().string());
  std::vector<std::filesystem::path> files = {root / "docs/from_pytorch.md"};
  for (const auto& entry : std::filesystem::directory_iterator(root / "docs/tutorial"))
    if (entry.path().filename() != "README.md") files.push_back(entry.path());
  REQUIRE(files.size() >= 7);
  for (const std::filesystem::path& file : files) {
    INFO(file);
    const Page page(file.string());
    CHECK(!page.ranks.empty());
    for (const PageBlock& block : page.blocks)
      CHECK(std::set<std::string>{"cpp", "text", "sh", "python"}.contains(block.language));
    // `ts::nn::Linear` outside of the blocks: its last word stands in a header.
    const std::string text = read_file(file.string());
    const std::regex name("`ts::([A-Za-z_0-9:]+)");
    for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end; ++it) {
      const std::string path = (*it)[1];
      const std::string last = path.substr(path.rfind(':') == path.npos ? 0 : path.rfind(':') + 1);
      const auto letter = [&](std::size_t at) {
        return at < headers.size() &&
               (std::isalnum(static_cast<unsigned char>(headers[at])) != 0 || headers[at] == '_');
      };
      bool found = false;
      for (std::size_t at = headers.find(last); at != headers.npos && !found;
           at = headers.find(last, at + 1))
        found = !letter(at - 1) && !letter(at + last.size());
      INFO("`ts::" << path << "` is not in the public headers");
      CHECK(found);
    }
  }
}

}  // namespace tessera::test
