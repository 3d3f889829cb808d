// Group and batch normalisation of x [N, domain..., C], fused with the activation behind it.
// Forward keeps x and the moments [N, groups, 3] = (count, mean, M2) alone; what reads y computes
// it again from these in backward, so a convolution behind a norm keeps one tensor, not two. Where
// what statistics are taken over is split, the moments of the parts are gathered and merged in rank
// order (Chan, Golub & LeVeque 1979): one small exchange, no cancellation, the same bits on every
// rank. To the kernels a batch norm is a group norm of one sample whose domain begins with the
// batch, with moments [1, C, 3].

#include <algorithm>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/batch_norm.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/norm.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/kernels/group_norm.hpp>
#include <tessera/parallel/communicator.hpp>

#include "broadcast.hpp"
#include "row_memory.hpp"

namespace tessera {

namespace {

struct NormArgs {
  std::int64_t groups;
  std::int64_t activation;
  std::int64_t over_batch;  // one set of statistics for all samples

  const char* op() const { return over_batch != 0 ? "batch_norm" : "group_norm"; }
  std::int64_t samples(const Shape& x) const { return over_batch != 0 ? 1 : x[0]; }
  /// Whether statistics are taken over dimension `dim` of x, whose last one is `last`.
  bool merges(int dim, int last) const { return dim != last && (dim != 0 || over_batch != 0); }
};
struct NormScalars {
  double eps;
};

/// For a part with these moments: with split channels it has groups of its own, or none.
kernels::GroupNormOptions kernel_options(const NormArgs& args,
                                         const NormScalars& scalars,
                                         const Shape& moments) {
  return {std::max<std::int64_t>(moments[1], 1), scalars.eps, true,
          static_cast<kernels::NormActivation>(args.activation)};
}

/// x, or a tensor of its shape, as the kernels see it: [N, domain..., C].
View samples_of(View v, const NormArgs& args) {
  if (args.over_batch != 0 && v.data != nullptr) {
    v.shape.insert(0, 1);
    v.strides.insert(0, 0);
  }
  return v;
}

/// The area as a view of the shape of x; null where there is none.
View area_of(View area, const View& x, const NormArgs& args) {
  if (area.data == nullptr) return area;
  for (int d = 0; d < x.dims(); ++d) {
    if (area.shape[d] != x.shape[d]) {
      area.shape[d] = x.shape[d];
      area.strides[d] = 0;
    }
  }
  return samples_of(area, args);
}

/// What happens to the area, input `input`, where x is split along `dim`.
Role area_role(const Problem& problem, int input, int dim) {
  const Layout& area = problem.in[static_cast<std::size_t>(input)];
  return area.defined() && area.shape()[dim] != 1 ? shard_role(dim) : replicate_role();
}

/// Calls `add(role of [N, d..., C], role of [N, groups, .], role of [C], dim)` for each dimension
/// that `group` may split.
template <class F>
void each_split(const Problem& problem, const AxisGroup& group, F add) {
  const Layout& x = problem.in[0];
  const int last = x.dims() - 1;
  const auto& args = problem.as<NormArgs>();
  if (!args.merges(0, last)) add(shard_role(0), shard_role(0), replicate_role(), 0);
  for (int d = 0; d < last; ++d)
    if (args.merges(d, last)) add(shard_role(d), replicate_role(), replicate_role(), d);
  if (!group.splits(x, last)) return;
  const std::int64_t width = x.shape()[last] / args.groups;
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

// ---- forward: (x, gamma, beta, area) -> (y, moments) ----

/// Throws where x (input 0), gamma and beta (inputs `gamma` and behind it) do not fit.
void check_channels(const Problem& problem, int gamma) {
  const char* const op = problem.as<NormArgs>().op();
  const Shape& x = problem.shape(0);
  if (x.size() < 2)
    throw ShapeError(str(op, ": input ", x, " is not [N, domain..., C]. Reshape it."));
  for (const int i : {gamma, gamma + 1}) {
    if (problem.in[static_cast<std::size_t>(i)].defined() &&
        !(problem.shape(i) == Shape{x.back()})) {
      throw ShapeError(str(op, i == gamma ? ": gamma " : ": beta ", problem.shape(i),
                           " does not fit the ", x.back(), " channels."));
    }
  }
}

void check_area(const Problem& problem, int input) {
  const char* const op = problem.as<NormArgs>().op();
  const Shape& x = problem.shape(0);
  const Shape& area = problem.shape(input);
  bool fits = area.size() == x.size() && area.back() == 1;
  for (int d = 0; fits && d < x.size(); ++d) fits = area[d] == 1 || area[d] == x[d];
  if (!fits) {
    throw ShapeError(str(op, ": area ", area, " does not stretch to the input ", x,
                         ". Give one value per element of the domain, or 1 in dimensions along "
                         "which it does not change."));
  }
  const DType dtype = problem.dtypes[static_cast<std::size_t>(input)];
  if (!is_floating(dtype))
    throw DTypeError(str(op, ": area of type ", name(dtype), " is not floating. Cast it first."));
}

void infer_norm(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<NormArgs>();
  check_channels(problem, 1);
  const Shape& x = problem.shape(0);
  if (args.groups < 1 || x.back() % args.groups != 0) {
    throw ShapeError(str(args.op(), ": ", x.back(), " channels do not divide into ", args.groups,
                         " groups. Choose a divisor."));
  }
  if (problem.in[3].defined()) check_area(problem, 3);
  const Problem operands{problem.args, problem.in.first(3), problem.dtypes.first(3), {}, {}};
  out.push_back({x, norm_dtype(args.op(), operands)});
  out.push_back({{args.samples(x), args.groups, 3}, DType::kFloat64});
}

void run_norm(RunContext& context) {
  const auto& args = context.as<NormArgs>();
  const Tensor& x = context.in[0];
  const View own_x = samples_of(x.local(), args);
  const Tensor& moments = context.out[1];
  const auto options =
      kernel_options(args, context.dynamic_as<NormScalars>(), moments.local_shape());
  const parallel::Group group = parallel::Group::of(x.mesh(), context.axes);
  Shape parts = moments.local_shape();
  parts.insert(0, group.size());
  const Ref<Buffer> own = allocate(moments.dtype(), moments.local_shape());
  const Ref<Buffer> all = allocate(moments.dtype(), parts);
  const auto view = [](const Tensor& t) { return t.defined() ? t.local() : View{}; };
  kernels::group_moments(own_x, options, memory(own, moments.dtype(), moments.local_shape()),
                         area_of(view(context.in[3]), x.local(), args));
  parallel::all_gather(group, own->data(), all->data(), moments.local_bytes(),
                       {args.op(), x.layout(), {}})
      .wait();
  kernels::merge_moments(memory(all, moments.dtype(), parts), moments.mutable_local());
  kernels::group_norm(own_x, moments.local(), view(context.in[1]), view(context.in[2]), options,
                      samples_of(context.out[0].mutable_local(), args));
}

void norm_signatures(const Problem& problem,
                     const AxisGroup& group,
                     std::vector<Signature>& legal) {
  const int last = problem.in[0].dims() - 1;
  each_split(problem, group, [&](Role x, Role moments, Role channel, int dim) {
    legal.push_back({.in = {x, channel, channel, area_role(problem, 3, dim)},
                     .out = {x, moments},
                     .bounds = channel_bounds(problem, dim, 0b100000),
                     .run = problem.as<NormArgs>().merges(dim, last) ? run_norm : nullptr});
  });
}

void norm_local(const LocalCall& call) {
  const auto& args = call.as<NormArgs>();
  const auto options = kernel_options(args, call.dynamic_as<NormScalars>(), call.out[1].view.shape);
  const View x = samples_of(call.in[0].view, args);
  kernels::group_moments(x, options, call.out[1].view,
                         area_of(call.in[3].view, call.in[0].view, args));
  kernels::group_norm(x, call.out[1].view, call.in[1].view, call.in[2].view, options,
                      samples_of(call.out[0].view, args));
}

// ---- from given moments: (x, moments, gamma, beta) -> y ----

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
  const auto& args = call.as<NormArgs>();
  const auto options = kernel_options(args, call.dynamic_as<NormScalars>(), call.in[1].view.shape);
  kernels::group_norm(samples_of(call.in[0].view, args), call.in[1].view, call.in[2].view,
                      call.in[3].view, options, samples_of(call.out[0].view, args));
}

void infer_apply(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<NormArgs>();
  check_channels(problem, 2);
  const Shape& x = problem.shape(0);
  if (!(problem.shape(1) == Shape{args.samples(x), args.groups, 3}) ||
      problem.dtypes[1] != DType::kFloat64) {
    throw ShapeError(str(args.op(), ": moments ", problem.shape(1), " ", name(problem.dtypes[1]),
                         " are not f64 [", args.samples(x), ", ", args.groups,
                         ", 3]: (count, mean, M2) of each channel."));
  }
  const Layout in[] = {problem.in[0], problem.in[2], problem.in[3]};
  const DType dtypes[] = {problem.dtypes[0], problem.dtypes[2], problem.dtypes[3]};
  out.push_back({x, norm_dtype(args.op(), {problem.args, in, dtypes, {}, {}})});
}

void apply_vjp(VjpContext& context);
std::vector<Tensor> apply_decompose(const VjpContext& context);

const OpDef apply_op = {.name = "group_norm_apply",
                        .infer = infer_apply,
                        .signatures = apply_signatures,
                        .local = apply_local,
                        .vjp = apply_vjp,
                        .decompose = apply_decompose,
                        .saved_inputs = 0b1111};

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
  const auto& args = problem.as<NormArgs>();
  out.push_back({{args.samples(x), args.groups, 2}, DType::kFloat64});
  out.push_back({{x.back()}, DType::kFloat64});
  out.push_back({{x.back()}, DType::kFloat64});
}

void sums_signatures(const Problem& problem,
                     const AxisGroup& group,
                     std::vector<Signature>& legal) {
  const int last = problem.in[0].dims() - 1;
  each_split(problem, group, [&](Role x, Role moments, Role channel, int dim) {
    const Role pending = partial_role();
    const Role sums = problem.as<NormArgs>().merges(dim, last) ? pending : moments;
    const Role gamma = dim == last ? channel : pending;
    legal.push_back({.in = {x, x, moments, channel, channel},
                     .out = {sums, gamma, gamma},
                     .bounds = channel_bounds(problem, dim, 0b100100)});
  });
}

void sums_local(const LocalCall& call) {
  const auto& args = call.as<NormArgs>();
  const auto options = kernel_options(args, call.dynamic_as<NormScalars>(), call.in[2].view.shape);
  kernels::group_norm_sums(samples_of(call.in[0].view, args), samples_of(call.in[1].view, args),
                           call.in[2].view, call.in[3].view, call.in[4].view, options,
                           call.out[0].view, call.out[1].view, call.out[2].view);
}

const OpDef sums_op = {.name = "group_norm_sums",
                       .infer = infer_sums,
                       .signatures = sums_signatures,
                       .local = sums_local};

// (x, dy, moments, gamma, beta, sums, area) -> dx
void input_grad_signatures(const Problem& problem,
                           const AxisGroup& group,
                           std::vector<Signature>& legal) {
  each_split(problem, group, [&](Role x, Role moments, Role channel, int dim) {
    legal.push_back({.in = {x, x, moments, channel, channel, moments, area_role(problem, 6, dim)},
                     .out = {x},
                     .bounds = channel_bounds(problem, dim, 0b100100)});
  });
}

void input_grad_local(const LocalCall& call) {
  const auto& args = call.as<NormArgs>();
  const auto options = kernel_options(args, call.dynamic_as<NormScalars>(), call.in[2].view.shape);
  kernels::group_norm_input_grad(
      samples_of(call.in[0].view, args), samples_of(call.in[1].view, args), call.in[2].view,
      call.in[3].view, call.in[4].view, call.in[5].view, options,
      samples_of(call.out[0].view, args), area_of(call.in[6].view, call.in[0].view, args));
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
        0, call(input_grad_op,
                {x, std::move(dy), moments, gamma, beta, sums[0], input_or_none(context, 3)}, args,
                scalars));
  }
  if (gamma.defined() && context.needs(1)) context.set(1, cast(sums[1], gamma.dtype()));
  if (beta.defined() && context.needs(2)) context.set(2, cast(sums[2], beta.dtype()));
}

