// Convolution and its two gradients: three ops, bilinear, that differentiate into each other.
//   conv(x, w)          y[n, j, o]  = sum_{t, c} x[n, j s - p + t d, c] w[o, t, c]
//   input_grad(dy, w)   dx[n, i, c] = sum_{t, o, j: j s - p + t d = i} dy[n, j, o] w[o, t, c] (=
//   transposed convolution) weight_grad(x, dy)  dw[o, t, c] = sum_{n, j} dy[n, j, o] x[n, j s - p +
//   t d, c]
// x [N, d..., C_in], w [C_out, k..., C_in / groups], dy [N, j..., C_out]. A split domain reads
// windows; split input channels give a pending sum; groups split freely where the boundaries align
// with them. Edge rules other than zero fill the windows of x and fold the gradient of x.

#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/conv.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/kernels/conv.hpp>

#include "broadcast.hpp"
#include "domain.hpp"

namespace tessera {

namespace {

struct ConvArgs : WindowGeometry {
  std::int64_t groups;
  std::int64_t edges[3];

  EdgeRule edge(int d) const { return static_cast<EdgeRule>(edges[d]); }
};

kernels::ConvGeometry geometry(const ConvArgs& args) {
  return {args.kernel, args.stride, args.pad_lo, args.dilation};
}

std::optional<View> optional_view(const Piece& piece) {
  return piece.view.data == nullptr ? std::nullopt : std::optional<View>(piece.view);
}

/// Products of a call whose `side` (y, or its gradient) takes part in one product per tap and
/// channel of x in its group.
double products(const ConvArgs& args, const Piece& side, std::int64_t channels_per_group) {
  double count = static_cast<double>(side.view.size() * channels_per_group);
  for (int d = 0; d < args.dims(); ++d) count *= static_cast<double>(args.kernel[d]);
  return 2.0 * count;
}

/// Channels per group of the tensors of a call: boundaries of one follow from those of another
/// through whole groups.
struct GroupWidths {
  std::vector<std::int64_t>
      widths;  // per tensor of the call, inputs first; 0: the tensor is not split

