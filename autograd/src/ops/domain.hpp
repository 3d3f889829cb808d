#pragma once

#include <algorithm>
#include <tessera/core/layout.hpp>

namespace tessera {

constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return -floor_div(-a, b); }

/// Boundaries of an output of size m where input boundary b becomes `map(b)`, clamped; the last
/// part takes what is left.
template <class Map>
Bounds mapped_bounds(const Bounds& from, std::int64_t m, Map map) {
  Bounds bounds;
  for (const std::int64_t b : from) bounds.push_back(std::clamp<std::int64_t>(map(b), 0, m));
  bounds.front() = 0;
  bounds.back() = m;
  return bounds;
}

/// Number of domain dimensions of [N, domain..., C]; throws ShapeError unless 1 to 3.
int domain_dims(const char* op, const Shape& shape);

/// An option list with one value per domain dimension: empty means `standard`, one value means all.
/// Throws ShapeError on another length, or values below `least`.
Dims per_dim(const char* op,
             const char* option,
             const Dims& values,
             int dims,
             std::int64_t standard,
             std::int64_t least);

}  // namespace tessera
