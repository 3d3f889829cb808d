// The windows of a convolution as a dimension of their own, and their sum back into the domain:
// two linear ops, adjoint to each other. x [N, d..., C], windows [N, d..., taps, C].

#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/unfold.hpp>
#include <tessera/kernels/unfold.hpp>

#include "broadcast.hpp"
#include "domain.hpp"

namespace tessera {

namespace {

/// `size` is the domain of the result.
struct UnfoldArgs : WindowGeometry {};

kernels::UnfoldGeometry geometry(const UnfoldArgs& args) {
  return {args.kernel, args.stride, args.pad_lo, args.dilation};
}

/// Samples, channels (dimension `in` of the input, `out` of the output) and the domain may be
/// split, the taps not.
void unfold_signatures(const Problem& problem,
                       int in,
                       int out,
                       const std::function<std::int64_t(int, std::int64_t)>& boundary,
                       std::vector<Signature>& legal) {
  const auto& args = problem.as<UnfoldArgs>();
  partial_signature(problem, 0b1, legal);
  legal.push_back({.in = {shard_role(0)}, .out = {shard_role(0)}, .bounds = {}});
  legal.push_back({.in = {shard_role(in)}, .out = {shard_role(out)}, .bounds = {}});
  for (int d = 0; d < args.dims(); ++d) {
    Signature domain = {.in = {window_role(d + 1)}, .out = {shard_role(d + 1)}, .bounds = {}};
    if (problem.like.defined()) {
      domain.driver = Signature::kLike;
      legal.push_back(domain);
      domain.driver = 0;
    }
    domain.bounds = [m = args.size[d], boundary, d](int t, const Bounds& b) {
      if (t == 0) return b;
      return mapped_bounds(b, m, [&](std::int64_t i) { return boundary(d, i); });
    };
    legal.push_back(std::move(domain));
  }
}

Tensor unfold_with(const Tensor& x, const UnfoldArgs& args, const Layout& like = {});
Tensor fold_with(const Tensor& y, const UnfoldArgs& args, const Layout& like = {});

// ---- x -> windows ----

void infer_unfold(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<UnfoldArgs>();
  Shape shape = {problem.shape(0)[0]};
  for (const std::int64_t m : args.size) shape.push_back(m);
  shape.push_back(args.kernel.product());
  shape.push_back(problem.shape(0).back());
  out.push_back({shape, problem.dtypes[0]});
}

const OpDef unfold_op = {
    .name = "unfold",
    .infer = infer_unfold,
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          const auto& args = problem.as<UnfoldArgs>();
          unfold_signatures(
              problem, args.dims() + 1, args.dims() + 2,
              [s = args.stride](int d, std::int64_t b) { return ceil_div(b, s[d]); }, legal);
        },
    .windows =
        [](const Problem& problem, std::vector<Window>& windows) {
          const auto& args = problem.as<UnfoldArgs>();
          for (int d = 0; d < args.dims(); ++d)
            windows.push_back({0, d + 1, d + 1,
                               [args, d](Interval j) { return args.input_need(d, j); },
                               EdgeRule::kZero});
        },
    .local =
        [](const LocalCall& call) {
          kernels::unfold(geometry(call.as<UnfoldArgs>()), call.in[0], call.out[0]);
        },
    .vjp =
        [](VjpContext& context) {
          const Layout& x = context.input_layout(0);
          context.set(0, fold_with(context.grad(), with_size(context.as<UnfoldArgs>(), x.shape()),
                                   x.dual()));
        }};

// ---- windows -> x ----

void infer_fold(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<UnfoldArgs>();
  Shape shape = {problem.shape(0)[0]};
  for (const std::int64_t n : args.size) shape.push_back(n);
  shape.push_back(problem.shape(0).back());
  out.push_back({shape, problem.dtypes[0]});
}

const OpDef fold_op = {
    .name = "fold",
    .infer = infer_fold,
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          const auto& args = problem.as<UnfoldArgs>();
          unfold_signatures(
              problem, args.dims() + 2, args.dims() + 1,
              [s = args.stride](int d, std::int64_t b) { return b * s[d]; }, legal);
        },
    .windows =
        [](const Problem& problem, std::vector<Window>& windows) {
          const auto& args = problem.as<UnfoldArgs>();
          for (int d = 0; d < args.dims(); ++d)
            windows.push_back({0, d + 1, d + 1,
                               [args, d](Interval i) { return args.output_need(d, i); },
                               EdgeRule::kZero});
        },
    .local =
        [](const LocalCall& call) {
          kernels::fold(geometry(call.as<UnfoldArgs>()), call.in[0], call.out[0]);
        },
    .vjp =
        [](VjpContext& context) {
          const Layout& y = context.input_layout(0);
          context.set(0, unfold_with(context.grad(), with_size(context.as<UnfoldArgs>(), y.shape()),
                                     y.dual()));
        }};

