#include "least_squares.hpp"

#include <cmath>
#include <utility>

namespace tessera::app {

std::vector<double> solve_normal(std::vector<double> a, std::size_t n, std::size_t v) {
  const std::size_t width = n + v;
  std::vector<std::size_t> row_of(n, n);  // the row whose pivot is this column
  std::vector<bool> used(n, false);
  for (std::size_t c = 0; c < n; ++c) {
    std::size_t pivot = n;
    for (std::size_t r = 0; r < n; ++r) {
      if (used[r]) continue;
      if (pivot == n || std::abs(a[r * width + c]) > std::abs(a[pivot * width + c])) pivot = r;
    }
    if (std::abs(a[pivot * width + c]) < 1e-12) continue;
    used[pivot] = true;
    row_of[c] = pivot;
    for (std::size_t r = 0; r < n; ++r) {
      if (r == pivot) continue;
      const double factor = a[r * width + c] / a[pivot * width + c];
      for (std::size_t k = 0; k < width; ++k) a[r * width + k] -= factor * a[pivot * width + k];
    }
  }
  std::vector<double> weights(n * v, 0.0);
  for (std::size_t c = 0; c < n; ++c) {
    if (row_of[c] == n) continue;
    const double* const row = a.data() + row_of[c] * width;
    for (std::size_t k = 0; k < v; ++k) weights[c * v + k] = row[n + k] / row[c];
  }
  return weights;
}

}  // namespace tessera::app
