// ranks: none
// docs/ops.md is what the tables of all ops (OP_TABLE) did in this build. TESSERA_WRITE_DOCS=1 in
// the environment writes the page instead of comparing with it.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const fs::path kSource = TESSERA_SOURCE_DIR;
const fs::path kTables = fs::path(TESSERA_BINARY_DIR) / "op_table";

const std::vector<std::string> kLies = {"whole", "balanced", "uneven",  "empty parts",
                                        "alone", "other",    "pending", "mixed"};
const std::vector<std::string> kMeshes = {"1", "2",   "3",   "4",   "5",   "6",    "7",
                                          "8", "1x1", "2x2", "2x3", "2x4", "2x2x2"};
const std::vector<std::string> kSizes = {"even", "odd", "prime", "below the ranks", "1", "0"};

/// Ops whose inputs are made by a plan for one mesh: the tests named here take their tables' place.
const std::map<std::string, std::string> kOwnTests = {
    {"ghost_rows", "tests/autograd/ghost_rows_test.cpp"},
    {"ghost_sum", "tests/autograd/ghost_rows_test.cpp"},
    {"start_ghost_rows", "tests/autograd/ghost_rows_test.cpp"}};

struct Row {
  std::string lie, mesh, size, type, result;
};

std::map<std::string, std::vector<Row>> read_rows() {
  std::map<std::string, std::vector<Row>> rows;
  for (const auto& entry : fs::directory_iterator(kTables)) {
    if (entry.path().filename().string().find("_deep@") != std::string::npos) continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      std::vector<std::string> cells;
      std::istringstream in(line);
      for (std::string cell; std::getline(in, cell, '\t');) cells.push_back(cell);
      REQUIRE(cells.size() == 6);
      rows[cells[0]].push_back({cells[1], cells[2], cells[3], cells[4], cells[5]});
    }
  }
  return rows;
}

/// Functions of the ops' headers that give tensors, by name.
std::map<std::string, std::string> public_ops() {
  std::map<std::string, std::string> ops;
  const std::regex declaration(R"(^(?:inline )?(?:std::vector<Tensor>|[A-Z]\w*) ([a-z]\w*)\(.*)");
  for (const auto& entry :
       fs::directory_iterator(kSource / "autograd/include/tessera/autograd/ops")) {
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      std::smatch match;
      if (std::regex_match(line, match, declaration))
        ops[match[1]] = entry.path().filename().string();
    }
  }
  return ops;
}

bool is_one_of(const std::string& value, const std::vector<std::string>& values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

/// Whether all pairs of values of two columns occur.
void check_pairs(const std::string& op, const std::vector<Row>& rows) {
  INFO("op " << op);
  std::vector<std::string> types;
  std::set<std::pair<std::string, std::string>> seen;
  for (const Row& row : rows) {
    if (!is_one_of(row.type, types)) types.push_back(row.type);
    const std::string cells[] = {row.lie, "mesh " + row.mesh, "size " + row.size, row.type};
    for (int i = 0; i < 4; ++i)
      for (int j = i + 1; j < 4; ++j) seen.insert({cells[i], cells[j]});
  }
  const auto named = [](const std::string& what, std::vector<std::string> values) {
    for (std::string& v : values) v = what + v;
    return values;
  };
  const std::vector<std::vector<std::string>> columns = {kLies, named("mesh ", kMeshes),
                                                         named("size ", kSizes), types};
  for (std::size_t i = 0; i < columns.size(); ++i)
    for (std::size_t j = i + 1; j < columns.size(); ++j)
      for (const std::string& a : columns[i])
        for (const std::string& b : columns[j]) {
          INFO(a << " with " << b);
          CHECK(seen.count({a, b}) == 1);
        }
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text.append(text.empty() ? "" : " ").append(w);
  return text;
}

/// What happened to a layout: yes, some (the others are refused), refused, or not legal.
std::string cell(const std::vector<Row>& rows, const std::string& lie) {
  int yes = 0, refused = 0, illegal = 0;
  for (const Row& row : rows) {
    if (row.lie != lie || row.result == "size refused") continue;
    if (row.result == "layout refused")
      ++refused;
    else if (row.result == "not legal")
      ++illegal;
    else
      ++yes;
  }
  if (illegal > 0) return "-";
  return refused == 0 ? "yes" : yes == 0 ? "refused" : "some";
}

std::string line_of(const std::string& op,
                    const std::string& header,
                    const std::vector<Row>& rows) {
  std::vector<std::string> types, refused;
  std::string order = "0";
  for (const std::string type : {"f64", "f32", "bf16"})
    if (std::any_of(rows.begin(), rows.end(), [&](const Row& r) { return r.type == type; }))
      types.push_back(type);
  for (const Row& row : rows)
    if (row.result.size() == 1) order = std::max(order, row.result);
  for (const std::string& size : kSizes) {
    const bool any = std::any_of(rows.begin(), rows.end(), [&](const Row& r) {
      return r.size == size && r.result == "size refused";
    });
    if (any) refused.push_back(size == "below the ranks" ? "few" : size);
  }
  std::ostringstream line;
  line << "| `" << op << "` | " << header << " | " << joined(types) << " | " << order << " |";
  for (const std::string& lie : kLies) line << " " << cell(rows, lie) << " |";
  line << " " << (refused.empty() ? "none" : joined(refused)) << " |\n";
  return line.str();
}

}  // namespace

