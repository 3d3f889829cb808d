// Sums, maxima, minima, and `all` and `any` over dimensions. Over a split dimension the result is
// Partial, with the reduction's own operation; it is taken where a value is first needed.

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/logical.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/kernels/reduce.hpp>

#include "broadcast.hpp"

namespace tessera {

namespace {

using kernels::ReduceKind;

struct ReduceArgs {
  std::int64_t dims;  // bit d: dimension d is reduced
  std::int64_t keepdim;

  bool reduces(int d) const { return (dims >> d & 1) != 0; }
};

Shape reduced_shape(const Shape& shape, const ReduceArgs& args, bool keepdim) {
  Shape result;
  for (int d = 0; d < shape.size(); ++d) {
    if (!args.reduces(d)) {
      result.push_back(shape[d]);
    } else if (keepdim) {
      result.push_back(1);
    }
  }
  return result;
}

constexpr ReduceOp partial_op(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kMax:
    case ReduceKind::kAny:
      return ReduceOp::kMax;
    case ReduceKind::kMin:
    case ReduceKind::kAll:
      return ReduceOp::kMin;
    case ReduceKind::kSum:
      break;
  }
  return ReduceOp::kSum;
}

constexpr bool is_extreme(ReduceKind kind) {
  return kind == ReduceKind::kMax || kind == ReduceKind::kMin;
}
constexpr bool is_logical(ReduceKind kind) {
  return kind == ReduceKind::kAll || kind == ReduceKind::kAny;
}

const char* op_name(ReduceKind kind) {
  return kind == ReduceKind::kMax   ? "amax"
         : kind == ReduceKind::kMin ? "amin"
                                    : kernels::name(kind);
}

template <ReduceKind kind>
void infer_reduce(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<ReduceArgs>();
  const Shape& shape = problem.shape(0);
  if (is_logical(kind) && problem.dtypes[0] != DType::kBool) {
    throw DTypeError(str(op_name(kind), ": element type ", name(problem.dtypes[0]),
                         " is not bool. Compare it with something."));
  }
  for (int d = 0; is_extreme(kind) && d < shape.size(); ++d) {
    if (args.reduces(d) && shape[d] == 0) {
      throw ShapeError(str(op_name(kind), ": dimension ", d, " of ", shape,
                           " is empty (nothing has no extreme). Reduce another one."));
    }
  }
  out.push_back({reduced_shape(shape, args, args.keepdim != 0), problem.dtypes[0]});
}

template <ReduceKind kind>
void reduce_signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  const auto& args = problem.as<ReduceArgs>();
  legal.push_back({.in = {partial_role()},
                   .out = {partial_role()},
                   .bounds = {},
                   .partial_op = partial_op(kind)});
  int to = 0;
  for (int d = 0; d < problem.shape(0).size(); ++d) {
    legal.push_back({.in = {shard_role(d)},
                     .out = {args.reduces(d) ? partial_role() : shard_role(to)},
                     .bounds = {},
                     .partial_op = partial_op(kind)});
    if (!args.reduces(d) || args.keepdim) ++to;
  }
}

template <ReduceKind kind>
void reduce_local(const LocalCall& call) {
  // The kernel wants size 1 where it reduces.
  View y = call.out[0].view;
  y.shape = reduced_shape(call.in[0].view.shape, call.as<ReduceArgs>(), true);
  y.strides = row_major(y.shape);
  kernels::reduce(kind, call.in[0].view, y);
}

void sum_vjp(VjpContext& context) {
  const auto& args = context.as<ReduceArgs>();
  const Layout& layout = context.input_layout(0);
  context.set(0,
              expand(reshape(context.grad(), reduced_shape(layout.shape(), args, true)), layout));
}

void extreme_vjp(VjpContext& context) {
  const auto& args = context.as<ReduceArgs>();
  const Tensor x = context.input(0);
  const Shape kept = reduced_shape(x.shape(), args, true);
  const Tensor mask = cast(equal(x, reshape(reduced(context.output(0)).detach(), kept)), x.dtype());
  Dims dims;
  for (int d = 0; d < x.dims(); ++d)
    if (args.reduces(d)) dims.push_back(d);
  context.set(0, mask * (reshape(context.grad(), kept) / sum(mask, dims, true)));
}

