#include "contraction_program.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

namespace tessera::kernels {

namespace {

/// The coefficient of each monomial i <= j <= k (unused indices -1, first ones first) in row M of
/// coupling eta: the sum over all orders of the indices.
using MonomialKey = std::array<int, 3>;

std::map<MonomialKey, double> monomials_of(const Couplings& u, std::int64_t eta, int row) {
  std::map<MonomialKey, double> sums;
  const auto d = static_cast<std::size_t>(irreps_rows(u.lmax));
  std::size_t size = 1;
  for (int i = 0; i < u.order; ++i) size *= d;
  const double* values =
      u.values.data() + (static_cast<std::size_t>(eta) * static_cast<std::size_t>(2 * u.l + 1) +
                         static_cast<std::size_t>(row)) *
                            size;
  for (std::size_t at = 0; at < size; ++at) {
    if (values[at] == 0.0) continue;
    MonomialKey key{-1, -1, -1};
    std::size_t rest = at;
    for (int i = 0; i < u.order; ++i, rest /= d)
      key[static_cast<std::size_t>(2 - i)] = static_cast<int>(rest % d);
    std::sort(key.begin(), key.end());
    sums[key] += values[at];
  }
  return sums;
}

ContractionProgram make_program(int lmax, int l_out, int correlation, CouplingBasis basis) {
  ContractionProgram program;
  program.inputs = irreps_rows(lmax);
  program.outputs = irreps_rows(l_out);
  // (k, i, j, output) -> weights of the term
  std::map<std::tuple<int, int, int, int>, std::vector<std::pair<std::int64_t, double>>> found;
  for (int l = 0; l <= l_out; ++l)
    for (int order = correlation; order >= 1; --order) {
      const Couplings u = couplings(lmax, l, order, basis);
      for (std::int64_t eta = 0; eta < u.count; ++eta)
        for (int row = 0; row <= 2 * l; ++row)
          for (const auto& [key, value] : monomials_of(u, eta, row))
            if (std::abs(value) > 1e-13)
              found[{key[2], key[0], key[1], l * l + row}].emplace_back(program.weights + eta,
                                                                        value);
      program.weights += u.count;
    }

  std::map<std::pair<int, int>, std::int32_t> pair_index;
  for (const auto& [key, weights] : found) {
    const auto [k, i, j, output] = key;
    std::int32_t q = 0;
    if (i >= 0) {
      const auto [at, fresh] =
          pair_index.try_emplace({i, j}, static_cast<std::int32_t>(program.pairs.size()));
      if (fresh) program.pairs.push_back({i, j});
      q = 1 + program.inputs + at->second;
    } else if (j >= 0) {
      q = 1 + j;
    }
    const auto term = static_cast<std::int32_t>(program.terms.size());
    if (program.monomials.empty() || program.monomials.back().k != k ||
        program.monomials.back().q != q)
      program.monomials.push_back({k, q, term, term});
    program.monomials.back().end = term + 1;
    program.terms.push_back({q, output});
    for (const auto& [weight, value] : weights)
      program.table.push_back({term, static_cast<std::int32_t>(weight), value});
  }
  for (int output = 0; output < program.outputs; ++output)
    for (const ContractionProgram::Monomial& m : program.monomials)
      for (std::int32_t t = m.begin; t < m.end; ++t) {
        if (program.terms[static_cast<std::size_t>(t)].output != output) continue;
        const auto at = static_cast<std::int32_t>(program.by_output.size());
        if (program.groups.empty() || program.groups.back().output != output ||
            program.groups.back().k != m.k)
          program.groups.push_back({output, m.k, at, at});
        program.groups.back().end = at + 1;
        program.by_output.push_back({m.q, t});
      }
  return program;
}

}  // namespace

const ContractionProgram& contraction_program(int lmax,
                                              int l_out,
                                              int correlation,
                                              CouplingBasis basis) {
  static std::mutex mutex;
  static std::map<std::array<int, 4>, ContractionProgram> cache;
  const std::lock_guard lock(mutex);
  const std::array<int, 4> key{lmax, l_out, correlation, static_cast<int>(basis)};
  const auto at = cache.find(key);
  if (at != cache.end()) return at->second;
  return cache.emplace(key, make_program(lmax, l_out, correlation, basis)).first->second;
}

std::int64_t contraction_weights(int lmax, int l_out, int correlation, CouplingBasis basis) {
  return contraction_program(lmax, l_out, correlation, basis).weights;
}

}  // namespace tessera::kernels