/// act(y gamma + beta)
Tensor finished(Tensor y, const Tensor& gamma, const Tensor& beta, const NormArgs& args) {
  if (gamma.defined()) y = y * cast(gamma, y.dtype());
  if (beta.defined()) y = y + cast(beta, y.dtype());
  return activate(y, static_cast<Activation>(args.activation));
}

Shape grouped_shape(const Shape& x, std::int64_t groups) {
  Shape grouped = x;
  grouped.back() = groups;
  grouped.push_back(x.back() / groups);
  return grouped;
}

/// An area of this shape as x lies.
Layout beside(const Layout& x, const Shape& area) {
  std::vector<DimSplit> splits(static_cast<std::size_t>(area.size()));
  for (int d = 0; d < area.size(); ++d)
    if (area[d] != 1) splits[static_cast<std::size_t>(d)] = x.split(d);
  return Layout::make(x.mesh(), area, splits);
}

std::vector<Tensor> norm_decompose(const VjpContext& context) {
  const auto& args = context.as<NormArgs>();
  const Tensor x = context.input(0);
  const Tensor gamma = input_or_none(context, 1), beta = input_or_none(context, 2);
  if (x.numel() == 0) return {finished(x, gamma, beta, args), Tensor()};
  const Tensor g = reshape(x, grouped_shape(x.shape(), args.groups));
  const int last = x.dims() - 1;
  Dims dims;
  for (int d = 0; d < g.dims(); ++d)
    if (d == last + 1 || args.merges(d, last)) dims.push_back(d);
  Tensor area = input_or_none(context, 3);
  std::int64_t copies = 1;  // of each area among the elements of a mean
  if (area.defined()) {
    for (const std::int64_t d : dims)
      if (d > last || area.shape()[static_cast<int>(d)] == 1)
        copies *= g.shape()[static_cast<int>(d)];
    Shape stretched = area.shape();
    stretched.push_back(1);
    area =
        cast(reshape(redistribute(area, beside(x.layout(), area.shape())), stretched), x.dtype());
  }
  const auto average = [&](const Tensor& t) {
    if (!area.defined()) return mean(t, dims, true);
    return sum(t * area, dims, true) / (static_cast<double>(copies) * sum(area, dims, true));
  };
  const Tensor centred = g - average(g);
  const Tensor rstd = rsqrt(average(square(centred)) + context.dynamic_as<NormScalars>().eps);
  return {finished(reshape(centred * rstd, x.shape()), gamma, beta, args), Tensor()};
}

