#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/nn/weight_norms.hpp>

#include "conv_options.hpp"

namespace tessera::nn {
namespace {

/// Mean square of what an initialiser draws.
double mean_square(const Init& init) {
  switch (init.kind) {
    case Init::Kind::kUniform:
      return (init.a * init.a + init.a * init.b + init.b * init.b) / 3.0;
    case Init::Kind::kNormal:
      return init.a * init.a + init.b * init.b;
    case Init::Kind::kConstant:
      return init.a * init.a;
    case Init::Kind::kUnset:
      break;
  }
  return 1.0;
}

Shape ones_behind(const Shape& shape) {
  Shape result = Shape::filled(shape.size(), 1);
  result[0] = shape[0];
  return result;
}

/// All dimensions but the first.
Dims inner_dims(const Shape& shape) {
  Dims dims;
  for (int d = 1; d < shape.size(); ++d) dims.push_back(d);
  return dims;
}

Shape matrix_shape(const Shape& shape) { return {shape[0], shape.product() / shape[0]}; }

/// x / |x|
Tensor unit(const Tensor& x) {
  return x / clamp(sqrt(sum(square(x))), 1e-12, std::numeric_limits<double>::infinity());
}

Shape checked(const LinearOptions& o) {
  if (o.in <= 0 || o.out <= 0) {
    throw UsageError(str("NormalizedLinear: ", o.in, " -> ", o.out,
                         " channels (both must be positive). Set .in and .out."));
  }
  return {o.out, o.in};
}

Shape weight_shape(const ConvLayerOptions& options) {
  const ConvLayerOptions o = complete_options("NormalizedConv", options, true);
  return conv_weight_shape(o.out, o.kernel, o.in / o.groups);
}

Init weight_init(const Init& given, const Shape& shape) {
  return given.or_else(init::torch_default(shape));
}

}  // namespace

WeightNorm::WeightNorm(const Shape& shape, const Init& init, const Mesh& mesh, DType dtype)
    : v(Parameter(shape, init, mesh, dtype).exact()),
      g(Parameter(ones_behind(shape),
                  init::constant(std::sqrt(mean_square(init) *
                                           static_cast<double>(shape.product() / shape[0]))),
                  mesh,
                  dtype)
            .exact()) {}

void WeightNorm::fields(Fields& f) {
  f("v", v);
  f("g", g);
}

Tensor WeightNorm::operator()() const {
  const LayerScope scope(scope_name());
  const Tensor direction = v();
  return direction * (g() * rsqrt(sum(square(direction), inner_dims(v.shape()), true)));
}

SpectralNorm::SpectralNorm(const Shape& shape, const Init& init, const Mesh& mesh, DType dtype)
    : weight(Parameter(shape, init, mesh, dtype).exact()) {
  const Shape matrix = matrix_shape(shape);
  u = init::normal(0.0, 1.0)(Layout::replicated(mesh, {matrix[0], 1}), {1, 1}, dtype);
  v = Tensor::zeros(Layout::replicated(mesh, {1, matrix[1]}), dtype);
}

void SpectralNorm::fields(Fields& f) {
  f("weight", weight);
  f("u", u);
  f("v", v);
}

bool SpectralNorm::started() const {
  if (started_ || dry_run()) return true;
  const View values = v.local();
  for (std::int64_t i = 0; i < values.size() && !started_; ++i)
    started_ = load_as_double(values.data, values.dtype, i) != 0.0;
  return started_;
}

void SpectralNorm::iterate(const Tensor& matrix) const {
  const NoGrad no_grad;
  const auto keep = [](const Tensor& x, const Tensor& buffer) {
    const Tensor whole = cast(redistribute(x, buffer.layout()), buffer.dtype());
    kernels::copy(whole.local(), buffer.mutable_local());
  };
  for (int step = started() ? 1 : 15; step > 0; --step) {
    keep(unit(sum(matrix * u, {0}, true)), v);
    keep(unit(sum(matrix * v, {1}, true)), u);
  }
}

Tensor SpectralNorm::operator()() const {
  const LayerScope scope(scope_name());
  const Tensor w = weight();
  const Tensor matrix = reshape(w, matrix_shape(w.shape()));
  bool first = false;
  const RandomKey stamp = replayed([&] {
    first = true;
    if (training() || !started()) {
      iterate(matrix);
      ++steps_;
    }
    return RandomKey{steps_, 0};
  });
  if (!first && stamp.high != steps_) {
    throw UsageError(str("spectral norm: ", path(),
                         " took another step of its power iteration since the call that is "
                         "computed again. Leave it out of recompute()."));
  }
  // Copies: the next step changes the buffers in place.
  const Tensor left = affine(u, 1.0), right = affine(v, 1.0);
  const Tensor sigma = sum(sum(matrix * right, {1}, true) * left);
  return w / sigma;
}

template <class Norm>
NormalizedLinear<Norm>::NormalizedLinear(const LinearOptions& options,
                                         const Mesh& mesh,
                                         DType dtype)
    : weight(checked(options), weight_init(options.weight_init, checked(options)), mesh, dtype) {
  if (options.bias) {
    const Init fallback = init::torch_default(weight.shape());
    bias = Parameter({options.out}, options.bias_init.or_else(fallback), mesh, dtype);
  }
}

template <class Norm>
void NormalizedLinear<Norm>::fields(Fields& f) {
  f("weight", weight);
  f("bias", bias);
}

template <class Norm>
Tensor NormalizedLinear<Norm>::forward(const Tensor& x) const {
  const Tensor b = bias();
  return linear(x, cast(weight(), x.dtype()), b.defined() ? cast(b, x.dtype()) : b);
}

template <class Norm>
std::string NormalizedLinear<Norm>::describe() const {
  return fmt::format("Linear {} -> {}", weight.shape()[1], weight.shape()[0]);
}

template <class Norm>
NormalizedConv<Norm>::NormalizedConv(const ConvLayerOptions& options, const Mesh& mesh, DType dtype)
    : weight(weight_shape(options),
             weight_init(options.weight_init, weight_shape(options)),
             mesh,
             dtype) {
  if (options.bias) {
    const Init fallback = init::torch_default(weight.shape());
    bias = Parameter({options.out}, options.bias_init.or_else(fallback), mesh, dtype);
  }
  options_ = op_options(complete_options("NormalizedConv", options, true));
}

template <class Norm>
void NormalizedConv<Norm>::fields(Fields& f) {
  f("weight", weight);
  f("bias", bias);
}

template <class Norm>
Tensor NormalizedConv<Norm>::forward(const Tensor& x) const {
  const Tensor b = bias();
  return conv(x, cast(weight(), x.dtype()), b.defined() ? cast(b, x.dtype()) : b, options_);
}

template <class Norm>
std::string NormalizedConv<Norm>::describe() const {
  const Shape& w = weight.shape();
  return describe_conv("Conv", w.back() * options_.groups, w[0], w, options_.stride,
                       options_.groups);
}

template class NormalizedLinear<WeightNorm>;
template class NormalizedLinear<SpectralNorm>;
template class NormalizedConv<WeightNorm>;
template class NormalizedConv<SpectralNorm>;

}  // namespace tessera::nn
