#pragma once

#include <cstdint>
#include <functional>
#include <tessera/core/tensor.hpp>
#include <vector>

namespace tessera::optim {

/// A point on the line x + length d.
struct LinePoint {
  double length = 0.0;
  double loss = 0.0;
  double slope = 0.0;  ///< gradient . d
  std::vector<Tensor> gradient = {};
};

/// A point that meets the strong Wolfe conditions, loss(t) <= loss(0) + 1e-4 t slope(0) and
/// |slope(t)| <= 0.9 |slope(0)|, or the best one found in `most` evaluations; `start` at length 0.
/// Brackets by extrapolation from `length`, then zooms, both by cubic interpolation (Nocedal &
/// Wright, algorithms 3.5 and 3.6, with the safeguards of minFunc). A loss that is no number counts
/// as too high. `largest`: max |d|; the bracket ends where times this it is below `tolerance`.
LinePoint strong_wolfe(const std::function<LinePoint(double length)>& evaluate,
                       const LinePoint& start,
                       double length,
                       double largest,
                       double tolerance,
                       std::int64_t most);

}  // namespace tessera::optim
