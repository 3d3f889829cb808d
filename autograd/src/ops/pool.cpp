// Pooling over windows of the domain of x [N, d..., C]. max_pool keeps the position of each winner,
// so that its gradient is a pair of linear ops, adjoint to each other:
//   pick(v, index)   y[n, j, c]  = v[n, index[n, j, c], c]
//   place(g, index)  dx[n, i, c] = sum of g[n, j, c] over the windows j with index[n, j, c] = i

#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/pool.hpp>
#include <tessera/kernels/pool.hpp>

#include "broadcast.hpp"
#include "domain.hpp"

namespace tessera {

namespace {

struct PoolArgs : WindowGeometry {
  std::int64_t count_include_pad;
};

kernels::PoolGeometry geometry(const PoolArgs& args) {
  return {args.kernel, args.stride, args.pad_lo, args.pad_hi, args.dilation};
}

Shape with_domain(const Shape& shape, const Dims& size) {
  Shape result = shape;
  for (int d = 0; d < size.size(); ++d) result[d + 1] = size[d];
  return result;
}

/// Everything is split alike; in the domain the first `windowed` inputs read windows.
void pool_signatures(const Problem& problem,
                     int windowed,
                     int driver,
                     std::vector<Signature>& legal) {
  const auto& args = problem.as<PoolArgs>();
  const std::size_t outputs = problem.out.size();
  const auto add = [&](int dim, std::function<Bounds(int, const Bounds&)> bounds, bool domain) {
    std::vector<Role> in;
    for (int i = 0; i < static_cast<int>(problem.in.size()); ++i) {
      in.push_back(domain && i < windowed ? window_role(dim) : shard_role(dim));
    }
    legal.push_back({.in = in,
                     .out = std::vector<Role>(outputs, shard_role(dim)),
                     .driver = driver,
                     .bounds = std::move(bounds)});
  };
  add(0, {}, false);
  add(args.dims() + 1, {}, false);
  const int inputs = static_cast<int>(problem.in.size());
  for (int d = 0; d < args.dims(); ++d) {
    if (driver != 0) {
      add(d + 1, {}, true);
      continue;
    }
    add(
        d + 1,
        [s = args.stride[d], m = args.size[d], inputs](int t, const Bounds& b) {
          return t < inputs ? b
                            : mapped_bounds(b, m, [s](std::int64_t i) { return ceil_div(i, s); });
        },
        true);
  }
}

void forward_windows(const Problem& problem, std::vector<Window>& windows) {
  const auto& args = problem.as<PoolArgs>();
  for (int d = 0; d < args.dims(); ++d) {
    windows.push_back({0, d + 1, d + 1, [args, d](Interval j) { return args.input_need(d, j); },
                       EdgeRule::kZero});
  }
}

void backward_windows(const Problem& problem, std::vector<Window>& windows) {
  const auto& args = problem.as<PoolArgs>();
  for (int input = 0; input < static_cast<int>(problem.in.size()); ++input) {
    for (int d = 0; d < args.dims(); ++d) {
      windows.push_back({input, d + 1, d + 1,
                         [args, d](Interval i) { return args.output_need(d, i); },
                         EdgeRule::kZero});
    }
  }
}

void infer_like_input(const Problem& problem, std::vector<OutputMeta>& out) {
  out.push_back({with_domain(problem.shape(0), problem.as<PoolArgs>().size), problem.dtypes[0]});
}

void backward_signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  partial_signature(problem, 0b1, legal);
  pool_signatures(problem, static_cast<int>(problem.in.size()), Signature::kLike, legal);
}

Tensor pick(const Tensor& v, const Tensor& index, const PoolArgs& args);

Tensor place(const Tensor& g, const Tensor& index, const PoolArgs& args, const Layout& like);

// ---- max_pool: x -> (y, index) ----

const OpDef max_pool_op = {
    .name = "max_pool",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          infer_like_input(problem, out);
          out.push_back({out[0].shape, DType::kInt64});
        },
    .signatures = [](const Problem& problem,
                     const AxisGroup&,
                     std::vector<Signature>& legal) { pool_signatures(problem, 1, 0, legal); },
    .windows = forward_windows,
    .local =
        [](const LocalCall& call) {
          kernels::max_pool_forward(geometry(call.as<PoolArgs>()), call.in[0], call.out[0],
                                    call.out[1]);
        },
    .vjp =
        [](VjpContext& context) {
          const Layout& x = context.input_layout(0);
          context.set(0, place(context.grad(0), context.output(1),
                               with_size(context.as<PoolArgs>(), x.shape()), x.dual()));
        },
    .saved_outputs = 0b10,
    .differentiable_outputs = 0b01};

const OpDef place_op = {.name = "max_pool_grad",
                        .infer = infer_like_input,
                        .signatures = backward_signatures,
                        .windows = backward_windows,
                        .local =
                            [](const LocalCall& call) {
                              kernels::max_pool_input_grad(geometry(call.as<PoolArgs>()),
                                                           call.in[0], call.in[1], call.out[0]);
                            },
                        .vjp =
                            [](VjpContext& context) {
                              const PoolArgs args = with_size(context.as<PoolArgs>(),
                                                              context.input_layout(0).shape());
                              context.set(0, pick(context.grad(), context.input(1), args));
                            },
                        .saved_inputs = 0b10};

