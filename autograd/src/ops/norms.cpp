// Norms, products and logsumexp in smaller ops.

#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/logical.hpp>
#include <tessera/autograd/ops/norms.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>

namespace tessera {

namespace {

void check_floating(const char* op, const Tensor& x) {
  if (!is_floating(x.dtype()))
    throw DTypeError(
        str(op, ": element type ", name(x.dtype()), " is not floating. Cast it first."));
}

/// total^exponent where total > 0, else 0, without a gradient there: the slope at 0 is infinite.
Tensor root(const Tensor& total, double exponent) {
  const Tensor x = reduced(total);
  const Tensor positive = greater(x, 0.0);
  const Tensor safe = where(positive, x, Tensor::scalar(x.mesh(), 1.0, x.dtype()));
  const Tensor power = exponent == 0.5 ? sqrt(safe) : pow(safe, exponent);
  return where(positive, power, Tensor::scalar(x.mesh(), 0.0, x.dtype()));
}

}  // namespace

Tensor vector_norm(const Tensor& x, double p, const Dims& dims, bool keepdim) {
  check_floating("vector_norm", x);
  if (std::isnan(p) || (p < 0.0 && !std::isinf(p))) {
    throw UsageError(
        str("vector_norm: p ", p, " is negative (that is no norm). Use p >= 0 or an infinity."));
  }
  const Tensor whole = reduced(x);
  if (std::isinf(p))
    return p > 0.0 ? amax(abs(whole), dims, keepdim) : amin(abs(whole), dims, keepdim);
  if (p == 0.0) return sum(cast(not_equal(whole, 0.0), x.dtype()), dims, keepdim);
  if (p == 1.0) return sum(abs(whole), dims, keepdim);
  if (p == 2.0) return root(sum(square(whole), dims, keepdim), 0.5);
  // |x|^p has an infinite slope at 0 for p < 1.
  const Tensor other = not_equal(whole, 0.0);
  const Tensor safe = where(other, abs(whole), Tensor::scalar(x.mesh(), 1.0, x.dtype()));
  const Tensor powers = where(other, pow(safe, p), Tensor::scalar(x.mesh(), 0.0, x.dtype()));
  return root(sum(powers, dims, keepdim), 1.0 / p);
}

Tensor matrix_norm(const Tensor& x, MatrixNorm kind, int row, int column) {
  const int r = wrap_dim("matrix_norm", row, x.dims());
  const int c = wrap_dim("matrix_norm", column, x.dims());
  if (r == c)
    throw ShapeError(str("matrix_norm: rows and columns are both dimension ", r, " of ", x.shape(),
                         ". Name two."));
  if (kind == MatrixNorm::kFrobenius) return vector_norm(x, 2.0, {r, c});
  check_floating("matrix_norm", x);
  const int summed = kind == MatrixNorm::kOne ? r : c;
  const int compared = kind == MatrixNorm::kOne ? c : r;
  const Tensor sums = reduced(sum(abs(reduced(x)), {summed}));
  return amax(sums, {compared > summed ? compared - 1 : compared});
}

Tensor dot(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape()))
    throw ShapeError(str("dot: ", a.shape(), " and ", b.shape(), " differ. They must be equal."));
  return sum(a * b);
}

Tensor outer(const Tensor& a, const Tensor& b) {
  if (a.dims() != 1 || b.dims() != 1)
    throw ShapeError(
        str("outer: ", a.shape(), " and ", b.shape(), " are not [n] and [m]. Reshape them."));
  return reshape(a, {a.size(0), 1}) * reshape(b, {1, b.size(0)});
}

Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim) {
  check_floating("logsumexp", x);
  const Tensor whole = reduced(x);
  const Tensor top = reduced(amax(whole.detach(), dims, true));
  // An infinite one would make a NaN of inf - inf.
  const Tensor shift = where(isfinite(top), top, Tensor::scalar(x.mesh(), 0.0, x.dtype()));
  const Tensor y = log(reduced(sum(exp(whole - shift), dims, keepdim)));
  return y + reshape(shift, y.shape());
}

}  // namespace tessera
