#pragma once

#include <cstddef>
#include <vector>

namespace tessera::app {

/// Weights [n, v] of least squares from rows of [normal matrix n x n | right-hand sides v]: Gauss's
/// elimination with pivots; a column without one gets weight 0.
std::vector<double> solve_normal(std::vector<double> rows, std::size_t n, std::size_t v);

}  // namespace tessera::app
