#include "support/dense.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tessera/core/hash.hpp>

namespace tessera::test {

namespace {

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  Hasher hasher;
  hasher.add(a);
  hasher.add(b);
  return hasher.value();
}

double to_unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

}  // namespace

std::size_t DenseArray::offset(const Index& index) const {
  if (index.size() != shape.size())
    throw ShapeError(str("index ", index, " into an array of shape ", shape));
  std::int64_t o = 0;
  for (int d = 0; d < shape.size(); ++d) {
    if (index[d] < 0 || index[d] >= shape[d])
      throw ShapeError(str("index ", index, " outside of shape ", shape));
    o = o * shape[d] + index[d];
  }
  return static_cast<std::size_t>(o);
}

double DenseArray::largest() const {
  double m = 0.0;
  for (const double v : values) m = std::max(m, std::abs(v));
  return m;
}

void for_each(const Shape& shape, const std::function<void(const Index&)>& f) {
  for_each_index(Box::whole(shape), f);
}

double dot(const DenseArray& a, const DenseArray& b) {
  if (a.shape != b.shape) throw ShapeError(str("dot: ", a.shape, " and ", b.shape));
  double s = 0.0;
  for (std::size_t i = 0; i < a.values.size(); ++i) s += a.values[i] * b.values[i];
  return s;
}

DenseArray rounded_to(const DenseArray& a, DType dtype) {
  DenseArray r = a;
  for (double& v : r.values) {
    double slot = 0.0;
    store_double(&slot, dtype, 0, v);
    v = load_as_double(&slot, dtype, 0);
  }
  return r;
}

std::uint64_t Rng::bits() {
  state_ = mix(state_, 0x7465737365726121u);
  return state_;
}

std::int64_t Rng::integer(std::int64_t lo, std::int64_t hi) {
  return lo + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(hi - lo + 1));
}

double Rng::real(double lo, double hi) { return lo + (hi - lo) * to_unit(bits()); }

double uniform_at(std::uint64_t seed, std::int64_t element) {
  return to_unit(mix(seed, static_cast<std::uint64_t>(element)));
}

DenseArray random_array(const Shape& shape, std::uint64_t seed, double lo, double hi) {
  DenseArray a(shape);
  for (std::int64_t i = 0; i < a.size(); ++i) {
    a.values[static_cast<std::size_t>(i)] = lo + (hi - lo) * uniform_at(seed, i);
  }
  return a;
}

}  // namespace tessera::test
