// Random numbers by key and global element index: the same on any mesh, and drawn again in backward
// instead of stored.

#include <tessera/autograd/ops/random.hpp>
#include <tessera/kernels/random.hpp>

#include "broadcast.hpp"

namespace tessera {

namespace {

struct DropoutScalars {
  double p;
  RandomKey key;
};

Tensor apply_dropout(const Tensor& x, const DropoutScalars& scalars);

/// Linear in x, and its own gradient.
const OpDef dropout_op = {
    .name = "dropout",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          if (!is_floating(problem.dtypes[0])) {
            throw DTypeError(str("dropout: element type ", name(problem.dtypes[0]),
                                 " is not floating. Cast it first."));
          }
          out.push_back({problem.shape(0), problem.dtypes[0]});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          partial_signature(problem, 0b1, legal);
          broadcast_signatures(problem, legal);
        },
    .local =
        [](const LocalCall& call) {
          const auto& scalars = call.dynamic_as<DropoutScalars>();
          kernels::dropout({scalars.key.high, scalars.key.low}, scalars.p, call.in[0].view,
                           call.out[0]);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(0, apply_dropout(context.grad(), context.dynamic_as<DropoutScalars>()));
        }};

Tensor apply_dropout(const Tensor& x, const DropoutScalars& scalars) {
  return call(dropout_op, {x}, NoArgs{}, scalars);
}

Tensor empty_whole(const char* op, const Layout& layout, DType dtype) {
  if (layout.partial_axes()) {
    throw LayoutError(
        str(op, ": layout ", layout,
            " is a pending sum (a draw is a value, not a part of one). Use its dual()."));
  }
  if (!is_floating(dtype))
    throw DTypeError(str(op, ": element type ", name(dtype), " is not floating. Cast the result."));
  return Tensor::empty(layout, dtype);
}

}  // namespace

Tensor dropout(const Tensor& x, double p, RandomKey key) {
  if (!(p >= 0.0 && p < 1.0))
    throw UsageError(str("dropout: probability ", p, " is not in [0, 1)."));
  return p == 0.0 ? x : apply_dropout(x, {p, key});
}

Tensor random_uniform(const Layout& layout, RandomKey key, double low, double high, DType dtype) {
  const Tensor y = empty_whole("random_uniform", layout, dtype);
  kernels::random_uniform({key.high, key.low}, low, high,
                          {y.mutable_local(), y.local_box(), y.shape()});
  return y;
}

Tensor random_normal(const Layout& layout, RandomKey key, double mean, double stddev, DType dtype) {
  const Tensor y = empty_whole("random_normal", layout, dtype);
  kernels::random_normal({key.high, key.low}, mean, stddev,
                         {y.mutable_local(), y.local_box(), y.shape()});
  return y;
}

}  // namespace tessera
