#pragma once

#include <algorithm>
#include <tessera/core/shape.hpp>
#include <vector>

namespace tessera {

/// The half-open range [lo, hi) of one dimension; empty when hi <= lo.
struct Interval {
  std::int64_t lo = 0;
  std::int64_t hi = 0;

  constexpr std::int64_t size() const { return hi > lo ? hi - lo : 0; }
  constexpr bool empty() const { return hi <= lo; }
  constexpr bool contains(Interval inner) const {
    return inner.empty() || (lo <= inner.lo && inner.hi <= hi);
  }
  friend constexpr bool operator==(Interval a, Interval b) = default;
};

constexpr Interval intersect(Interval a, Interval b) {
  const Interval c{std::max(a.lo, b.lo), std::min(a.hi, b.hi)};
  return c.empty() ? Interval{c.lo, c.lo} : c;
}

/// A product of intervals in global coordinates.
struct Box {
  Dims lo;
  Dims hi;

  Box() = default;
  Box(Dims low, Dims high) : lo(low), hi(high) {}
  /// [0, shape)
  static Box whole(const Shape& shape) { return Box(Dims::filled(shape.size(), 0), shape); }

  int dims() const { return lo.size(); }
  Interval operator[](int d) const { return {lo[d], hi[d]}; }
  void set(int d, Interval i) {
    lo[d] = i.lo;
    hi[d] = i.hi;
  }
  Shape shape() const {
    Shape s;
    for (int d = 0; d < dims(); ++d) s.push_back((*this)[d].size());
    return s;
  }
  std::int64_t volume() const { return shape().product(); }
  bool empty() const {
    for (int d = 0; d < dims(); ++d)
      if ((*this)[d].empty()) return true;
    return false;
  }
  bool contains(const Box& inner) const {
    if (inner.empty()) return true;
    for (int d = 0; d < dims(); ++d)
      if (!(*this)[d].contains(inner[d])) return false;
    return true;
  }
  friend bool operator==(const Box& a, const Box& b) = default;
  std::string str() const;
};

std::ostream& operator<<(std::ostream& out, const Box& box);

/// The common part; empty when there is none.
Box intersect(const Box& a, const Box& b);

/// `outer` without `inner` as at most 2 * dims disjoint boxes, in a fixed order (low side, high
/// side per dimension, outermost dimension first). `inner` is clipped to `outer`; an empty `inner`
/// yields `outer` itself.
std::vector<Box> difference(const Box& outer, const Box& inner);

}  // namespace tessera
