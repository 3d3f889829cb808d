#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tessera/core/error.hpp>
#include <tessera/kernels/irreps.hpp>

namespace tessera::kernels {

namespace {

/// A coupling of some features into one irrep: values [2 l + 1, D, ..., D].
struct Tree {
  int l;
  int parity;
  std::vector<double> values;
};

const std::vector<double>& symbol(int l1, int l2, int l3, CouplingBasis basis) {
  return basis == CouplingBasis::kTabulated ? wigner_3j_tabulated(l1, l2, l3)
                                            : wigner_3j(l1, l2, l3);
}

std::vector<Tree> single_trees(int lmax) {
  std::vector<Tree> trees;
  const int dimension = irreps_rows(lmax);
  for (int l = 0; l <= lmax; ++l) {
    Tree tree{l, l % 2 == 0 ? 1 : -1,
              std::vector<double>(static_cast<std::size_t>((2 * l + 1) * dimension))};
    for (int m = 0; m <= 2 * l; ++m)
      tree.values[static_cast<std::size_t>(m * dimension + l * l + m)] = 1.0;
    trees.push_back(std::move(tree));
  }
  return trees;
}

/// The tree joined with one more feature l into `out`.
std::vector<double> join(const Tree& tree, int l, int out, int dimension, CouplingBasis basis) {
  const std::vector<double>& c = symbol(out, tree.l, l, basis);
  const auto width = static_cast<int>(tree.values.size()) / (2 * tree.l + 1);
  const auto columns = static_cast<std::size_t>(dimension);
  std::vector<double> values(static_cast<std::size_t>((2 * out + 1) * width) * columns);
  const double scale = std::sqrt(2.0 * out + 1.0);
  for (int o = 0; o <= 2 * out; ++o)
    for (int j = 0; j <= 2 * tree.l; ++j)
      for (int m = 0; m <= 2 * l; ++m) {
        const double x =
            scale * c[static_cast<std::size_t>((o * (2 * tree.l + 1) + j) * (2 * l + 1) + m)];
        if (x == 0.0) continue;
        for (int i = 0; i < width; ++i)
          values[static_cast<std::size_t>(o * width + i) * columns +
                 static_cast<std::size_t>(l * l + m)] +=
              x * tree.values[static_cast<std::size_t>(j * width + i)];
      }
  for (double& x : values)
    if (std::abs(x) < 1e-14) x = 0.0;
  return values;
}

/// All trees of two features, sorted as MACE sorts them: odd before even of one l.
std::vector<Tree> double_trees(int lmax, CouplingBasis basis) {
  std::vector<Tree> trees;
  for (const Tree& left : single_trees(lmax))
    for (int l = 0; l <= lmax; ++l)
      for (int out = std::abs(left.l - l); out <= left.l + l; ++out)
        trees.push_back({out, left.parity * (l % 2 == 0 ? 1 : -1),
                         join(left, l, out, irreps_rows(lmax), basis)});
  std::stable_sort(trees.begin(), trees.end(), [](const Tree& a, const Tree& b) {
    return a.l != b.l ? a.l < b.l : a.parity < b.parity;
  });
  return trees;
}

/// The mean over all orders of the last `order` indices.
std::vector<double> symmetrised(const std::vector<double>& values, int rows, int d, int order) {
  if (order == 1) return values;
  std::vector<double> result(values.size());
  const auto n = static_cast<std::size_t>(d);
  for (std::size_t m = 0; m < static_cast<std::size_t>(rows); ++m)
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) {
        if (order == 2) {
          result[(m * n + i) * n + j] =
              0.5 * (values[(m * n + i) * n + j] + values[(m * n + j) * n + i]);
          continue;
        }
        for (std::size_t k = 0; k < n; ++k) {
          const auto at = [&](std::size_t a, std::size_t b, std::size_t c) {
            return values[((m * n + a) * n + b) * n + c];
          };
          result[((m * n + i) * n + j) * n + k] =
              (at(i, j, k) + at(i, k, j) + at(j, i, k) + at(j, k, i) + at(k, i, j) + at(k, j, i)) /
              6.0;
        }
      }
  return result;
}

double dot(const double* a, const double* b, std::size_t n) {
  double sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// Symmetric parts, orthonormalised in the order of the list; what depends on earlier ones is left
/// out.
void reduce(Couplings& u) {
  const int d = irreps_rows(u.lmax);
  const int rows = 2 * u.l + 1;
  const std::size_t size = u.count == 0 ? 0 : u.values.size() / static_cast<std::size_t>(u.count);
  std::vector<double> basis;
  std::int64_t kept = 0;
  for (std::int64_t e = 0; e < u.count; ++e) {
    const auto begin = u.values.begin() + e * static_cast<std::int64_t>(size);
    std::vector<double> x = symmetrised(
        std::vector<double>(begin, begin + static_cast<std::int64_t>(size)), rows, d, u.order);
    // Twice: once is not orthogonal to rounding.
    for (int pass = 0; pass < 2; ++pass)
      for (std::int64_t b = 0; b < kept; ++b) {
        const double* q = basis.data() + b * static_cast<std::int64_t>(size);
        const double overlap = dot(q, x.data(), size) / rows;
        for (std::size_t i = 0; i < size; ++i) x[i] -= overlap * q[i];
      }
    const double norm = std::sqrt(dot(x.data(), x.data(), size) / rows);
    if (norm < 1e-8) continue;
    for (const double value : x) basis.push_back(std::abs(value) < 1e-14 ? 0.0 : value / norm);
    ++kept;
  }
  u.values = std::move(basis);
  u.count = kept;
}

void check_spec(int lmax, int l, int order) {
  if (lmax < 0 || lmax > 6 || l < 0 || l > lmax || order < 1 || order > 3) {
    throw UsageError(str("couplings: order ", order, " of features up to l = ", lmax, " into ", l,
                         " (known are orders 1 to 3, lmax <= 6, l <= lmax)."));
  }
}

}  // namespace

Couplings couplings(int lmax, int l, int order, CouplingBasis basis) {
  check_spec(lmax, l, order);
  Couplings u{lmax, l, order, 0, {}};
  const int natural = l % 2 == 0 ? 1 : -1;
  const auto add = [&](const std::vector<double>& values) {
    u.values.insert(u.values.end(), values.begin(), values.end());
    ++u.count;
  };
  if (order == 1) {
    add(single_trees(lmax)[static_cast<std::size_t>(l)].values);
  } else {
    for (const Tree& left : order == 2 ? single_trees(lmax) : double_trees(lmax, basis))
      for (int last = 0; last <= lmax; ++last)
        if (std::abs(left.l - last) <= l && l <= left.l + last &&
            left.parity * (last % 2 == 0 ? 1 : -1) == natural)
          add(join(left, last, l, irreps_rows(lmax), basis));
  }
  if (basis == CouplingBasis::kReduced) reduce(u);
  return u;
}

std::vector<ContractionBlock> contraction_blocks(int lmax,
                                                 int l_out,
                                                 int correlation,
                                                 CouplingBasis basis) {
  check_spec(lmax, l_out, correlation);
  std::vector<ContractionBlock> blocks;
  std::int64_t first = 0;
  for (int l = 0; l <= l_out; ++l)
    for (int order = correlation; order >= 1; --order) {
      blocks.push_back({l, order, first, couplings(lmax, l, order, basis).count});
      first += blocks.back().count;
    }
  return blocks;
}

}  // namespace tessera::kernels