void apply_vjp(VjpContext& context) {
  const auto& args = context.as<NormArgs>();
  const auto& scalars = context.dynamic_as<NormScalars>();
  const Tensor x = context.input(0);
  const Tensor moments = context.input(1);
  const Tensor gamma = input_or_none(context, 2);
  const Tensor beta = input_or_none(context, 3);
  const Tensor dy = context.grad(0);
  const Tensor* const parameters[] = {&gamma, &beta};
  const auto wanted = [&](int i) { return parameters[i]->defined() && context.needs(2 + i); };
  if (wanted(0) || wanted(1)) {
    const Outputs sums = call(sums_op, {x, dy, moments, gamma, beta}, args, scalars);
    for (const int i : {0, 1})
      if (wanted(i)) context.set(2 + i, cast(sums[1 + i], parameters[i]->dtype()));
  }
  if (!context.needs(0)) return;
  const Tensor none = Tensor::zeros(
      Layout::replicated(x.mesh(), {moments.shape()[0], args.groups, 2}), DType::kFloat64);
  context.set(0, call(input_grad_op, {x, dy, moments, gamma, beta, none, Tensor()}, args, scalars));
}

std::vector<Tensor> apply_decompose(const VjpContext& context) {
  const auto& args = context.as<NormArgs>();
  const Tensor x = context.input(0);
  const Tensor moments = context.input(1);
  const Tensor gamma = input_or_none(context, 2), beta = input_or_none(context, 3);
  if (x.numel() == 0) return {finished(x, gamma, beta, args)};
  Shape slots = Shape::filled(x.dims() + 1, 1);
  slots[0] = moments.shape()[0];
  slots[x.dims() - 1] = args.groups;
  const auto of = [&](int k) { return reshape(slice(moments, 2, k, k + 1), slots); };
  const Tensor g = reshape(x, grouped_shape(x.shape(), args.groups));
  const Tensor rstd = rsqrt(of(2) / of(0) + context.dynamic_as<NormScalars>().eps);
  const Tensor y = (g - cast(of(1), x.dtype())) * cast(rstd, x.dtype());
  return {finished(reshape(y, x.shape()), gamma, beta, args)};
}

