#include <algorithm>
#include <cmath>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/interpolate.hpp>

#include "cpu/separable.hpp"

namespace tessera::kernels {

namespace {

using cpu::TapTable;

/// The inputs of one output: `count` neighbours from `first` on, some of which may lie outside the
/// domain.
struct Stencil {
  std::int64_t first = 0;
  int count = 1;
  double weight[4] = {1, 0, 0, 0};
};

/// Keys' cubic convolution kernel, for a distance of at most 2.
double cubic_weight(double distance) {
  constexpr double kA = -0.75;
  const double x = std::abs(distance);
  if (x <= 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
  return ((kA * x - 5 * kA) * x + 8 * kA) * x - 4 * kA;
}

Stencil stencil(const InterpolateGeometry& g, std::int64_t n, std::int64_t m, std::int64_t j) {
  Stencil s;
  if (g.mode == InterpolateMode::kNearest) {
    s.first = j * n / m;
    return s;
  }
  double at = 0;
  if (g.align_corners) {
    at = m > 1 ? static_cast<double>(j) * static_cast<double>(n - 1) / static_cast<double>(m - 1)
               : 0.0;
  } else {
    at = (static_cast<double>(j) + 0.5) * static_cast<double>(n) / static_cast<double>(m) - 0.5;
  }
  const double floor = std::floor(at), part = at - floor;
  s.first = static_cast<std::int64_t>(floor);
  if (g.mode == InterpolateMode::kLinear) {
    s.count = 2;
    s.weight[0] = 1 - part;
    s.weight[1] = part;
  } else {
    s.first -= 1;
    s.count = 4;
    for (int t = 0; t < 4; ++t) s.weight[t] = cubic_weight(part + 1 - t);
  }
  return s;
}

/// f(input, weight) for the inputs of output j, each once, ascending.
template <class F>
void for_each_tap(
    const InterpolateGeometry& g, std::int64_t n, std::int64_t m, std::int64_t j, const F& f) {
  const Stencil s = stencil(g, n, m, j);
  std::int64_t input = -1;
  double weight = 0;
  for (int t = 0; t < s.count; ++t) {
    const std::int64_t i = std::clamp<std::int64_t>(s.first + t, 0, n - 1);
    if (i != input && input >= 0) {
      if (weight != 0) f(input, weight);
      weight = 0;
    }
    input = i;
    weight += s.weight[t];
  }
  if (weight != 0) f(input, weight);
}

std::int64_t first_tap(const InterpolateGeometry& g,
                       std::int64_t n,
                       std::int64_t m,
                       std::int64_t j) {
  return std::clamp<std::int64_t>(stencil(g, n, m, j).first, 0, n - 1);
}

std::int64_t last_tap(const InterpolateGeometry& g,
                      std::int64_t n,
                      std::int64_t m,
                      std::int64_t j) {
  const Stencil s = stencil(g, n, m, j);
  return std::clamp<std::int64_t>(s.first + s.count - 1, 0, n - 1);
}

/// The first j of [0, m] at which a condition that stays true begins.
template <class F>
std::int64_t first_where(std::int64_t m, const F& condition) {
  std::int64_t lo = 0, hi = m;
  while (lo < hi) {
    const std::int64_t middle = lo + (hi - lo) / 2;
    if (condition(middle)) {
      hi = middle;
    } else {
      lo = middle + 1;
    }
  }
  return lo;
}

/// The sizes of input and output of the three domain dimensions of a grid.
using Sizes = std::array<std::int64_t, 3>;

void check_sizes(const char* op, const Piece& in, const Piece& out) {
  if (in.global.size() != in.view.dims() || out.global.size() != out.view.dims())
    throw ShapeError(str(op, ": global shapes ", in.global, " and ", out.global,
                         " do not have the dimensions of the pieces."));
}

}  // namespace

const char* name(InterpolateMode mode) {
  switch (mode) {
    case InterpolateMode::kNearest:
      return "nearest";
    case InterpolateMode::kLinear:
      return "linear";
    case InterpolateMode::kCubic:
      return "cubic";
  }
  return "?";
}

Interval interpolate_need(const InterpolateGeometry& g,
                          std::int64_t n,
                          std::int64_t m,
                          Interval out) {
  if (out.empty()) return {0, 0};
  return {first_tap(g, n, m, out.lo), last_tap(g, n, m, out.hi - 1) + 1};
}

Interval interpolate_adjoint_need(const InterpolateGeometry& g,
                                  std::int64_t n,
                                  std::int64_t m,
                                  Interval in) {
  if (in.empty()) return {0, 0};
  return {first_where(m, [&](std::int64_t j) { return last_tap(g, n, m, j) >= in.lo; }),
          first_where(m, [&](std::int64_t j) { return first_tap(g, n, m, j) >= in.hi; })};
}

void interpolate_forward(const InterpolateGeometry& g, const Piece& x, const Piece& y) {
  cpu::check_pixels("interpolate", 0, x, y);
  check_sizes("interpolate", x, y);
  if (y.view.empty()) return;
  const cpu::Grid in(x), out(y);
  std::array<TapTable, 3> tables;
  for (std::size_t d = 0; d < 3; ++d) {
    const Interval have = in.box[d + 1];
    for (std::int64_t j = out.box[d + 1].lo; j < out.box[d + 1].hi; ++j) {
      for_each_tap(g, in.domain[d], out.domain[d], j, [&](std::int64_t i, double weight) {
        if (i < have.lo || i >= have.hi)
          throw ShapeError(str("interpolate: output ", j, " reads input ", i,
                               ", which is not in the piece ", x.box, "."));
        tables[d].taps.push_back({i, weight});
      });
      tables[d].close_output();
    }
  }
  cpu::apply_separable(tables, x, y);
}

void interpolate_input_grad(const InterpolateGeometry& g, const Piece& dy, const Piece& dx) {
  cpu::check_pixels("interpolate_input_grad", 0, dy, dx);
  check_sizes("interpolate_input_grad", dy, dx);
  if (dx.view.empty()) return;
  const cpu::Grid in(dy), out(dx);
  std::array<TapTable, 3> tables;
  std::array<Interval, 3> needs;
  for (std::size_t d = 0; d < 3; ++d) {
    needs[d] = interpolate_adjoint_need(g, out.domain[d], in.domain[d], out.box[d + 1]);
    if (needs[d].empty()) return fill(dx.view, 0.0);  // no output reads any of these inputs
  }
  for (std::size_t d = 0; d < 3; ++d) {
    const Interval want = out.box[d + 1], need = needs[d];
    const std::int64_t n = out.domain[d], m = in.domain[d];
    if (!in.box[d + 1].contains(need))
      throw ShapeError(str("interpolate_input_grad: inputs ", want.lo, " to ", want.hi,
                           " are read by outputs ", need.lo, " to ", need.hi,
                           ", which are not all in the piece ", dy.box, "."));
    std::vector<std::vector<TapTable::Tap>> readers(static_cast<std::size_t>(want.size()));
    for (std::int64_t j = need.lo; j < need.hi; ++j)
      for_each_tap(g, n, m, j, [&](std::int64_t i, double weight) {
        if (i >= want.lo && i < want.hi)
          readers[static_cast<std::size_t>(i - want.lo)].push_back({j, weight});
      });
    for (const auto& list : readers) {
      tables[d].taps.insert(tables[d].taps.end(), list.begin(), list.end());
      tables[d].close_output();
    }
  }
  cpu::apply_separable(tables, dy, dx);
}

}  // namespace tessera::kernels
