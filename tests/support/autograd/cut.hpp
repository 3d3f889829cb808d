#pragma once

#include <string>
#include <vector>

#include "support/autograd/evaluate.hpp"

/// One cut of a case: its results on a mesh against those of one rank.
namespace tessera::test {

/// Results of one rank in double, of inputs and cotangents that `dtype` can hold.
struct OneRank {
  DType dtype = DType::kFloat64;
  std::vector<DenseArray> inputs;
  std::vector<DenseArray> outputs;
  std::vector<DType> types;  ///< of the outputs when the inputs have `dtype`
  std::vector<DenseArray> first;
  std::vector<DenseArray> second;
};

OneRank one_rank(const OpCase& c, DType dtype = DType::kFloat64);

/// Value, first and (c.second) second derivatives in one.dtype on these layouts: `c.tolerance` of
/// `one`, or a LayoutError where the case says so, alike on all processes; bits of replicas.
/// `accepted`: whether nothing was thrown.
std::string check_cut(const OpCase& c,
                      const OneRank& one,
                      const std::vector<Layout>& layouts,
                      bool* accepted = nullptr);

std::string describe(const std::vector<Layout>& layouts);

}  // namespace tessera::test
