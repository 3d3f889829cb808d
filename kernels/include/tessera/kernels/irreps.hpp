#pragma once

#include <cstdint>
#include <vector>

/// The algebra of rotations behind equivariant networks, computed once and kept: no views here.
///
/// Irreps are real, in the basis of e3nn: row l * l + l + m of a feature [..., lm, K], with (x, y,
/// z) as m = -1, 0, 1 of l = 1. Features have natural parity (-1)^l.
namespace tessera::kernels {

/// Rows of all l <= lmax.
constexpr int irreps_rows(int lmax) { return (lmax + 1) * (lmax + 1); }

/// The 3j symbol [2 l1 + 1, 2 l2 + 1, 2 l3 + 1] of the real basis with Frobenius norm 1: Racah's
/// formula in integers, then the change of basis of e3nn >= 0.5. All zero where the triangle rule
/// fails. Throws UsageError for l < 0 or > 10.
const std::vector<double>& wigner_3j(int l1, int l2, int l3);
/// The same with the signs of the tables of e3nn <= 0.4.4, which older published weights assume:
/// only symbols with odd l1 + l2 + l3 can differ.
const std::vector<double>& wigner_3j_tabulated(int l1, int l2, int l3);

/// One product l1 x l2 -> l3 of a channel-wise tensor product.
struct TensorPath {
  int l1, l2, l3;
  int row;  ///< first of its 2 l3 + 1 rows of the result
};

/// All paths of features up to l_in with harmonics up to l_edge into l <= l_out that keep natural
/// parity, sorted by l3, then l1, then l2; `rows` is the sum of 2 l3 + 1.
struct TensorPaths {
  int l_in = 0;
  int l_edge = 0;
  int l_out = 0;
  int rows = 0;
  std::vector<TensorPath> paths;

  std::int64_t count() const { return static_cast<std::int64_t>(paths.size()); }
  /// Number of paths into l3.
  int into(int l3) const;
};

/// The list, made once. Throws UsageError for negative or too large l.
const TensorPaths& tensor_paths(int l_in, int l_edge, int l_out);

/// How the couplings of the symmetric contraction are counted.
enum class CouplingBasis : std::int64_t {
  kFull,       ///< every coupling tree, as MACE stores weights (redundant); formula 3j symbols
  kTabulated,  ///< the same with the signs of `wigner_3j_tabulated`
  kReduced,    ///< an orthonormal basis of the symmetric couplings: no redundant weights
};

/// Couplings U of `order` copies of features up to lmax into l: values[eta][M][i_1, ..., i_order]
/// with component normalisation. The list of kFull is that of MACE: built from that of order - 1,
/// stable-sorted by (l, parity).
struct Couplings {
  int lmax = 0;
  int l = 0;
  int order = 0;
  std::int64_t count = 0;
  std::vector<double> values;  ///< [count, 2 l + 1, D, ..., D], D = (lmax + 1)^2
};
/// Order 1 to 3, lmax <= 6. Throws UsageError. Costs milliseconds; nothing is kept.
Couplings couplings(int lmax, int l, int order, CouplingBasis basis);

/// The weights of one (l, order) of a symmetric contraction: `count` weights from `first`.
struct ContractionBlock {
  int l;
  int order;
  std::int64_t first;
  std::int64_t count;
};
/// Order of all weights of a contraction of features up to lmax into l <= l_out: by l, then by
/// falling order, then in the order of the couplings.
std::vector<ContractionBlock> contraction_blocks(int lmax,
                                                 int l_out,
                                                 int correlation,
                                                 CouplingBasis basis);
/// Weights per element and channel: the sum of all `count`.
std::int64_t contraction_weights(int lmax, int l_out, int correlation, CouplingBasis basis);

}  // namespace tessera::kernels