TEST_CASE("docs/ops.md says what the tables of all ops did") {
  const std::map<std::string, std::vector<Row>> tables = read_rows();
  const std::map<std::string, std::string> ops = public_ops();
  REQUIRE(ops.size() > 100);
  std::string text =
      "# Ops\n\n"
      "Every public op over layouts, meshes, sizes and element types, as the tests of this\n"
      "commit found it (`OP_TABLE` beside each op's tests; `ctest -R docs/op_table` compares this\n"
      "page with them, `TESSERA_WRITE_DOCS=1 ctest -R docs/op_table` writes it). A row of the "
      "test\n"
      "is one layout of the inputs on one mesh: the value against a plain loop on one rank; "
      "value,\n"
      "first and (fp64) second derivatives with random cotangents on the mesh against one rank, "
      "to\n"
      "1e-12, 2e-5, 2e-2 of the largest value in fp64, fp32, bf16; equal bits on replicas.\n\n"
      "- Meshes: 1 to 8 ranks, 1x1, 2x2, 2x3, 2x4, 2x2x2. Sizes: 8, 9, 7, one less than the\n"
      "  ranks, 1, 0. All pairs of values of two columns occur, in fp64 every layout on every "
      "mesh\n"
      "  with none and with fewer elements than ranks; the deep run takes all combinations.\n"
      "- `d`: derivatives tested (of the op's gradients: 2).\n"
      "- Layouts: `whole` on every rank; all inputs cut alike in the dimension that varies into\n"
      "  `balanced`, `uneven` parts, parts of which one `has all`; one input `alone`; the first\n"
      "  input in `other` dimensions; inputs as `pending` sums; each input by itself (`mixed`).\n"
      "  yes: every one drawn works; some: others are refused, with a LayoutError that says what\n"
      "  to do, on every rank; -: rows that are named must lie on the same rank.\n"
      "- Sizes refused: with a ShapeError, because nothing would be left (or nothing has no "
      "mean).\n"
      "  `few`: one less than the ranks.\n\n"
      "| op | header | types | d | whole | balanced | uneven | has all | alone | other | pending | "
      "mixed | sizes refused |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  std::vector<std::string> missing;
  for (const auto& [op, header] : ops) {
    if (kOwnTests.count(op) != 0) continue;
    const auto table = tables.find(op);
    if (table == tables.end()) {
      missing.push_back(op);
      continue;
    }
    check_pairs(op, table->second);
    text += line_of(op, header, table->second);
  }
  INFO("ops without a table: " << joined(missing));
  CHECK(missing.empty());
  text += "\nOps on rows that a plan for one mesh names, tested on random plans:\n\n";
  for (const auto& [op, test] : kOwnTests) {
    REQUIRE(fs::exists(kSource / test));
    text += "- `" + op + "`: `" + test + "`\n";
  }
  for (const auto& [op, rows] : tables) {
    INFO("a table of " << op << ", which is no public op");
    CHECK(ops.count(op) == 1);
  }

  const fs::path page = kSource / "docs/ops.md";
  if (std::getenv("TESSERA_WRITE_DOCS") != nullptr) {
    std::ofstream(page) << text;
    return;
  }
  std::ifstream file(page);
  std::ostringstream is;
  is << file.rdbuf();
  INFO("docs/ops.md is not what the tables say; TESSERA_WRITE_DOCS=1 writes it");
  CHECK(is.str() == text);
}
