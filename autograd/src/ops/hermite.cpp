// Weights and rows of cubic Hermite tables. The derivative of the weights of one order are those of
// the next; all are elementwise in x.

#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/hermite.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/kernels/hermite.hpp>

namespace tessera {

namespace {

struct HermiteArgs {
  std::int64_t order;
  std::int64_t intervals;
};
struct HermiteScalars {
  double spacing;
};

extern const OpDef weights_op;

void check(const Problem& problem) {
  if (problem.shape(0).size() != 1)
    throw ShapeError(str("hermite: points ", problem.shape(0), " are not [E]. Reshape them."));
  if (problem.dtypes[0] != DType::kFloat64 && problem.dtypes[0] != DType::kFloat32) {
    throw DTypeError(str("hermite: element type ", name(problem.dtypes[0]),
                         " is neither f32 nor f64. Cast it first."));
  }
}

void signatures(const Problem&, const AxisGroup&, std::vector<Signature>& legal) {
  legal.push_back({.in = {shard_role(0)}, .out = {shard_role(0)}, .bounds = {}});
}

Tensor weights(const Tensor& x, const HermiteArgs& args, const HermiteScalars& scalars) {
  return call(weights_op, {x}, args, scalars);
}

const OpDef weights_op = {
    .name = "hermite_weights",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          check(problem);
          out.push_back({{problem.shape(0)[0], 4}, problem.dtypes[0]});
        },
    .signatures = signatures,
    .local =
        [](const LocalCall& call) {
          const auto& args = call.as<HermiteArgs>();
          kernels::hermite_weights(static_cast<int>(args.order),
                                   call.dynamic_as<HermiteScalars>().spacing, args.intervals,
                                   call.in[0].view, call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          HermiteArgs args = context.as<HermiteArgs>();
          if (++args.order > 3) return;
          const Tensor slope =
              weights(context.input(0), args, context.dynamic_as<HermiteScalars>());
          context.set(0, sum(context.grad() * slope, {1}));
        },
    .saved_inputs = 0b1};

const OpDef rows_op = {.name = "hermite_rows",
                       .infer =
                           [](const Problem& problem, std::vector<OutputMeta>& out) {
                             check(problem);
                             out.push_back({{problem.shape(0)[0]}, DType::kInt64});
                           },
                       .signatures = signatures,
                       .local =
                           [](const LocalCall& call) {
                             kernels::hermite_rows(call.dynamic_as<HermiteScalars>().spacing,
                                                   call.as<HermiteArgs>().intervals,
                                                   call.in[0].view, call.out[0].view);
                           },
                       .differentiable_outputs = 0};

void check_grid(double spacing, std::int64_t intervals) {
  if (!(spacing > 0.0) || intervals < 1) {
    throw UsageError(str("hermite: ", intervals, " intervals of ", spacing,
                         " are no table. Give at least one of positive width."));
  }
}

}  // namespace

Tensor hermite_weights(const Tensor& x, double spacing, std::int64_t intervals) {
  check_grid(spacing, intervals);
  return weights(x, {0, intervals}, {spacing});
}

Tensor hermite_rows(const Tensor& x, double spacing, std::int64_t intervals) {
  check_grid(spacing, intervals);
  return call(rows_op, {x}, HermiteArgs{0, intervals}, HermiteScalars{spacing});
}

}  // namespace tessera