Tensor unfold_with(const Tensor& x, const UnfoldArgs& args, const Layout& like) {
  return call(unfold_op, {x}, args, NoArgs{}, like);
}
Tensor fold_with(const Tensor& y, const UnfoldArgs& args, const Layout& like) {
  return call(fold_op, {y}, args, NoArgs{}, like);
}

/// The windows over a domain of `n`; `size` becomes the number of windows.
UnfoldArgs make_args(const char* op, const Tensor& x, const Dims& n, const UnfoldOptions& o) {
  const int dims = n.size();
  if (!is_floating(x.dtype()))
    throw DTypeError(
        str(op, ": element type ", name(x.dtype()), " is not floating. Cast it first."));
  if (o.kernel.empty())
    throw UsageError(str(op, ": no kernel is given. Set UnfoldOptions::kernel."));
  UnfoldArgs args{};
  args.kernel = per_dim(op, "kernel", o.kernel, dims, 1, 1);
  args.stride = per_dim(op, "stride", o.stride, dims, 1, 1);
  args.pad_lo = per_dim(op, "pad_lo", o.pad_lo, dims, 0, 0);
  args.pad_hi = o.pad_hi.empty() ? args.pad_lo : per_dim(op, "pad_hi", o.pad_hi, dims, 0, 0);
  args.dilation = per_dim(op, "dilation", o.dilation, dims, 1, 1);
  for (int d = 0; d < dims; ++d) {
    const std::int64_t room =
        n[d] + args.pad_lo[d] + args.pad_hi[d] - args.dilation[d] * (args.kernel[d] - 1) - 1;
    if (room < 0) {
      throw ShapeError(str(op, ": kernel ", args.kernel[d], " does not fit ", n[d],
                           " elements of domain dimension ", d,
                           " (there would be no window). Pad, or use a smaller kernel."));
    }
    args.size.push_back(room / args.stride[d] + 1);
  }
  return args;
}

}  // namespace

Tensor unfold(const Tensor& x, const UnfoldOptions& options) {
  Dims n;
  for (int d = 1; d <= domain_dims("unfold", x.shape()); ++d) n.push_back(x.shape()[d]);
  return unfold_with(x, make_args("unfold", x, n, options));
}

Tensor fold(const Tensor& y, const Dims& size, const UnfoldOptions& options, const Layout& like) {
  const int dims = y.dims() - 3;
  if (dims < 1 || dims > 3)
    throw ShapeError(str("fold: windows ", y.shape(),
                         " are not [N, domain..., taps, C] with 1 to 3 domain dimensions."));
  UnfoldArgs args = make_args("fold", y, per_dim("fold", "size", size, dims, 0, 1), options);
  bool fits = y.shape()[dims + 1] == args.kernel.product();
  for (int d = 0; d < dims; ++d) fits = fits && y.shape()[d + 1] == args.size[d];
  if (!fits) {
    throw ShapeError(str("fold: windows ", y.shape(), " are not those of a kernel ", args.kernel,
                         " over the domain ", size, " (", args.size, " windows of ",
                         args.kernel.product(), " taps)."));
  }
  args.size = per_dim("fold", "size", size, dims, 0, 1);
  Shape shape = {y.shape()[0]};
  for (const std::int64_t n : args.size) shape.push_back(n);
  shape.push_back(y.shape().back());
  if (like.defined() && !(like.shape() == shape))
    throw ShapeError(str("fold: layout ", like, " of `like` is not one of ", shape,
                         ". Pass the layout of what was unfolded."));
  return fold_with(y, args, like.defined() ? like.dual() : Layout());
}

}  // namespace tessera
