// Full attention: the records of the op and its gradient, and their work on one rank. Where they
// are legal: attention_placement.cpp; keys that are split: attention_ring.cpp. The gradient
// computes the probabilities again from the log-sum-exp.

#include <cmath>
#include <limits>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/attention.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/kernels/elementwise.hpp>

#include "attention_heads.hpp"
#include "attention_record.hpp"
#include "attention_sharing.hpp"
#include "broadcast.hpp"

namespace tessera {

// ---- dimensions ----

AttentionDims::AttentionDims(const AttentionArgs& args, int domain) : samples{0} {
  for (int d = 0; d < domain; ++d) {
    const bool attend = args.attended == 0 || (args.attended >> d & 1) != 0;
    moves_ = moves_ || (!attend && !attended.empty());
    (attend ? attended : samples).push_back(d + 1);
  }
}

int AttentionDims::in_pairs(int d) const {
  for (int i = 0; i < samples.size(); ++i)
    if (samples[i] == d) return i;
  int i = 0;
  while (attended[i] != d) ++i;
  return samples.size() + 1 + i;
}

View AttentionDims::arranged(const View& x) const {
  if (!moves_) return x;
  View y = x;
  int to = 0;
  for (const Dims& from : {samples, attended}) {
    for (const std::int64_t d : from) {
      y.shape[to] = x.shape[static_cast<int>(d)];
      y.strides[to++] = x.strides[static_cast<int>(d)];
    }
  }
  return y;
}

Piece AttentionDims::arranged(const Piece& x) const {
  if (!moves_) return x;
  Piece y{arranged(x.view), x.box, x.global};
  int to = 0;
  for (const Dims& from : {samples, attended}) {
    for (const std::int64_t d : from) {
      y.box.set(to, x.box[static_cast<int>(d)]);
      y.global[to++] = x.global[static_cast<int>(d)];
    }
  }
  return y;
}

kernels::AttentionOptions attention_options(const void* args,
                                            const void* dynamic,
                                            const AttentionDims& dims) {
  const auto& scalars = *static_cast<const AttentionScalars*>(dynamic);
  return {.scale = scalars.scale,
          .causal = static_cast<const AttentionArgs*>(args)->causal != 0,
          .dropout = scalars.dropout,
          .key = {scalars.key.high, scalars.key.low},
          .sample_dims = dims.samples.size()};
}

namespace {

// ---- shapes ----

void infer_attention(const Problem& problem, std::vector<OutputMeta>& out) {
  const Shape& q = problem.shape(0);
  const Shape& k = problem.shape(1);
  const Shape& v = problem.shape(2);
  bool fits = q.size() >= 4 && k.size() >= 4 && v.size() == k.size();
  for (int d = 0; fits && d + 1 < k.size(); ++d) fits = k[d] == v[d];
  const std::int64_t heads = q.size() >= 2 ? q[q.size() - 2] : 0;
  const std::int64_t key_heads = k.size() >= 2 ? k[k.size() - 2] : 0;
  fits = fits && q[0] == k[0] && q.back() == k.back() && key_heads > 0 && heads % key_heads == 0;
  if (!fits) {
    throw ShapeError(str("attention: queries ", q, ", keys ", k, " and values ", v,
                         " are not [N, domain..., H, D], [N, key domain..., H_kv, D] and [N, key "
                         "domain..., H_kv, D_v] with H a multiple of H_kv. Reshape them."));
  }
  const DType dtype = problem.dtypes[0];
  if (problem.dtypes[1] != dtype || problem.dtypes[2] != dtype || !is_floating(dtype)) {
    throw DTypeError(str("attention: element types ", name(dtype), ", ", name(problem.dtypes[1]),
                         " and ", name(problem.dtypes[2]),
                         " are not one floating type. Use cast()."));
  }
  const auto& args = problem.as<AttentionArgs>();
  const AttentionDims dims(args, q.size() - 3);
  if (args.attended != 0) {
    bool alike = k.size() == q.size();
    for (int i = 1; alike && i < dims.samples.size(); ++i) {
      const auto d = static_cast<int>(dims.samples[i]);
      alike = q[d] == k[d];
    }
    if (!alike) {
      throw ShapeError(str("attention: queries ", q, " and keys ", k,
                           " differ in a domain dimension that is not attended over (it counts as "
                           "samples). Give both the same size there, or attend over it."));
    }
  }
  Shape pair;
  for (const std::int64_t d : dims.samples) pair.push_back(q[static_cast<int>(d)]);
  pair.push_back(heads);
  for (const std::int64_t d : dims.attended) pair.push_back(q[static_cast<int>(d)]);
  for (int d = 1; d + 2 < k.size(); ++d)
    if (args.attended == 0 || dims.attended.contains(d)) pair.push_back(k[d]);
  for (const int i : {3, 4}) {
    const char* const what = i == 3 ? "mask" : "bias";
    if (!problem.in[static_cast<std::size_t>(i)].defined()) continue;
    const Shape& shape = problem.shape(i);
    bool broadcasts = shape.size() == pair.size();
    for (int d = 0; broadcasts && d < pair.size(); ++d)
      broadcasts = shape[d] == pair[d] || shape[d] == 1;
    if (!broadcasts) {
      throw ShapeError(str("attention: the ", what, " ", shape, " does not broadcast to ", pair,
                           " ([samples|1..., H|1, query domain|1..., key domain|1...]). Reshape "
                           "it."));
    }
    const DType type = problem.dtypes[static_cast<std::size_t>(i)];
    if (i == 3 ? type != DType::kBool : !is_floating(type)) {
      throw DTypeError(str("attention: the ", what, " is ", name(type), ", not ",
                           i == 3 ? "bool" : "floating", ". Use cast() or a comparison."));
    }
  }
  Shape result = q;
  result.back() = v.back();
  Shape rows = q;
  rows.resize(q.size() - 1);
  out.push_back({result, dtype});
  out.push_back({rows, compute_type(dtype)});
}

void infer_grad(const Problem& problem, std::vector<OutputMeta>& out) {
  const DType dtype = compute_type(problem.dtypes[0]);
  for (const int i : {0, 1, 2}) out.push_back({problem.shape(i), dtype});
  if (problem.as<AttentionArgs>().bias_grad != 0) out.push_back({problem.shape(4), dtype});
}

// ---- one rank ----

AttentionDims dims_of(const LocalCall& call) {
  return AttentionDims(call.as<AttentionArgs>(), call.in[0].view.dims() - 3);
}

kernels::AttentionOperands operands_of(const LocalCall& call, const AttentionDims& dims) {
  return {dims.arranged(call.in[0]), dims.arranged(call.in[1]), dims.arranged(call.in[2]),
          call.in[3], call.in[4]};
}

void attention_local(const LocalCall& call) {
  const AttentionDims dims = dims_of(call);
  kernels::attention_forward(operands_of(call, dims),
                             attention_options(call.args, call.dynamic, dims), {},
                             dims.arranged(call.out[0].view), dims.arranged(call.out[1].view));
}

void grad_local(const LocalCall& call) {
  for (const Piece& out : call.out) kernels::fill(out.view, 0.0);
  const AttentionDims dims = dims_of(call);
  const auto view = [&](const Piece& piece) { return dims.arranged(piece.view); };
  const kernels::AttentionOperands operands = operands_of(call, dims);
  const kernels::AttentionOptions options = attention_options(call.args, call.dynamic, dims);
  const kernels::AttentionSaved saved{view(call.in[5]), view(call.in[6]), view(call.in[7])};
  kernels::attention_grad(operands, options, saved, view(call.out[0]), view(call.out[1]),
                          view(call.out[2]));
  if (call.as<AttentionArgs>().bias_grad != 0 && !operands.bias.view.empty())
    kernels::attention_bias_grad(operands, options, saved, call.out[3].view);
}

/// Multiply-adds of one matrix product with each of the pairs, times two. Keys of all ranks count,
/// whether they come by a ring or heads are exchanged.
double pair_flops(const LocalCall& call) {
  const View& q = call.in[0].view;
  const View& v = call.in[2].view;
  if (q.empty() || v.empty()) return 0.0;
  const AttentionDims dims = dims_of(call);
  double keys = 1.0;
  for (int d = 1; d + 2 < v.dims(); ++d)
    if (!dims.samples.contains(d)) keys *= static_cast<double>(call.in[2].global[d]);
  const double rows = static_cast<double>(q.size() / q.shape.back());
  const double causal = call.as<AttentionArgs>().causal != 0 ? 0.5 : 1.0;
  return 2.0 * causal * rows * keys * static_cast<double>(q.shape.back() + v.shape.back());
}

std::string chosen_sharing(const void* args, std::span<const Layout> in, AxisMask axes) {
  return share_attention(*static_cast<const AttentionArgs*>(args), in, axes).str(in[0].mesh());
}

// ---- gradients ----

const OpDef attention_grad_op = {
    .name = "attention_grad",
    .infer = infer_grad,
    .signatures = attention_grad_signatures,
    .local = grad_local,
    .cost = [](const LocalCall& call) { return 2.5 * pair_flops(call); },
    .variant = chosen_sharing};

void attention_vjp(VjpContext& context) {
  const Tensor bias = input_or_none(context, 4);
  AttentionArgs args = context.as<AttentionArgs>();
  args.bias_grad = bias.defined() && context.needs(4) ? 1 : 0;
  const Outputs grads =
      call(attention_grad_op,
           {context.input(0), context.input(1), context.input(2), input_or_none(context, 3), bias,
            context.output(0), context.output(1), context.grad()},
           args, context.dynamic_as<AttentionScalars>());
  for (const int i : {0, 1, 2})
    if (context.needs(i)) context.set(i, cast(grads[i], context.input_dtype(i)));
  if (args.bias_grad != 0) context.set(4, cast(grads[3], context.input_dtype(4)));
}

const OpDef attention_op = {.name = "attention",
                            .infer = infer_attention,
                            .signatures = attention_signatures,
                            .local = attention_local,
                            .vjp = attention_vjp,
                            .decompose = attention_decompose,
                            .saved_inputs = 0b11111,
                            .saved_outputs = 0b11,
                            .differentiable_outputs = 0b01,
                            .cost = pair_flops,
                            .variant = chosen_sharing};

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& q,
                                    const Tensor& k,
                                    const Tensor& v,
                                    const AttentionParameters& parameters) {
  if (!(parameters.dropout >= 0.0 && parameters.dropout < 1.0))
    throw UsageError(str("attention: dropout ", parameters.dropout, " is not in [0, 1)."));
  AttentionArgs args{parameters.causal ? 1 : 0, 0, 0, AttentionArgs::kAutomatic,
                     AttentionArgs::kAutomatic};
  for (const int d : parameters.dims) {
    if (d < 0 || d >= q.dims() - 3) {
      throw ShapeError(str("attention: there is no domain dimension ", d, " in queries ", q.shape(),
                           ". Attend over some of 0 to ", q.dims() - 4, "."));
    }
    args.attended |= std::int64_t{1} << d;
  }
  if (parameters.exchange) {
    args.exchange = 0;
    for (const std::string& axis : *parameters.exchange)
      args.exchange |= std::int64_t{1} << q.mesh().axis(axis);
  }
  if (parameters.balance) args.balance = *parameters.balance ? 1 : 0;
  const double depth = q.dims() > 0 ? static_cast<double>(q.shape().back()) : 1.0;
  const AttentionScalars scalars{parameters.scale.value_or(1.0 / std::sqrt(depth)),
                                 parameters.dropout, parameters.key};
  return call(attention_op, {q, k, v, parameters.mask, parameters.bias}, args, scalars);
}

}  // namespace tessera