const OpDef pick_op = {
    .name = "max_pool_pick",
    .infer = infer_like_input,
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          partial_signature(problem, 0b1, legal);
          pool_signatures(problem, 1, 1, legal);
        },
    .windows = forward_windows,
    .local =
        [](const LocalCall& call) {
          kernels::max_pool_gather(call.in[0], call.in[1].slice(call.out[0].box), call.out[0]);
        },
    .vjp =
        [](VjpContext& context) {
          const Layout& v = context.input_layout(0);
          context.set(0, place(context.grad(), context.input(1),
                               with_size(context.as<PoolArgs>(), v.shape()), v.dual()));
        },
    .saved_inputs = 0b10};

Tensor pick(const Tensor& v, const Tensor& index, const PoolArgs& args) {
  return call(pick_op, {v, index}, args);
}
Tensor place(const Tensor& g, const Tensor& index, const PoolArgs& args, const Layout& like) {
  return call(place_op, {g, index}, args, NoArgs{}, like);
}

// ---- avg_pool and its adjoint ----

Tensor average(const Tensor& x, const PoolArgs& args);
Tensor spread(const Tensor& g, const PoolArgs& args, const Layout& like);

const OpDef average_op = {
    .name = "avg_pool",
    .infer = infer_like_input,
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          partial_signature(problem, 0b1, legal);
          pool_signatures(problem, 1, 0, legal);
        },
    .windows = forward_windows,
    .local =
        [](const LocalCall& call) {
          const auto& args = call.as<PoolArgs>();
          kernels::avg_pool_forward(geometry(args), call.in[0], call.out[0],
                                    args.count_include_pad != 0);
        },
    .vjp =
        [](VjpContext& context) {
          const Layout& x = context.input_layout(0);
          context.set(
              0, spread(context.grad(), with_size(context.as<PoolArgs>(), x.shape()), x.dual()));
        }};

const OpDef spread_op = {
    .name = "avg_pool_grad",
    .infer = infer_like_input,
    .signatures = backward_signatures,
    .windows = backward_windows,
    .local =
        [](const LocalCall& call) {
          const auto& args = call.as<PoolArgs>();
          kernels::avg_pool_input_grad(geometry(args), call.in[0], call.out[0],
                                       args.count_include_pad != 0);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(0, average(context.grad(), with_size(context.as<PoolArgs>(),
                                                           context.input_layout(0).shape())));
        }};

Tensor average(const Tensor& x, const PoolArgs& args) { return call(average_op, {x}, args); }
Tensor spread(const Tensor& g, const PoolArgs& args, const Layout& like) {
  return call(spread_op, {g}, args, NoArgs{}, like);
}

PoolArgs make_args(const char* op, const Tensor& x, const PoolOptions& o) {
  const int dims = domain_dims(op, x.shape());
  if (!is_floating(x.dtype()))
    throw DTypeError(
        str(op, ": element type ", name(x.dtype()), " is not floating. Cast it first."));
  if (o.kernel.empty()) throw UsageError(str(op, ": no kernel is given. Set PoolOptions::kernel."));
  PoolArgs args{};
  args.kernel = per_dim(op, "kernel", o.kernel, dims, 1, 1);
  args.stride = o.stride.empty() ? args.kernel : per_dim(op, "stride", o.stride, dims, 1, 1);
  args.pad_lo = per_dim(op, "pad_lo", o.pad_lo, dims, 0, 0);
  args.pad_hi = o.pad_hi.empty() ? args.pad_lo : per_dim(op, "pad_hi", o.pad_hi, dims, 0, 0);
  args.dilation = per_dim(op, "dilation", o.dilation, dims, 1, 1);
  args.count_include_pad = o.count_include_pad;
  for (int d = 0; d < dims; ++d) {
    const std::int64_t extent = args.dilation[d] * (args.kernel[d] - 1) + 1;
    if (std::max(args.pad_lo[d], args.pad_hi[d]) >= extent) {
      throw ShapeError(str(op, ": padding ", std::max(args.pad_lo[d], args.pad_hi[d]),
                           " of domain dimension ", d, " is not below the window of ", extent,
                           " (a window would see padding only). Pad less."));
    }
    args.size.push_back(kernels::pool_size(geometry(args), d, x.shape()[d + 1], o.ceil_mode));
    if (args.size[d] < 1) {
      throw ShapeError(str(op, ": kernel ", args.kernel[d], " does not fit input size ",
                           x.shape()[d + 1], " of domain dimension ", d,
                           " (output would be empty). Pad, or use a smaller kernel."));
    }
  }
  return args;
}

}  // namespace

Tensor max_pool(const Tensor& x, const PoolOptions& options) {
  return call(max_pool_op, {x}, make_args("max_pool", x, options));
}
Tensor avg_pool(const Tensor& x, const PoolOptions& options) {
  return average(x, make_args("avg_pool", x, options));
}

}  // namespace tessera
