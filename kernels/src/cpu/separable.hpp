#pragma once

#include "cpu/grid.hpp"

namespace tessera::kernels::cpu {

/// For each output of one dimension the inputs that it sums, with weights; inputs in the order of
/// the sum.
struct TapTable {
  struct Tap {
    std::int64_t input;
    double weight;
  };
  std::vector<std::size_t> begin{
      0};  ///< taps of output i (counted from the box): [begin[i], begin[i + 1])
  std::vector<Tap> taps;
  std::vector<double> divisor;  ///< per output; empty: 1

  void close_output() { begin.push_back(taps.size()); }
  std::size_t longest() const;
};

/// out[n, i, c] = (sum over a, b, c of weights * in[n, (a, b, c), c]) / divisors, where each domain
/// dimension has its table: pooling, interpolation and their adjoints. Pieces of one floating type.
void apply_separable(const std::array<TapTable, 3>& tables, const Piece& in, const Piece& out);

}  // namespace tessera::kernels::cpu
