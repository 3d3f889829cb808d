#include "support/op_table.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <tessera/core/error.hpp>

#include "support/autograd/cut.hpp"

namespace tessera::test {

namespace {

constexpr DType kTypes[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16};

/// How the inputs lie. "Together": all inputs that have the dimensions that grow with n are cut
/// there alike.
enum class Lie {
  kWhole,
  kBalanced,  // together, balanced parts
  kUneven,    // together, random parts
  kEmpty,     // together, one part has all
  kAlone,     // one input is cut, the others are whole
  kOther,     // the first input, in other dimensions
  kPending,   // as pending sums, those that may be
  kMixed,     // each input by itself
};
constexpr const char* kLies[] = {"whole", "balanced", "uneven",  "empty parts",
                                 "alone", "other",    "pending", "mixed"};
constexpr int kLieCount = 8;

constexpr const char* kSizes[] = {"even", "odd", "prime", "below the ranks", "1", "0"};
constexpr int kSizeCount = 6;
constexpr int kBelow = 3;
constexpr int kNone = 5;

std::int64_t elements_of(int size) {
  const std::int64_t below = std::max(1, process().count - 1);
  const std::int64_t n[kSizeCount] = {8, 9, 7, below, 1, 0};
  return n[size];
}

/// The dimensions of each input that grow with n.
std::vector<std::vector<int>> growing(const std::function<OpCase(std::int64_t)>& make) {
  const OpCase a = make(8), b = make(9);
  std::vector<std::vector<int>> dims(a.inputs.size());
  for (std::size_t i = 0; i < a.inputs.size(); ++i) {
    for (int d = 0; d < a.inputs[i].shape.size(); ++d) {
      if (a.inputs[i].shape[d] != b.inputs[i].shape[d]) dims[i].push_back(d);
    }
  }
  return dims;
}

/// What each axis does to each input.
using Roles = std::vector<std::vector<int>>;

std::vector<int> dims_that(const InputSpec& spec, const std::vector<int>& grow, bool grows) {
  std::vector<int> dims;
  for (int d = 0; !spec.absent && d < spec.shape.size(); ++d) {
    const bool in = std::find(grow.begin(), grow.end(), d) != grow.end();
    if (in == grows && spec.cuts(d)) dims.push_back(d);
  }
  return dims;
}

/// Axes in turn to the dimensions; left over ones join the last dimension.
void give(std::vector<int>& roles, const std::vector<int>& dims) {
  for (std::size_t a = 0; a < roles.size() && !dims.empty(); ++a) {
    roles[a] = dims[std::min(a, dims.size() - 1)];
  }
}

Roles roles_of(const OpCase& c,
               const std::vector<std::vector<int>>& grow,
               Lie lie,
               std::size_t axes,
               Rng& rng) {
  Roles roles(c.inputs.size(), std::vector<int>(axes, kAxisReplicates));
  std::vector<std::size_t> there;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    if (!c.inputs[i].absent) there.push_back(i);
  }
  switch (lie) {
    case Lie::kWhole:
      break;
    case Lie::kBalanced:
    case Lie::kUneven:
    case Lie::kEmpty:
      for (const std::size_t i : there) give(roles[i], dims_that(c.inputs[i], grow[i], true));
      break;
    case Lie::kAlone: {
      const std::size_t i = rng.choice(there);
      give(roles[i], dims_that(c.inputs[i], grow[i], !grow[i].empty()));
      break;
    }
    case Lie::kOther:
      give(roles[there[0]], dims_that(c.inputs[there[0]], grow[there[0]], false));
      break;
    case Lie::kPending:
      for (const std::size_t i : there) {
        if (c.inputs[i].floating()) roles[i].assign(axes, kAxisPending);
      }
      break;
    case Lie::kMixed:
      for (const std::size_t i : there) {
        std::vector<int> any = dims_that(c.inputs[i], {}, false);
        any.push_back(kAxisReplicates);
        for (int& role : roles[i]) role = rng.choice(any);
      }
      break;
  }
  return roles;
}

/// Layouts of all inputs: the same parts for every dimension of one size that the same axes split.
std::vector<Layout> draw(const OpCase& c, const Mesh& mesh, const Roles& roles, Lie lie, Rng& rng) {
  const std::uint64_t seed = rng.bits();
  std::vector<Layout> layouts;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const Shape& shape = c.inputs[i].shape;
    const auto bounds = [&](int d, const std::vector<int>& axes, int parts) {
      std::uint64_t key = seed ^ static_cast<std::uint64_t>(shape[d]) * 0x9e3779b97f4a7c15u;
      for (const int axis : axes) key = key * 31 + static_cast<std::uint64_t>(axis) + 1;
      if (lie == Lie::kMixed) key += i;
      Rng cuts(key);
      const bool uneven = lie == Lie::kUneven || lie == Lie::kEmpty;
      if (lie == Lie::kBalanced || (!uneven && cuts.coin())) {
        return balanced_bounds(shape[d], parts);
      }
      const std::int64_t full = cuts.integer(1, parts);  // the part that has all, of kEmpty
      Bounds drawn = {0, shape[d]};
      for (int p = 1; p < parts; ++p) {
        drawn.push_back(lie != Lie::kEmpty ? cuts.integer(0, shape[d]) : p < full ? 0 : shape[d]);
      }
      std::sort(drawn.begin(), drawn.end());
      return drawn;
    };
    layouts.push_back(c.inputs[i].absent ? Layout() : layout_of(mesh, shape, roles[i], bounds));
  }
  return layouts;
}

