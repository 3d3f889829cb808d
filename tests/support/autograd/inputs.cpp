#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/op_test.hpp"

namespace tessera::test {

bool InputSpec::cuts(int dim) const {
  for (const std::int64_t d : cuttable) {
    if (d == -1 || d == dim) return true;
  }
  return false;
}

InputSpec uniform(const Shape& shape, double lo, double hi) {
  InputSpec spec{.shape = shape};
  spec.values = [lo, hi](const Shape& s, std::uint64_t seed) {
    return random_array(s, seed, lo, hi);
  };
  return spec;
}

InputSpec away_from(const Shape& shape,
                    const std::vector<double>& points,
                    double gap,
                    double range) {
  InputSpec spec{.shape = shape};
  spec.values = [=](const Shape& s, std::uint64_t seed) {
    DenseArray a = random_array(s, seed, -range, range);
    Rng rng(seed);
    const auto near = [&](double v) {
      return std::any_of(points.begin(), points.end(),
                         [&](double p) { return std::abs(v - p) < gap; });
    };
    for (double& v : a.values) {
      while (near(v)) v = rng.real(-range, range);
    }
    return a;
  };
  return spec;
}

namespace {

std::vector<std::int64_t> shuffled(std::int64_t n, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  Rng rng(seed);
  for (std::int64_t i = n - 1; i > 0; --i) {
    std::swap(order[static_cast<std::size_t>(i)],
              order[static_cast<std::size_t>(rng.integer(0, i))]);
  }
  return order;
}

}  // namespace

InputSpec distinct(const Shape& shape) {
  InputSpec spec{.shape = shape};
  spec.values = [](const Shape& s, std::uint64_t seed) {
    DenseArray a(s);
    const std::vector<std::int64_t> order = shuffled(a.size(), seed);
    for (std::size_t i = 0; i < order.size(); ++i) {
      a.values[i] = -1.0 + 2.0 * static_cast<double>(order[i]) / static_cast<double>(order.size());
    }
    return a;
  };
  return spec;
}

InputSpec integers(const Shape& shape, std::int64_t lo, std::int64_t hi, DType dtype) {
  InputSpec spec{.shape = shape, .dtype = dtype, .differentiable = false};
  spec.values = [lo, hi](const Shape& s, std::uint64_t seed) {
    DenseArray a(s);
    Rng rng(seed);
    for (double& v : a.values) v = static_cast<double>(rng.integer(lo, hi));
    return a;
  };
  return spec;
}

InputSpec permutation(std::int64_t n, DType dtype) {
  InputSpec spec{.shape = Shape{n}, .dtype = dtype, .differentiable = false};
  spec.values = [](const Shape& s, std::uint64_t seed) {
    DenseArray a(s);
    const std::vector<std::int64_t> order = shuffled(s[0], seed);
    for (std::size_t i = 0; i < order.size(); ++i) a.values[i] = static_cast<double>(order[i]);
    return a;
  };
  return spec;
}

InputSpec flags(const Shape& shape, double probability) {
  InputSpec spec{.shape = shape, .dtype = DType::kBool, .differentiable = false};
  spec.values = [probability](const Shape& s, std::uint64_t seed) {
    DenseArray a(s);
    Rng rng(seed);
    for (double& v : a.values) v = rng.coin(probability) ? 1.0 : 0.0;
    return a;
  };
  return spec;
}

InputSpec given(const DenseArray& values, DType dtype) {
  InputSpec spec{.shape = values.shape, .dtype = dtype, .differentiable = is_floating(dtype)};
  spec.values = [values](const Shape&, std::uint64_t) { return values; };
  return spec;
}

InputSpec absent() {
  InputSpec spec;
  spec.absent = true;
  spec.differentiable = false;
  return spec;
}

InputSpec constant(InputSpec spec) {
  spec.differentiable = false;
  return spec;
}

}  // namespace tessera::test
