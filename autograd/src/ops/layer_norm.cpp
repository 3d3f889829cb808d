// Normalisation of each row of x [..., C] over its channels, whole on one rank. Statistics are
// taken again in backward, so x alone is kept; the gradients of gamma and beta are pending sums
// over whatever splits the rows.

#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/norm.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/kernels/layer_norm.hpp>

#include "broadcast.hpp"

namespace tessera {

namespace {

struct LayerNormArgs {
  std::int64_t centred;
};
struct LayerNormScalars {
  double eps;
};

kernels::LayerNormOptions options_of(const LocalCall& call) {
  return {call.dynamic_as<LayerNormScalars>().eps, call.as<LayerNormArgs>().centred != 0};
}

const char* op_name(const Problem& problem) {
  return problem.as<LayerNormArgs>().centred != 0 ? "layer_norm" : "rms_norm";
}

void infer_layer_norm(const Problem& problem, std::vector<OutputMeta>& out) {
  const char* const op = op_name(problem);
  const Shape& x = problem.shape(0);
  if (x.empty() || x.back() == 0)
    throw ShapeError(str(op, ": input ", x, " has no channels [..., C]. Reshape it."));
  const DType dtype = norm_dtype(op, problem);
  for (const int i : {1, 2}) {
    if (problem.in[static_cast<std::size_t>(i)].defined() &&
        !(problem.shape(i) == Shape{x.back()})) {
      throw ShapeError(str(op, i == 1 ? ": gamma " : ": beta ", problem.shape(i),
                           " does not fit the ", x.back(), " channels."));
    }
  }
  out.push_back({x, dtype});
}

void layer_norm_signatures(const Problem& problem,
                           const AxisGroup&,
                           std::vector<Signature>& legal) {
  for (int d = 0; d + 1 < problem.shape(0).size(); ++d) {
    legal.push_back({.in = {shard_role(d), replicate_role(), replicate_role()},
                     .out = {shard_role(d)},
                     .bounds = {}});
  }
}

// (x, dy, gamma) -> (dx, dgamma, dbeta)
void infer_grad(const Problem& problem, std::vector<OutputMeta>& out) {
  const Shape& x = problem.shape(0);
  out.push_back({x, problem.dtypes[0]});
  out.push_back({{x.back()}, DType::kFloat64});
  out.push_back({{x.back()}, DType::kFloat64});
}

void grad_signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  for (int d = 0; d + 1 < problem.shape(0).size(); ++d) {
    legal.push_back({.in = {shard_role(d), shard_role(d), replicate_role()},
                     .out = {shard_role(d), partial_role(), partial_role()},
                     .bounds = {}});
  }
}

const OpDef grad_op = {.name = "layer_norm_grad",
                       .infer = infer_grad,
                       .signatures = grad_signatures,
                       .local = [](const LocalCall& call) {
                         kernels::layer_norm_grad(call.in[0].view, call.in[1].view, call.in[2].view,
                                                  options_of(call), call.out[0].view,
                                                  call.out[1].view, call.out[2].view);
                       }};

void layer_norm_vjp(VjpContext& context) {
  const auto defined = [&](int i) { return context.input_layout(i).defined(); };
  const Tensor gamma = defined(1) ? context.input(1) : Tensor();
  const Outputs grads = call(grad_op, {context.input(0), context.grad(), gamma},
                             context.as<LayerNormArgs>(), context.dynamic_as<LayerNormScalars>());
  if (context.needs(0)) context.set(0, grads[0]);
  for (const int i : {1, 2})
    if (defined(i) && context.needs(i)) context.set(i, cast(grads[i], context.input_dtype(i)));
}

std::vector<Tensor> layer_norm_decompose(const VjpContext& context) {
  const Tensor x = context.input(0);
  const Tensor centred = context.as<LayerNormArgs>().centred != 0 ? x - mean(x, {-1}, true) : x;
  Tensor y = centred *
             rsqrt(mean(square(centred), {-1}, true) + context.dynamic_as<LayerNormScalars>().eps);
  if (context.input_layout(1).defined()) y = y * cast(context.input(1), y.dtype());
  if (context.input_layout(2).defined()) y = y + cast(context.input(2), y.dtype());
  return {y};
}

Tensor layer_norm_recompute(const VjpContext& context);

const OpDef layer_norm_op = {.name = "layer_norm",
                             .infer = infer_layer_norm,
                             .signatures = layer_norm_signatures,
                             .local =
                                 [](const LocalCall& call) {
                                   kernels::layer_norm(call.in[0].view, call.in[1].view,
                                                       call.in[2].view, options_of(call),
                                                       call.out[0].view);
                                 },
                             .vjp = layer_norm_vjp,
                             .decompose = layer_norm_decompose,
                             .recompute = layer_norm_recompute,
                             .saved_inputs = 0b111};

Tensor layer_norm_recompute(const VjpContext& context) {
  const auto saved = [&](int i) { return input_or_none(context, i); };
  return call(layer_norm_op, {saved(0), saved(1), saved(2)}, context.as<LayerNormArgs>(),
              context.dynamic_as<LayerNormScalars>());
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps) {
  return call(layer_norm_op, {x, gamma, beta}, LayerNormArgs{1}, LayerNormScalars{eps});
}

Tensor rms_norm(const Tensor& x, const Tensor& gamma, double eps) {
  return call(layer_norm_op, {x, gamma, Tensor()}, LayerNormArgs{0}, LayerNormScalars{eps});
}

}  // namespace tessera
