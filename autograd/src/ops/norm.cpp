// Group normalisation of x [N, domain..., C], fused with the activation behind it. Forward keeps x
// and the moments [N, groups, 3] = (count, mean, M2) alone; what reads y computes it again from
// these in backward, so a convolution behind a norm keeps one tensor, not two. Over a split domain
// the moments of the parts are gathered and merged in rank order (Chan, Golub & LeVeque 1979): one
// small exchange, no cancellation, the same bits on every rank.

#include <algorithm>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/norm.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/kernels/group_norm.hpp>
#include <tessera/parallel/communicator.hpp>

#include "broadcast.hpp"

namespace tessera {

namespace {

struct NormArgs {
  std::int64_t groups;
  std::int64_t activation;
};
struct NormScalars {
  double eps;
};

kernels::GroupNormOptions kernel_options(const NormArgs& args, const NormScalars& scalars) {
  return {args.groups, scalars.eps, true, static_cast<kernels::NormActivation>(args.activation)};
}

/// Calls `add(role of [N, d..., C], role of [N, groups, .], role of [C], dim)` for each dimension
/// that `group` may split.
template <class F>
void each_split(const Problem& problem, const AxisGroup& group, F add) {
  const Layout& x = problem.in[0];
  const int last = x.dims() - 1;
  add(shard_role(0), shard_role(0), replicate_role(), 0);
  for (int d = 1; d < last; ++d) add(shard_role(d), replicate_role(), replicate_role(), d);
  if (!group.splits(x, last)) return;
  const std::int64_t width = x.shape()[last] / problem.as<NormArgs>().groups;
  for (const std::int64_t b : x.split(last).bounds)
    if (b % width != 0) return;  // a group of channels would lie on two ranks
  add(shard_role(last), shard_role(1), shard_role(0), last);
}

/// Boundaries of channel groups from those of channels.
std::function<Bounds(int, const Bounds&)> channel_bounds(const Problem& problem,
                                                         int dim,
                                                         std::uint32_t group_tensors) {
  const int last = problem.in[0].dims() - 1;
  if (dim != last) return {};
  const std::int64_t width = problem.in[0].shape()[last] / problem.as<NormArgs>().groups;
  return [width, group_tensors](int t, const Bounds& driver) {
    Bounds bounds = driver;
    if (group_tensors >> t & 1u)
      for (std::int64_t& b : bounds) b /= width;
    return bounds;
  };
}

// ---- forward: (x, gamma, beta) -> (y, moments) ----

void infer_norm(const Problem& problem, std::vector<OutputMeta>& out) {
  const Shape& x = problem.shape(0);
  const std::int64_t groups = problem.as<NormArgs>().groups;
  if (x.size() < 2)
    throw ShapeError(str("group_norm: input ", x, " is not [N, domain..., C]. Reshape it."));
  if (groups < 1 || x.back() % groups != 0) {
    throw ShapeError(str("group_norm: ", x.back(), " channels do not divide into ", groups,
                         " groups. Choose a divisor."));
  }
  const DType dtype = norm_dtype("group_norm", problem);
  for (const int i : {1, 2}) {
    if (problem.in[static_cast<std::size_t>(i)].defined() &&
        !(problem.shape(i) == Shape{x.back()})) {
      throw ShapeError(str("group_norm: ", i == 1 ? "gamma " : "beta ", problem.shape(i),
                           " does not fit the ", x.back(), " channels."));
    }
  }
  out.push_back({x, dtype});
  out.push_back({{x[0], groups, 3}, DType::kFloat64});
}

View moments_view(const Ref<Buffer>& buffer, const Shape& shape) {
  return View::dense(buffer->data(), DType::kFloat64, shape);
}

Ref<Buffer> moments_buffer(const Shape& shape) {
  return MemoryPool::of(Device{}).allocate(static_cast<std::size_t>(shape.product()) *
                                           sizeof(double));
}

void run_norm(RunContext& context) {
  kernels::GroupNormOptions options =
      kernel_options(context.as<NormArgs>(), context.dynamic_as<NormScalars>());
  const Tensor& x = context.in[0];
  const Tensor& moments = context.out[1];
  options.groups = std::max<std::int64_t>(moments.local_shape()[1], 1);
  const parallel::Group group = parallel::Group::of(x.mesh(), context.axes);
  Shape parts = moments.local_shape();
  parts.insert(0, group.size());
  const Ref<Buffer> own = moments_buffer(moments.local_shape());
  const Ref<Buffer> all = moments_buffer(parts);
  kernels::group_moments(x.local(), options, moments_view(own, moments.local_shape()));
  parallel::all_gather(group, own->data(), all->data(), moments.local_bytes(),
                       {"group_norm", x.layout(), {}})
      .wait();
  kernels::merge_moments(moments_view(all, parts), moments.mutable_local());
  const auto view = [](const Tensor& t) { return t.defined() ? t.local() : View{}; };
  kernels::group_norm(x.local(), moments.local(), view(context.in[1]), view(context.in[2]), options,
                      context.out[0].mutable_local());
}

void norm_signatures(const Problem& problem,
                     const AxisGroup& group,
                     std::vector<Signature>& legal) {
  const int last = problem.in[0].dims() - 1;
  each_split(problem, group, [&](Role x, Role moments, Role channel, int dim) {
    const bool domain = dim != 0 && dim != last;
    legal.push_back({.in = {x, channel, channel},
                     .out = {x, moments},
                     .bounds = channel_bounds(problem, dim, 0b10000),
                     .run = domain ? run_norm : nullptr});
  });
}

void norm_local(const LocalCall& call) {
  const kernels::GroupNormOptions options =
      kernel_options(call.as<NormArgs>(), call.dynamic_as<NormScalars>());
  // With split channels the local part has its own number of groups.
  kernels::GroupNormOptions local = options;
  local.groups = call.out[1].view.shape[1];
  if (call.in[0].view.empty()) local.groups = std::max<std::int64_t>(local.groups, 1);
  kernels::group_moments(call.in[0].view, local, call.out[1].view);
  kernels::group_norm(call.in[0].view, call.out[1].view, call.in[1].view, call.in[2].view, local,
                      call.out[0].view);
}

// ---- forward again, from the saved moments: (x, moments, gamma, beta) -> y ----

void apply_signatures(const Problem& problem,
                      const AxisGroup& group,
                      std::vector<Signature>& legal) {
  each_split(problem, group, [&](Role x, Role moments, Role channel, int dim) {
    legal.push_back({.in = {x, moments, channel, channel},
                     .out = {x},
                     .bounds = channel_bounds(problem, dim, 0b00010)});
  });
}

void apply_local(const LocalCall& call) {
  kernels::GroupNormOptions options =
      kernel_options(call.as<NormArgs>(), call.dynamic_as<NormScalars>());
  options.groups = std::max<std::int64_t>(call.in[1].view.shape[1], 1);
  kernels::group_norm(call.in[0].view, call.in[1].view, call.in[2].view, call.in[3].view, options,
                      call.out[0].view);
}

const OpDef apply_op = {.name = "group_norm_apply",
                        .infer =
                            [](const Problem& problem, std::vector<OutputMeta>& out) {
                              out.push_back({problem.shape(0), problem.dtypes[0]});
                            },
                        .signatures = apply_signatures,
                        .local = apply_local};

Tensor norm_recompute(const VjpContext& context) {
  return call(
      apply_op,
      {context.input(0), context.output(1), input_or_none(context, 1), input_or_none(context, 2)},
      context.as<NormArgs>(), context.dynamic_as<NormScalars>());
}

// ---- backward: sums over the domain, then the input's gradient ----

// (x, dy, moments, gamma, beta) -> (sums [N, groups, 2], dgamma [C], dbeta [C])
void infer_sums(const Problem& problem, std::vector<OutputMeta>& out) {
  const Shape& x = problem.shape(0);
  const std::int64_t groups = problem.as<NormArgs>().groups;
  out.push_back({{x[0], groups, 2}, DType::kFloat64});
  out.push_back({{x.back()}, DType::kFloat64});
  out.push_back({{x.back()}, DType::kFloat64});
}

void sums_signatures(const Problem& problem,
                     const AxisGroup& group,
                     std::vector<Signature>& legal) {
  const int last = problem.in[0].dims() - 1;
  each_split(problem, group, [&](Role x, Role moments, Role channel, int dim) {
    const Role pending = partial_role();
    const Role sums = dim == 0 || dim == last ? moments : pending;
    const Role gamma = dim == last ? channel : pending;
    legal.push_back({.in = {x, x, moments, channel, channel},
                     .out = {sums, gamma, gamma},
                     .bounds = channel_bounds(problem, dim, 0b100100)});
  });
}

void sums_local(const LocalCall& call) {
  kernels::GroupNormOptions options =
      kernel_options(call.as<NormArgs>(), call.dynamic_as<NormScalars>());
  options.groups = std::max<std::int64_t>(call.in[2].view.shape[1], 1);
  kernels::group_norm_sums(call.in[0].view, call.in[1].view, call.in[2].view, call.in[3].view,
                           call.in[4].view, options, call.out[0].view, call.out[1].view,
                           call.out[2].view);
}

const OpDef sums_op = {.name = "group_norm_sums",
                       .infer = infer_sums,
                       .signatures = sums_signatures,
                       .local = sums_local};

// (x, dy, moments, gamma, beta, sums) -> dx
void input_grad_signatures(const Problem& problem,
                           const AxisGroup& group,
                           std::vector<Signature>& legal) {
  each_split(problem, group, [&](Role x, Role moments, Role channel, int dim) {
    legal.push_back({.in = {x, x, moments, channel, channel, moments},
                     .out = {x},
                     .bounds = channel_bounds(problem, dim, 0b100100)});
  });
}

void input_grad_local(const LocalCall& call) {
  kernels::GroupNormOptions options =
      kernel_options(call.as<NormArgs>(), call.dynamic_as<NormScalars>());
  options.groups = std::max<std::int64_t>(call.in[2].view.shape[1], 1);
  kernels::group_norm_input_grad(call.in[0].view, call.in[1].view, call.in[2].view, call.in[3].view,
                                 call.in[4].view, call.in[5].view, options, call.out[0].view);
}

const OpDef input_grad_op = {.name = "group_norm_input_grad",
                             .infer =
                                 [](const Problem& problem, std::vector<OutputMeta>& out) {
                                   out.push_back({problem.shape(0), problem.dtypes[0]});
                                 },
                             .signatures = input_grad_signatures,
                             .local = input_grad_local,
                             .overwrites = 1};

void norm_vjp(VjpContext& context) {
  const auto& args = context.as<NormArgs>();
  const auto& scalars = context.dynamic_as<NormScalars>();
  const Tensor x = context.input(0);
  const Tensor gamma = input_or_none(context, 1);
  const Tensor beta = input_or_none(context, 2);
  const Tensor moments = context.output(1);
  Tensor dy = context.take_grad(0);
  const Outputs sums = call(sums_op, {x, dy, moments, gamma, beta}, args, scalars);
  if (context.needs(0)) {
    context.set(
        0, call(input_grad_op, {x, std::move(dy), moments, gamma, beta, sums[0]}, args, scalars));
  }
  if (gamma.defined() && context.needs(1)) context.set(1, cast(sums[1], gamma.dtype()));
  if (beta.defined() && context.needs(2)) context.set(2, cast(sums[2], beta.dtype()));
}

std::vector<Tensor> norm_decompose(const VjpContext& context) {
  const auto& args = context.as<NormArgs>();
  const Tensor x = context.input(0);
  Shape grouped = x.shape();
  grouped.back() = args.groups;
  grouped.push_back(x.shape().back() / args.groups);
  Dims dims;
  for (int d = 1; d < grouped.size(); ++d)
    if (d != grouped.size() - 2) dims.push_back(d);
  Tensor y = x;
  if (x.numel() > 0) {
    const Tensor g = reshape(x, grouped);
    const Tensor centred = g - mean(g, dims, true);
    const Tensor scale =
        rsqrt(mean(square(centred), dims, true) + context.dynamic_as<NormScalars>().eps);
    y = reshape(centred * scale, x.shape());
  }
  if (context.input_layout(1).defined()) y = y * cast(context.input(1), y.dtype());
  if (context.input_layout(2).defined()) y = y + cast(context.input(2), y.dtype());
  return {activate(y, static_cast<Activation>(args.activation)), Tensor()};
}

const OpDef norm_op = {.name = "group_norm",
                       .infer = infer_norm,
                       .signatures = norm_signatures,
                       .local = norm_local,
                       .vjp = norm_vjp,
                       .decompose = norm_decompose,
                       .recompute = norm_recompute,
                       .saved_inputs = 0b111,
                       .saved_outputs = 0b10,
                       .differentiable_outputs = 0b01};

}  // namespace

Tensor group_norm(const Tensor& x,
                  const Tensor& gamma,
                  const Tensor& beta,
                  std::int64_t groups,
                  double eps,
                  Activation activation) {
  return call(norm_op, {x, gamma, beta}, NormArgs{groups, static_cast<std::int64_t>(activation)},
              NormScalars{eps});
}

Tensor activate(const Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return relu(x);
    case Activation::kSilu:
      return silu(x);
    case Activation::kGelu:
      return gelu(x);
  }
  return x;
}

}  // namespace tessera
