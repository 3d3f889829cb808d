#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/autograd/ops/softmax.hpp>

namespace tessera {

namespace {

/// x less its largest element, which changes no result and so counts as a constant.
Tensor below_zero(const char* op, const Tensor& x, const Dims& dims) {
  if (!is_floating(x.dtype()))
    throw DTypeError(
        str(op, ": element type ", name(x.dtype()), " is not floating. Cast it first."));
  const Tensor whole = reduced(x);
  return whole - amax(whole.detach(), dims, true);
}

}  // namespace

Tensor softmax(const Tensor& x, const Dims& dims) {
  if (x.dtype() == DType::kBFloat16)  // sums of 8 bits are none
    return cast(softmax(cast(x, DType::kFloat32), dims), x.dtype());
  const Tensor e = exp(below_zero("softmax", x, dims));
  return e / sum(e, dims, true);
}

Tensor log_softmax(const Tensor& x, const Dims& dims) {
  if (x.dtype() == DType::kBFloat16)
    return cast(log_softmax(cast(x, DType::kFloat32), dims), x.dtype());
  const Tensor shifted = below_zero("log_softmax", x, dims);
  return shifted - log(sum(exp(shifted), dims, true));
}

}  // namespace tessera