template <ReduceKind kind>
const OpDef& reduce_op() {
  static const OpDef op = {.name = op_name(kind),
                           .infer = infer_reduce<kind>,
                           .signatures = reduce_signatures<kind>,
                           .local = reduce_local<kind>,
                           .vjp = is_extreme(kind)           ? extreme_vjp
                                  : kind == ReduceKind::kSum ? sum_vjp
                                                             : nullptr,
                           .saved_inputs = is_extreme(kind) ? 1u : 0u,
                           .saved_outputs = is_extreme(kind) ? 1u : 0u};
  return op;
}

ReduceArgs reduce_args(const char* op, const Tensor& x, const Dims& dims, bool keepdim) {
  std::int64_t mask = 0;
  for (const std::int64_t d : dims) {
    const std::int64_t bit = std::int64_t{1} << wrap_dim(op, d, x.dims());
    if (mask & bit) throw ShapeError(str(op, ": dimension ", d, " is listed twice in ", dims, "."));
    mask |= bit;
  }
  if (dims.empty()) mask = (std::int64_t{1} << x.dims()) - 1;
  return {mask, keepdim};
}

/// Number of elements that one mean is taken of.
std::int64_t mean_count(const char* op, const Tensor& x, const Dims& dims) {
  const ReduceArgs args = reduce_args(op, x, dims, false);
  std::int64_t count = 1;
  for (int d = 0; d < x.dims(); ++d)
    if (args.reduces(d)) count *= x.shape()[d];
  if (count == 0) {
    throw ShapeError(str(op, ": ", x.shape(), " is empty where it is averaged (nothing has no ", op,
                         "). Reduce other dimensions."));
  }
  return count;
}

}  // namespace

Tensor sum(const Tensor& x, const Dims& dims, bool keepdim) {
  return call(reduce_op<ReduceKind::kSum>(), {x}, reduce_args("sum", x, dims, keepdim));
}
Tensor amax(const Tensor& x, const Dims& dims, bool keepdim) {
  return call(reduce_op<ReduceKind::kMax>(), {x}, reduce_args("amax", x, dims, keepdim));
}
Tensor amin(const Tensor& x, const Dims& dims, bool keepdim) {
  return call(reduce_op<ReduceKind::kMin>(), {x}, reduce_args("amin", x, dims, keepdim));
}
Tensor all(const Tensor& x, const Dims& dims, bool keepdim) {
  return call(reduce_op<ReduceKind::kAll>(), {x}, reduce_args("all", x, dims, keepdim));
}
Tensor any(const Tensor& x, const Dims& dims, bool keepdim) {
  return call(reduce_op<ReduceKind::kAny>(), {x}, reduce_args("any", x, dims, keepdim));
}

Tensor mean(const Tensor& x, const Dims& dims, bool keepdim) {
  const auto count = static_cast<double>(mean_count("mean", x, dims));
  return affine(sum(x, dims, keepdim), 1.0 / count);
}

Tensor var(const Tensor& x, const Dims& dims, double correction, bool keepdim) {
  const auto count = static_cast<double>(mean_count("var", x, dims));
  const Tensor deviation = x - mean(x, dims, true);
  return affine(sum(square(deviation), dims, keepdim), 1.0 / (count - correction));
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  if (!(broadcast_shape("sum_to", shape, x.shape()) == x.shape())) {
    throw ShapeError(str("sum_to: ", shape, " does not stretch to ", x.shape(),
                         ", so it is not what was stretched."));
  }
  // Leading dimensions go in the sum itself: of several of size 1 a reshape could not say which.
  Dims leading, stretched;
  for (int d = 0; d < x.dims() - shape.size(); ++d) leading.push_back(d);
  const Tensor y = leading.empty() ? x : sum(x, leading);
  for (int d = 0; d < shape.size(); ++d)
    if (shape[d] == 1 && y.shape()[d] != 1) stretched.push_back(d);
  return stretched.empty() ? y : sum(y, stretched, true);
}

}  // namespace tessera