  std::function<Bounds(int, const Bounds&)> bounds(int driver) const {
    return [widths = widths, driver](int t, const Bounds& from) {
      Bounds result = from;
      for (std::int64_t& b : result)
        b = b / widths[static_cast<std::size_t>(driver)] * widths[static_cast<std::size_t>(t)];
      return result;
    };
  }
};

bool aligned(const Layout& layout, int dim, std::int64_t width) {
  for (const std::int64_t b : layout.split(dim).bounds)
    if (b % width != 0) return false;
  return true;
}

// ---- conv: (x, w, bias) -> y ----

void infer_conv(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<ConvArgs>();
  Shape shape = problem.shape(0);
  for (int d = 0; d < args.dims(); ++d) shape[d + 1] = args.size[d];
  shape.back() = problem.shape(1)[0];
  out.push_back({shape, common_dtype("conv", problem)});
}

void conv_signatures(const Problem& problem,
                     const AxisGroup& group,
                     std::vector<Signature>& legal) {
  const auto& args = problem.as<ConvArgs>();
  const int last = args.dims() + 1;  // channels: of x, y and (in / groups) of w
  const bool has_bias = problem.in[2].defined();
  const Role none = replicate_role();
  if (!has_bias) {
    partial_signature(problem, 0b001, legal);
    partial_signature(problem, 0b010, legal);
  }
  legal.push_back({.in = {shard_role(0), none, none}, .out = {shard_role(0)}, .bounds = {}});
  for (int d = 0; d < args.dims(); ++d) {
    legal.push_back({.in = {window_role(d + 1), none, none},
                     .out = {shard_role(d + 1)},
                     .bounds = [s = args.stride[d], m = args.size[d]](int, const Bounds& b) {
                       return mapped_bounds(b, m, [s](std::int64_t i) { return ceil_div(i, s); });
                     }});
  }
  const Role bias = has_bias ? shard_role(0) : none;
  if (args.groups == 1) {
    legal.push_back(
        {.in = {none, shard_role(0), bias}, .out = {shard_role(last)}, .driver = 1, .bounds = {}});
    if (has_bias) return;
    for (const int driver : {0, 1}) {
      legal.push_back({.in = {shard_role(last), shard_role(last), none},
                       .out = {partial_role()},
                       .driver = driver,
                       .bounds = {}});
    }
    return;
  }
  const std::int64_t in_width = problem.shape(0).back() / args.groups;
  const std::int64_t out_width = problem.shape(1)[0] / args.groups;
  const GroupWidths widths{{in_width, out_width, out_width, out_width}};
  for (const int driver : {0, 1}) {
    const int dim = driver == 0 ? last : 0;
    const Layout& layout = problem.in[static_cast<std::size_t>(driver)];
    if (!group.splits(layout, dim) || !aligned(layout, dim, driver == 0 ? in_width : out_width))
      continue;
    legal.push_back({.in = {shard_role(last), shard_role(0), bias},
                     .out = {shard_role(last)},
                     .driver = driver,
                     .bounds = widths.bounds(driver)});
  }
}

void conv_windows(const Problem& problem, std::vector<Window>& windows) {
  const auto& args = problem.as<ConvArgs>();
  for (int d = 0; d < args.dims(); ++d) {
    windows.push_back(
        {0, d + 1, d + 1, [args, d](Interval j) { return args.input_need(d, j); }, args.edge(d)});
  }
}

Tensor conv_product(const Tensor& x, const Tensor& w, const ConvArgs& args);
Tensor input_grad(const Tensor& dy, const Tensor& w, const ConvArgs& args, const Layout& like);
Tensor weight_grad(const Tensor& x, const Tensor& dy, const ConvArgs& args);

void conv_vjp(VjpContext& context) {
  const auto& args = context.as<ConvArgs>();
  const Tensor g = context.grad();
  // First what reads x, which may be a value computed again for the time of this call.
  if (context.needs(1)) context.set(1, weight_grad(context.input(0), g, args));
  if (context.needs(0)) {
    const Layout& x = context.input_layout(0);
    context.set(0, input_grad(g, context.input(1), with_size(args, x.shape()), x.dual()));
  }
  if (context.input_layout(2).defined() && context.needs(2))
    context.set(2, sum_to(g, context.input_layout(2).shape()));
}

const OpDef conv_op = {
    .name = "conv",
    .infer = infer_conv,
    .signatures = conv_signatures,
    .windows = conv_windows,
    .takes_scratch = true,
    .local =
        [](const LocalCall& call) {
          kernels::conv_forward(geometry(call.as<ConvArgs>()), call.in[0], call.in[1].view,
                                optional_view(call.in[2]), call.out[0]);
        },
    .vjp = conv_vjp,
    .saved_inputs = 0b011,
    .cost =
        [](const LocalCall& call) {
          const auto& args = call.as<ConvArgs>();
          return products(args, call.out[0], call.in[0].view.shape.back() / args.groups);
        }};

// ---- input_grad: (dy, w, bias) -> dx; the bias is that of a transposed convolution ----

void infer_input_grad(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<ConvArgs>();
  Shape shape = problem.shape(0);
  for (int d = 0; d < args.dims(); ++d) shape[d + 1] = args.size[d];
  shape.back() = problem.shape(1).back() * args.groups;
  out.push_back({shape, common_dtype("conv_transpose", problem)});
}

void input_grad_signatures(const Problem& problem,
                           const AxisGroup& group,
                           std::vector<Signature>& legal) {
  const auto& args = problem.as<ConvArgs>();
  const int last = args.dims() + 1;
  const bool has_bias = problem.in[2].defined();
  const bool has_like = problem.like.defined();
  const Role none = replicate_role();
  if (!has_bias) {
    partial_signature(problem, 0b001, legal);
    partial_signature(problem, 0b010, legal);
  }
  legal.push_back({.in = {shard_role(0), none, none}, .out = {shard_role(0)}, .bounds = {}});
  if (has_like) {
    legal.push_back({.in = {shard_role(0), none, none},
                     .out = {shard_role(0)},
                     .driver = Signature::kLike,
                     .bounds = {}});
  }
  for (int d = 0; d < args.dims(); ++d) {
    if (has_like) {
      // The boundaries of x cannot be recovered from those of a strided y.
      legal.push_back({.in = {window_role(d + 1), none, none},
                       .out = {shard_role(d + 1)},
                       .driver = Signature::kLike,
                       .bounds = {}});
    }
    legal.push_back({.in = {window_role(d + 1), none, none},
                     .out = {shard_role(d + 1)},
                     .bounds = [s = args.stride[d], n = args.size[d]](int, const Bounds& b) {
                       return mapped_bounds(b, n, [s](std::int64_t j) { return j * s; });
                     }});
  }
  const Role bias = has_bias ? shard_role(0) : none;
  if (args.groups == 1) {
    legal.push_back({.in = {none, shard_role(last), bias},
                     .out = {shard_role(last)},
                     .driver = 1,
                     .bounds = {}});
    if (has_like) {
      legal.push_back({.in = {none, shard_role(last), bias},
                       .out = {shard_role(last)},
                       .driver = Signature::kLike,
                       .bounds = {}});
    }
    if (has_bias) return;
    for (const int driver : {0, 1}) {
      legal.push_back({.in = {shard_role(last), shard_role(0), none},
                       .out = {partial_role()},
                       .driver = driver,
                       .bounds = {}});
    }
    return;
  }
  const std::int64_t in_width = problem.shape(1).back();
  const std::int64_t out_width = problem.shape(1)[0] / args.groups;
  const GroupWidths widths{{out_width, out_width, in_width, in_width}};
  for (const int driver : {0, 1}) {
    const int dim = driver == 0 ? last : 0;
    const Layout& layout = problem.in[static_cast<std::size_t>(driver)];
    if (!group.splits(layout, dim) || !aligned(layout, dim, out_width)) continue;
    legal.push_back({.in = {shard_role(last), shard_role(0), bias},
                     .out = {shard_role(last)},
                     .driver = driver,
                     .bounds = widths.bounds(driver)});
  }
}

void input_grad_windows(const Problem& problem, std::vector<Window>& windows) {
  const auto& args = problem.as<ConvArgs>();
  for (int d = 0; d < args.dims(); ++d) {
    windows.push_back({0, d + 1, d + 1, [args, d](Interval i) { return args.output_need(d, i); },
                       EdgeRule::kZero});
  }
}

void input_grad_folds(const Problem& problem, std::vector<Fold>& folds) {
  const auto& args = problem.as<ConvArgs>();
  for (int d = 0; d < args.dims(); ++d) {
    if (args.edge(d) == EdgeRule::kZero || (args.pad_lo[d] <= 0 && args.pad_hi[d] <= 0)) continue;
    folds.push_back({0, d + 1, std::max<std::int64_t>(args.pad_lo[d], 0),
                     std::max<std::int64_t>(args.pad_hi[d], 0), args.edge(d)});
  }
}

void input_grad_vjp(VjpContext& context) {
  const auto& args = context.as<ConvArgs>();
  const Tensor h = context.grad();
  if (context.needs(0))
    context.set(
        0, conv_product(h, context.input(1), with_size(args, context.input_layout(0).shape())));
  if (context.needs(1)) context.set(1, weight_grad(h, context.input(0), args));
  if (context.input_layout(2).defined() && context.needs(2))
    context.set(2, sum_to(h, context.input_layout(2).shape()));
}

const OpDef input_grad_op = {
    .name = "conv_transpose",
    .infer = infer_input_grad,
    .signatures = input_grad_signatures,
    .windows = input_grad_windows,
    .folds = input_grad_folds,
    .takes_scratch = true,
    .local =
        [](const LocalCall& call) {
          kernels::conv_input_grad(geometry(call.as<ConvArgs>()), call.in[0], call.in[1].view,
                                   call.out[0], optional_view(call.in[2]));
        },
    .vjp = input_grad_vjp,
    .saved_inputs = 0b011,
    .cost =
        [](const LocalCall& call) {
          return products(call.as<ConvArgs>(), call.in[0], call.in[1].view.shape.back());
        }};

// ---- weight_grad: (x, dy) -> dw ----

void infer_weight_grad(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<ConvArgs>();
  Shape shape{problem.shape(1).back()};
  for (const std::int64_t k : args.kernel) shape.push_back(k);
  shape.push_back(problem.shape(0).back() / args.groups);
  out.push_back({shape, common_dtype("conv_weight_grad", problem)});
}

void weight_grad_signatures(const Problem& problem,
                            const AxisGroup& group,
                            std::vector<Signature>& legal) {
  const auto& args = problem.as<ConvArgs>();
  const int last = args.dims() + 1;
  const Role none = replicate_role();
  partial_signature(problem, 0b01, legal);
  partial_signature(problem, 0b10, legal);
  for (const int driver : {1, 0}) {
    legal.push_back({.in = {shard_role(0), shard_role(0)},
                     .out = {partial_role()},
                     .driver = driver,
                     .bounds = {}});
  }
  for (int d = 0; d < args.dims(); ++d) {
    legal.push_back({.in = {window_role(d + 1), shard_role(d + 1)},
                     .out = {partial_role()},
                     .driver = 1,
                     .bounds = {}});
    // Where only x is split, dy is whole: a pending sum over channels has been taken.
    legal.push_back(
        {.in = {window_role(d + 1), shard_role(d + 1)},
         .out = {partial_role()},
         .bounds = [s = args.stride[d], m = problem.shape(1)[d + 1]](int t, const Bounds& b) {
           return t == 0 ? b : mapped_bounds(b, m, [s](std::int64_t i) { return ceil_div(i, s); });
         }});
  }
  if (args.groups == 1) {
    legal.push_back(
        {.in = {none, shard_role(last)}, .out = {shard_role(0)}, .driver = 1, .bounds = {}});
    legal.push_back({.in = {shard_role(last), none}, .out = {shard_role(last)}, .bounds = {}});
    return;
  }
  const std::int64_t in_width = problem.shape(0).back() / args.groups;
  const std::int64_t out_width = problem.shape(1).back() / args.groups;
  const GroupWidths widths{{in_width, out_width, out_width}};
  for (const int driver : {0, 1}) {
    const Layout& layout = problem.in[static_cast<std::size_t>(driver)];
    if (!group.splits(layout, last) || !aligned(layout, last, driver == 0 ? in_width : out_width))
      continue;
    legal.push_back({.in = {shard_role(last), shard_role(last)},
                     .out = {shard_role(0)},
                     .driver = driver,
                     .bounds = widths.bounds(driver)});
  }
}

void weight_grad_vjp(VjpContext& context) {
  const auto& args = context.as<ConvArgs>();
  const Tensor h = context.grad();
  if (context.needs(0)) {
    const Layout& x = context.input_layout(0);
    context.set(0, input_grad(context.input(1), h, with_size(args, x.shape()), x.dual()));
  }
  if (context.needs(1))
    context.set(
        1, conv_product(context.input(0), h, with_size(args, context.input_layout(1).shape())));
}

const OpDef weight_grad_op = {
    .name = "conv_weight_grad",
    .infer = infer_weight_grad,
    .signatures = weight_grad_signatures,
    .windows = conv_windows,
    .work = 1,
    .takes_scratch = true,
    .local =
        [](const LocalCall& call) {
          kernels::conv_weight_grad(geometry(call.as<ConvArgs>()), call.in[0], call.in[1],
                                    call.out[0].view, call.accumulate);
        },
    .vjp = weight_grad_vjp,
    .saved_inputs = 0b11,
    .cost =
        [](const LocalCall& call) {
          return products(call.as<ConvArgs>(), call.in[1], call.out[0].view.shape.back());
        }};

Tensor conv_product(const Tensor& x, const Tensor& w, const ConvArgs& args) {
  return call(conv_op, {x, w, Tensor()}, args);
}
Tensor input_grad(const Tensor& dy, const Tensor& w, const ConvArgs& args, const Layout& like) {
  return call(input_grad_op, {dy, w, Tensor()}, args, NoArgs{}, like);
}
Tensor weight_grad(const Tensor& x, const Tensor& dy, const ConvArgs& args) {
  return call(weight_grad_op, {x, dy}, args);
}

// ---- checks of the public functions ----

ConvArgs make_args(const char* op,
                   const Tensor& x,
                   const Tensor& w,
                   const Dims& stride,
                   const Dims& pad_lo,
                   const Dims& pad_hi,
                   const Dims& dilation,
                   std::int64_t groups,
                   const std::vector<EdgeRule>& edges) {
  const int dims = domain_dims(op, x.shape());
  if (w.dims() != dims + 2) {
    throw ShapeError(str(op, ": weight ", w.shape(), " does not fit input ", x.shape(),
                         " (both have ", dims,
                         " domain dimensions in the order [C_out, kernel..., C_in / groups] and "
                         "[N, domain..., C_in])."));
  }
  ConvArgs args{};
  for (int d = 0; d < dims; ++d) args.kernel.push_back(w.shape()[d + 1]);
  args.stride = per_dim(op, "stride", stride, dims, 1, 1);
  args.pad_lo = per_dim(op, "pad_lo", pad_lo, dims, 0, 0);
  args.pad_hi = pad_hi.empty() ? args.pad_lo : per_dim(op, "pad_hi", pad_hi, dims, 0, 0);
  args.dilation = per_dim(op, "dilation", dilation, dims, 1, 1);
  args.groups = groups;
  args.size = Dims::filled(dims, 0);
  if (!edges.empty() && edges.size() != 1 && static_cast<int>(edges.size()) != dims) {
    throw ShapeError(str(op, ": ", edges.size(), " edge rules for ", dims,
                         " domain dimensions. Give one, or one for each."));
  }
  for (int d = 0; d < dims; ++d) {
    if (args.kernel[d] < 1)
      throw ShapeError(str(op, ": kernel ", args.kernel, " has an empty dimension."));
    if (!edges.empty())
      args.edges[d] =
          static_cast<std::int64_t>(edges[edges.size() == 1 ? 0 : static_cast<std::size_t>(d)]);
  }
  if (groups < 1) throw ShapeError(str(op, ": ", groups, " groups. Use at least 1."));
  return args;
}

void check_channels(const char* op,
                    std::int64_t channels,
                    std::int64_t per_group,
                    std::int64_t others,
                    std::int64_t groups,
                    const Tensor& w) {
  if (per_group * groups != channels || others % groups != 0) {
    throw ShapeError(str(op, ": ", channels, " channels, weight ", w.shape(), " and ", groups,
                         " groups do not fit. The input channels must be the last weight dimension "
                         "times the groups, and both channel counts multiples of the groups."));
  }
}

void check_bias(const char* op, const Tensor& bias, std::int64_t channels) {
  if (bias.defined() && !(bias.shape() == Shape{channels})) {
    throw ShapeError(
        str(op, ": bias ", bias.shape(), " does not fit the ", channels, " output channels."));
  }
}

/// Whether the result may be a pending sum, to which a bias must be added once, not once per part.
bool sums_channels(const Tensor& x, const Tensor& w, int x_dim, int w_dim, std::int64_t groups) {
  return x.layout().partial_axes() != 0 || w.layout().partial_axes() != 0 ||
         (groups == 1 && (x.layout().is_split(x_dim) || w.layout().is_split(w_dim)));
}

}  // namespace

Tensor conv(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions& o) {
  ConvArgs args =
      make_args("conv", x, w, o.stride, o.pad_lo, o.pad_hi, o.dilation, o.groups, o.edges);
  const int last = args.dims() + 1;
  check_channels("conv", x.shape()[last], w.shape()[last], w.shape()[0], o.groups, w);
  check_bias("conv", bias, w.shape()[0]);
  for (int d = 0; d < args.dims(); ++d) {
    const std::int64_t n = x.shape()[d + 1];
    const std::int64_t extent = args.dilation[d] * (args.kernel[d] - 1) + 1;
    const std::int64_t padded = n + args.pad_lo[d] + args.pad_hi[d];
    if (padded < extent) {
      throw ShapeError(str("conv: kernel ", args.kernel[d],
                           args.dilation[d] > 1 ? str(" with dilation ", args.dilation[d]) : "",
                           " does not fit input size ", n, " of domain dimension ", d,
                           " with padding ", args.pad_lo[d], " and ", args.pad_hi[d],
                           " (output would be empty). Pad by at least ", extent - padded,
                           " more, or use a smaller kernel."));
    }
    if (n == 0 && args.edge(d) != EdgeRule::kZero) {
      throw ShapeError(str("conv: edge rule ", name(args.edge(d)),
                           " needs elements but domain dimension ", d, " is empty."));
    }
    args.size[d] = (padded - extent) / args.stride[d] + 1;
  }
  if (bias.defined() && sums_channels(x, w, last, last, o.groups))
    return conv_product(x, w, args) + bias;
  return call(conv_op, {x, w, bias}, args);
}

Tensor conv_transpose(const Tensor& x,
                      const Tensor& w,
                      const Tensor& bias,
                      const ConvTransposeOptions& o) {
  ConvArgs args = make_args("conv_transpose", x, w, o.stride, o.pad_lo, o.pad_hi, o.dilation,
                            o.groups, o.edges);
  const int last = args.dims() + 1;
  check_channels("conv_transpose", x.shape()[last],
                 w.shape()[0] / std::max<std::int64_t>(o.groups, 1), w.shape()[0], o.groups, w);
  check_bias("conv_transpose", bias, w.shape()[last] * o.groups);
  const Dims extra =
      per_dim("conv_transpose", "output_padding", o.output_padding, args.dims(), 0, 0);
  for (int d = 0; d < args.dims(); ++d) {
    const std::int64_t n = x.shape()[d + 1];
    if (extra[d] >= std::max(args.stride[d], args.dilation[d])) {
      throw ShapeError(str("conv_transpose: output_padding ", extra[d], " is not below the stride ",
                           args.stride[d], " or the dilation ", args.dilation[d],
                           " of domain dimension ", d, "."));
    }
    args.size[d] = (n - 1) * args.stride[d] - args.pad_lo[d] - args.pad_hi[d] +
                   args.dilation[d] * (args.kernel[d] - 1) + extra[d] + 1;
    if (n == 0) args.size[d] = 0;
    if (args.size[d] < 1) {
      throw ShapeError(str("conv_transpose: padding ", args.pad_lo[d], " and ", args.pad_hi[d],
                           " cuts away all of domain dimension ", d, " (size ", n, ", stride ",
                           args.stride[d], ", kernel ", args.kernel[d], "). Pad less."));
    }
  }
  if (bias.defined() && sums_channels(x, w, last, 0, o.groups)) {
    return input_grad(x, w, args, Layout()) + bias;
  }
  return call(input_grad_op, {x, w, bias}, args);
}

}  // namespace tessera