/// Number of the mesh among all that tables run on.
int number_of(const Mesh& mesh) { return process().count - 1 + 8 * (mesh.axis_count() - 1); }

std::string name_of(const Mesh& mesh) {
  std::string text;
  for (int a = 0; a < mesh.axis_count(); ++a) text += str(a == 0 ? "" : "x", mesh.axis_size(a));
  return text;
}

/// One line per row for docs/ops.md, where TESSERA_OP_TABLE names a file.
void record(const std::string& line) {
  static const char* const path = std::getenv("TESSERA_OP_TABLE");
  if (path == nullptr || process().rank != 0) return;
  static std::ofstream file(path);
  file << line << std::endl;
}

/// Where the op must refuse, it must do so on every layout and rank.
std::string check_refusal(const OpCase& c, const std::vector<Layout>& layouts) {
  const std::vector<DenseArray> inputs = make_inputs(c);
  std::string failure = "works, but should throw a ShapeError\n";
  try {
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      tensors.push_back(c.inputs[i].absent ? Tensor()
                                           : to_tensor(inputs[i], layouts[i], c.inputs[i].dtype));
    }
    c.f(tensors);
  } catch (const ShapeError&) {
    failure.clear();
  } catch (const std::exception& e) {
    failure = str("threw '", e.what(), "' instead of a ShapeError\n");
  }
  return agreed(failure);
}

/// A row that may run; numbers of kLies, kSizes, kTypes.
struct Row {
  Mesh mesh;
  int lie, size, type;
};

/// Those that this run draws.
std::vector<Row> rows_of(const TableOptions& options) {
  const bool all = std::getenv("TESSERA_TEST_DRAWS") != nullptr;
  std::vector<int> types;
  for (int t = 0; t < 3; ++t) {
    if (options.types[t]) types.push_back(t);
  }
  const auto type_count = static_cast<int>(types.size());
  std::vector<Row> rows;
  for (const Mesh& mesh : test_meshes()) {
    const int m = number_of(mesh);
    for (int i = 0; i < kLieCount * kSizeCount * type_count; ++i) {
      const int lie = i / type_count / kSizeCount, size = i / type_count % kSizeCount,
                type = i % type_count;
      // Along a row of the square (layout, size) runs the mesh, and the type with both: all pairs
      // occur.
      const bool drawn =
          size == (lie + m) % kSizeCount && type == (lie + 2 * m + m / 3) % type_count;
      const bool always = type == 0 && (size == kBelow || size == kNone);
      if (all || drawn || always)
        rows.push_back({mesh, lie, size, types[static_cast<std::size_t>(type)]});
    }
  }
  return rows;
}

/// Runs a row; `result` is what docs/ops.md makes of it.
std::string check_row(const Row& row,
                      const std::function<OpCase(std::int64_t n)>& make,
                      const std::vector<std::vector<int>>& grow,
                      const TableOptions& options,
                      std::string* result) {
  const auto lie = static_cast<Lie>(row.lie);
  *result = "not legal";
  if (!options.apart && (lie == Lie::kAlone || lie == Lie::kOther || lie == Lie::kMixed)) return {};
  const std::int64_t n = elements_of(row.size);
  OpCase c = make(n);
  c.seed = static_cast<std::uint64_t>(
      ((number_of(row.mesh) * kLieCount + row.lie) * kSizeCount + row.size) * 3 + row.type);
  c.tolerance = options.tolerance[row.type];
  c.exact = false;
  c.second = c.second && row.type == 0;
  Rng rng(c.seed + (std::getenv("TESSERA_TEST_DRAWS") != nullptr ? run_seed() : 0));
  const auto axes = static_cast<std::size_t>(row.mesh.axis_count());
  const std::vector<Layout> layouts =
      draw(c, row.mesh, roles_of(c, grow, lie, axes, rng), lie, rng);
  *result = "size refused";
  if (options.refuses && options.refuses(n)) return check_refusal(c, layouts);

  OneRank one;
  const std::string failure = agreed(guarded("one rank", [&] {
    one = one_rank(c, kTypes[row.type]);
    return row.type == 0 ? check_value(c) : std::string();
  }));
  if (!failure.empty()) return failure;
  bool accepted = false;
  const std::string text = check_cut(c, one, layouts, &accepted);
  *result = !accepted                       ? "layout refused"
            : !c.first || one.first.empty() ? "0"
            : c.second                      ? "2"
                                            : "1";
  return text;
}

}  // namespace

std::string check_table(const std::string& op,
                        const std::function<OpCase(std::int64_t n)>& make,
                        const TableOptions& options) {
  const std::vector<std::vector<int>> grow = growing(make);
  std::string text;
  int failed = 0;
  for (const Row& row : rows_of(options)) {
    const std::string cells = str(op, '\t', kLies[row.lie], '\t', name_of(row.mesh), '\t',
                                  kSizes[row.size], '\t', name(kTypes[row.type]), '\t');
    std::string result;
    const std::string failure = check_row(row, make, grow, options, &result);
    if (failure.empty()) {
      record(cells + result);
      continue;
    }
    text += str("row ", cells, "\n", failure);
    if (++failed == 4) return text;
  }
  return text;
}

}  // namespace tessera::test
