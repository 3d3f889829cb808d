#pragma once

#include <cstdint>
#include <memory>
#include <tessera/kernels/irreps.hpp>
#include <vector>

namespace tessera::kernels {

/// A symmetric contraction as a polynomial B_M = sum over k of A_k sum over q of c_t p_q with the
/// products p_q = 1, A_i (q = 1 + i) and A_i A_j (i <= j <= k): one coefficient per output row and
/// distinct monomial.
struct ContractionProgram {
  struct Pair {
    std::int32_t i, j;
  };
  /// In the order (k, q, output): the order of the coefficients.
  struct Term {
    std::int32_t q, output;
  };
  /// Monomials p_q A_k: terms [begin, end).
  struct Monomial {
    std::int32_t k, q, begin, end;
  };
  /// Terms of B_output that end with A_k, as positions [begin, end) in `by_output`.
  struct Group {
    std::int32_t output, k, begin, end;
  };
  struct Entry {
    std::int32_t q, term;
  };
  /// c_t += value * weight.
  struct Weight {
    std::int32_t term;
    std::int32_t weight;
    double value;
  };

  int inputs = 0;   ///< (lmax + 1)^2
  int outputs = 0;  ///< (l_out + 1)^2
  std::int64_t weights = 0;
  std::vector<Pair> pairs;  ///< product 1 + inputs + i
  std::vector<Term> terms;
  std::vector<Monomial> monomials;
  std::vector<Group> groups;
  std::vector<Entry> by_output;
  std::vector<Weight> table;  ///< sorted by term

  int products() const { return 1 + inputs + static_cast<int>(pairs.size()); }
};

/// Made once per argument.
const ContractionProgram& contraction_program(int lmax,
                                              int l_out,
                                              int correlation,
                                              CouplingBasis basis);

}  // namespace tessera::kernels
