// Samples at points: positions of the elements around each point, their weights, and lookup(). The
// weights are one record with all of their derivatives, which differentiates into itself.

#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/grid_sample.hpp>
#include <tessera/autograd/ops/lookup.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/kernels/grid_sample.hpp>

#include "domain.hpp"

namespace tessera {

namespace {

struct GridArgs {
  Dims size;  // of the domain
  Dims rule;  // of the taps: edge rules; of the weights: order of the derivative
  std::int64_t mode;
  std::int64_t align_corners;

  kernels::GridGeometry geometry() const {
    return {static_cast<kernels::InterpolateMode>(mode), align_corners != 0};
  }
};

/// [..., D] -> [..., taps^D]
Shape with_taps(Shape shape, const GridArgs& args) {
  shape.back() = 1;
  for (int d = 0; d < args.size.size(); ++d)
    shape.back() *= kernels::grid_tap_count(args.geometry().mode);
  return shape;
}

/// Points are computed one by one.
void point_signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  for (int d = 0; d + 1 < problem.shape(0).size(); ++d)
    legal.push_back({.in = {shard_role(d)}, .out = {shard_role(d)}});
}

const OpDef taps_op = {
    .name = "grid_taps",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          out.push_back({with_taps(problem.shape(0), problem.as<GridArgs>()), DType::kInt64});
        },
    .signatures = point_signatures,
    .local =
        [](const LocalCall& call) {
          const auto& args = call.as<GridArgs>();
          kernels::grid_taps(args.geometry(), args.size, args.rule, call.in[0].view,
                             call.out[0].view);
        }};

extern const OpDef weights_op;

/// The derivative by each coordinate: the sum over taps of g and the weights of one order more.
void weights_vjp(VjpContext& context) {
  const auto& args = context.as<GridArgs>();
  const Tensor g = context.grad();
  const Tensor points = context.input(0);
  std::vector<Tensor> slopes;
  for (int d = 0; d < args.size.size(); ++d) {
    GridArgs next = args;
    ++next.rule[d];
    slopes.push_back(sum(g * Tensor(call(weights_op, {points}, next)), {-1}, true));
  }
  context.set(0, cast(concat(slopes, points.dims() - 1), context.input_dtype(0)));
}

/// Eight bits are too few for a weight: it is f32 for points of bf16.
const OpDef weights_op = {
    .name = "grid_weights",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          const DType dtype = problem.dtypes[0];
          out.push_back({with_taps(problem.shape(0), problem.as<GridArgs>()),
                         dtype == DType::kBFloat16 ? DType::kFloat32 : dtype});
        },
    .signatures = point_signatures,
    .local =
        [](const LocalCall& call) {
          const auto& args = call.as<GridArgs>();
          kernels::grid_weights(args.geometry(), args.size, args.rule, call.in[0].view,
                                call.out[0].view);
        },
    .vjp = weights_vjp,
    .saved_inputs = 0b1};

void check(const Tensor& x, const Tensor& grid, int dims, std::size_t edges) {
  const bool fits =
      grid.dims() >= 3 && grid.shape()[0] == x.shape()[0] && grid.shape().back() == dims;
  if (!fits) {
    throw ShapeError(str("grid_sample: grid ", grid.shape(), " is not [N, points..., ", dims,
                         "] for x ", x.shape(), ". Reshape it."));
  }
  for (int d = 0; d < dims; ++d) {
    if (x.shape()[d + 1] < 1)
      throw ShapeError(str("grid_sample: domain dimension ", d, " of ", x.shape(), " is empty."));
  }
  if (edges != 1 && edges != static_cast<std::size_t>(dims)) {
    throw ShapeError(str("grid_sample: ", edges, " edge rules for ", dims,
                         " domain dimensions. Give one, or one for each."));
  }
  const bool types = is_floating(x.dtype()) &&
                     (grid.dtype() == x.dtype() ||
                      (grid.dtype() == DType::kFloat32 && x.dtype() == DType::kBFloat16));
  if (!types) {
    throw DTypeError(str("grid_sample: a grid of ", name(grid.dtype()), " for values of ",
                         name(x.dtype()), ". Use cast()."));
  }
}

}  // namespace

Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& options) {
  const int dims = domain_dims("grid_sample", x.shape());
  check(x, grid, dims, options.edge.size());
  GridArgs args{{}, {}, static_cast<std::int64_t>(options.mode), options.align_corners};
  for (int d = 0; d < dims; ++d) {
    args.size.push_back(x.shape()[d + 1]);
    const std::size_t rule = options.edge.size() == 1 ? 0 : static_cast<std::size_t>(d);
    args.rule.push_back(static_cast<std::int64_t>(options.edge[rule]));
  }
  const Tensor position = call(taps_op, {grid.detach()}, args);
  if (options.mode == InterpolateMode::kNearest) return lookup(x, position, {}, 1);
  args.rule = Dims::filled(dims, 0);
  return lookup(x, position, call(weights_op, {grid}, args), 1);
}

}  // namespace tessera
