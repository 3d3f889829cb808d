#pragma once

#include <tessera/autograd/ops/random.hpp>
#include <tessera/core/layout.hpp>
#include <tessera/core/tensor.hpp>

namespace tessera::nn {

/// How a parameter gets its first values: a distribution, drawn by global element index, so that
/// every mesh gives the same values.
struct Init {
  enum class Kind : std::uint8_t {
    kUnset,     ///< the layer's own default
    kConstant,  ///< `a`
    kUniform,   ///< on [a, b)
    kNormal     ///< mean `a`, standard deviation `b`
  };
  Kind kind = Kind::kUnset;
  double a = 0.0;
  double b = 0.0;

  /// This one, or `fallback` where it is unset.
  Init or_else(const Init& fallback) const { return kind == Kind::kUnset ? fallback : *this; }
  /// New values of this layout; throws UsageError when unset.
  Tensor operator()(const Layout& layout, RandomKey key, DType dtype) const;
};

/// Numbers of terms that meet in one output and that one input takes part in.
struct Fan {
  std::int64_t in = 1;
  std::int64_t out = 1;
};
/// Fans of a weight [out, k..., in] (linear, convolution): in = size / out, out = out * prod(k).
Fan fan_of(const Shape& weight);

/// Gain of kaiming_* for a (leaky) ReLU: sqrt(2 / (1 + slope^2)).
double relu_gain(double slope = 0.0);

namespace init {

Init zeros();
Init ones();
Init constant(double value);
Init uniform(double low, double high);
Init normal(double mean, double stddev);
/// Standard deviation gain / sqrt(fan in) (He et al. 2015).
Init kaiming_uniform(const Shape& weight, double gain = relu_gain());
Init kaiming_normal(const Shape& weight, double gain = relu_gain());
/// Standard deviation gain sqrt(2 / (fan in + fan out)) (Glorot & Bengio 2010).
Init xavier_uniform(const Shape& weight, double gain = 1.0);
Init xavier_normal(const Shape& weight, double gain = 1.0);
/// PyTorch's default for weights and biases of linear and convolution layers: uniform on
/// +-1 / sqrt(fan in), where `weight` is the layer's weight also for the bias.
Init torch_default(const Shape& weight);

}  // namespace init
}  // namespace tessera::nn