const OpDef norm_op = {.name = "group_norm",
                       .infer = infer_norm,
                       .signatures = norm_signatures,
                       .local = norm_local,
                       .vjp = norm_vjp,
                       .decompose = norm_decompose,
                       .recompute = norm_recompute,
                       .saved_inputs = 0b1111,
                       .saved_outputs = 0b10,
                       .differentiable_outputs = 0b01};

/// `area` with the dimensions that it leaves out: those of samples and channels.
Tensor full_area(const char* op, const Tensor& area, const Tensor& x) {
  if (!area.defined()) return area;
  if (requires_grad(area)) {
    throw UsageError(str(op,
                         ": the area wants a gradient, which there is none of. Pass "
                         "area.detach()."));
  }
  if (area.dims() + 2 != x.dims()) return area;
  Shape full = area.shape();
  full.insert(0, 1);
  full.push_back(1);
  return reshape(area, full);
}

}  // namespace

Tensor group_norm(const Tensor& x,
                  const Tensor& gamma,
                  const Tensor& beta,
                  std::int64_t groups,
                  double eps,
                  Activation activation) {
  return group_norm(x, gamma, beta, groups, eps, activation, Tensor());
}

Tensor group_norm(const Tensor& x,
                  const Tensor& gamma,
                  const Tensor& beta,
                  std::int64_t groups,
                  double eps,
                  Activation activation,
                  const Tensor& area) {
  return call(norm_op, {x, gamma, beta, full_area("group_norm", area, x)},
              NormArgs{groups, static_cast<std::int64_t>(activation), 0}, NormScalars{eps});
}

BatchNormResult batch_norm(const Tensor& x,
                           const Tensor& gamma,
                           const Tensor& beta,
                           const BatchNormSettings& settings) {
  Outputs out = call(norm_op, {x, gamma, beta, full_area("batch_norm", settings.area, x)},
                     NormArgs{x.shape().empty() ? 1 : x.shape().back(),
                              static_cast<std::int64_t>(settings.activation), 1},
                     NormScalars{settings.eps});
  return {std::move(out[0]), std::move(out[1])};
}

Tensor normalize_with(const Tensor& x,
                      const Tensor& moments,
                      const Tensor& gamma,
                      const Tensor& beta,
                      double eps,
                      Activation activation) {
  return call(
      apply_op, {x, moments, gamma, beta},
      NormArgs{x.shape().empty() ? 1 : x.shape().back(), static_cast<std::int64_t>(activation), 1},
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
