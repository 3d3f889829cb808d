// Truth values and orders by key and global element index.

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/draws.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/logical.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/kernels/permutation.hpp>

namespace tessera {

Tensor random_bernoulli(const Layout& layout, RandomKey key, double p) {
  if (!(p >= 0.0 && p <= 1.0))
    throw UsageError(str("random_bernoulli: probability ", p, " is not in [0, 1]."));
  // All 32 bits of a draw, as dropout looks at.
  return less(random_uniform(layout, key, 0.0, 1.0, DType::kFloat64), p);
}

Tensor bernoulli(const Tensor& p, RandomKey key) {
  if (!is_floating(p.dtype()))
    throw DTypeError(
        str("bernoulli: element type ", name(p.dtype()), " is not floating. Cast it first."));
  const DType dtype = p.dtype() == DType::kBFloat16 ? DType::kFloat32 : p.dtype();
  const Tensor chance = cast(reduced(p.detach()), dtype);
  return less(random_uniform(chance.layout(), key, 0.0, 1.0, dtype), chance);
}

Tensor random_permutation(const Layout& layout, RandomKey key) {
  if (layout.dims() != 1)
    throw ShapeError(
        str("random_permutation: layout ", layout, " is not [n]. Reshape the result."));
  if (layout.partial_axes()) {
    throw LayoutError(
        str("random_permutation: layout ", layout,
            " is a pending sum (a draw is a value, not a part of one). Use its dual()."));
  }
  const Tensor y = Tensor::empty(layout, DType::kInt64);
  kernels::random_permutation({key.high, key.low}, {y.mutable_local(), y.local_box(), y.shape()});
  return y;
}

}  // namespace tessera
