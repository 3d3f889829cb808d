#include <cmath>
#include <tessera/nn/init.hpp>

namespace tessera::nn {

Tensor Init::operator()(const Layout& layout, RandomKey key, DType dtype) const {
  switch (kind) {
    case Kind::kConstant:
      return Tensor::full(layout, a, dtype);
    case Kind::kUniform:
      return random_uniform(layout, key, a, b, dtype);
    case Kind::kNormal:
      return random_normal(layout, key, a, b, dtype);
    case Kind::kUnset:
      break;
  }
  throw UsageError(
      "init: no distribution given (the initialiser is unset). Use one of nn::init, e.g. "
      "nn::init::zeros().");
}

Fan fan_of(const Shape& weight) {
  if (weight.size() < 2) {
    throw ShapeError(str("init: shape ", weight,
                         " has no fans (a weight has at least two dimensions). Give the standard "
                         "deviation with nn::init::normal."));
  }
  std::int64_t taps = 1;
  for (int d = 1; d + 1 < weight.size(); ++d) taps *= weight[d];
  return {.in = taps * weight.back(), .out = taps * weight[0]};
}

double relu_gain(double slope) { return std::sqrt(2.0 / (1.0 + slope * slope)); }

namespace init {
namespace {

Init uniform_of(double stddev) {
  const double bound = std::sqrt(3.0) * stddev;
  return uniform(-bound, bound);
}

double kaiming_stddev(const Shape& weight, double gain) {
  return gain / std::sqrt(static_cast<double>(fan_of(weight).in));
}

double xavier_stddev(const Shape& weight, double gain) {
  const Fan fan = fan_of(weight);
  return gain * std::sqrt(2.0 / static_cast<double>(fan.in + fan.out));
}

}  // namespace

Init zeros() { return constant(0.0); }
Init ones() { return constant(1.0); }
Init constant(double value) { return {Init::Kind::kConstant, value, 0.0}; }
Init uniform(double low, double high) { return {Init::Kind::kUniform, low, high}; }
Init normal(double mean, double stddev) { return {Init::Kind::kNormal, mean, stddev}; }
Init kaiming_uniform(const Shape& weight, double gain) {
  return uniform_of(kaiming_stddev(weight, gain));
}
Init kaiming_normal(const Shape& weight, double gain) {
  return normal(0.0, kaiming_stddev(weight, gain));
}
Init xavier_uniform(const Shape& weight, double gain) {
  return uniform_of(xavier_stddev(weight, gain));
}
Init xavier_normal(const Shape& weight, double gain) {
  return normal(0.0, xavier_stddev(weight, gain));
}
Init torch_default(const Shape& weight) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(fan_of(weight).in));
  return uniform(-bound, bound);
}

}  // namespace init
}  // namespace tessera::nn
