// Pooling over windows of the domain of x [N, d..., C]. max_pool keeps the position of each winner,
// so that its gradient is a pair of linear ops, adjoint to each other:
//   pick(v, index)   y[n, j, c]  = v[n, index[n, j, c], c]
//   place(g, index)  dx[n, i, c] = sum of g[n, j, c] over the windows j with index[n, j, c] = i

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/adaptive_pool.hpp>
#include <tessera/autograd/ops/pool.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/kernels/pool.hpp>

#include "broadcast.hpp"
#include "domain.hpp"

namespace tessera {

namespace {

struct PoolArgs : WindowGeometry {
  std::int64_t count_include_pad;
  Dims bins;  // adaptive pooling: the domain of y, where `kernel` is that of x; else empty

  bool adaptive() const { return !bins.empty(); }
  /// Elements of x that the elements [j.lo, j.hi) of y read, and those of y that read x.
  Interval reads(int d, Interval j) const {
    return adaptive() ? kernels::adaptive_inputs(kernel[d], bins[d], j) : input_need(d, j);
  }
  Interval readers(int d, Interval i) const {
    return adaptive() ? kernels::adaptive_outputs(kernel[d], bins[d], i) : output_need(d, i);
  }
  /// Where boundary b of x lies in y.
  std::int64_t boundary(int d, std::int64_t b) const {
    if (!adaptive()) return ceil_div(b, stride[d]);
    return (2 * b * bins[d] + kernel[d]) / (2 * kernel[d]);
  }
};

kernels::PoolGeometry geometry(const PoolArgs& args) {
  return {args.kernel, args.stride, args.pad_lo, args.pad_hi, args.dilation, args.bins};
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
        [args, d, inputs](int t, const Bounds& b) {
          return t < inputs ? b : mapped_bounds(b, args.size[d], [&](std::int64_t i) {
            return args.boundary(d, i);
          });
        },
        true);
  }
}

void forward_windows(const Problem& problem, std::vector<Window>& windows) {
  const auto& args = problem.as<PoolArgs>();
  for (int d = 0; d < args.dims(); ++d) {
    windows.push_back(
        {0, d + 1, d + 1, [args, d](Interval j) { return args.reads(d, j); }, EdgeRule::kZero});
  }
}

void backward_windows(const Problem& problem, std::vector<Window>& windows) {
  const auto& args = problem.as<PoolArgs>();
  for (int input = 0; input < static_cast<int>(problem.in.size()); ++input) {
    for (int d = 0; d < args.dims(); ++d) {
      windows.push_back({input, d + 1, d + 1, [args, d](Interval i) { return args.readers(d, i); },
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

void max_unpool_local(const LocalCall& call) {
  const auto& args = call.as<PoolArgs>();
  kernels::check_pool_index(geometry(args), args.size, call.in[1]);
  kernels::max_pool_input_grad(geometry(args), call.in[0], call.in[1], call.out[0]);
}

/// `place` of an index that comes from outside.
const OpDef max_unpool_op = [] {
  OpDef op = place_op;
  op.name = "max_unpool";
  op.local = max_unpool_local;
  return op;
}();

Tensor pick(const Tensor& v, const Tensor& index, const PoolArgs& args) {
  return call(pick_op, {v, index}, args);
}
Tensor place(const Tensor& g, const Tensor& index, const PoolArgs& args, const Layout& like) {
  return call(place_op, {g, index}, args, NoArgs{}, like);
}

// ---- avg_pool and its adjoint ----

Tensor average(const Tensor& x, const PoolArgs& args, const Layout& like = {});
Tensor spread(const Tensor& g, const PoolArgs& args, const Layout& like);

const OpDef average_op = {
    .name = "avg_pool",
    .infer = infer_like_input,
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          partial_signature(problem, 0b1, legal);
          if (problem.like.defined()) pool_signatures(problem, 1, Signature::kLike, legal);
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
          const Layout& g = context.input_layout(0);
          context.set(
              0, average(context.grad(), with_size(context.as<PoolArgs>(), g.shape()), g.dual()));
        }};

Tensor average(const Tensor& x, const PoolArgs& args, const Layout& like) {
  return call(average_op, {x}, args, NoArgs{}, like);
}
Tensor spread(const Tensor& g, const PoolArgs& args, const Layout& like) {
  return call(spread_op, {g}, args, NoArgs{}, like);
}

int checked_dims(const char* op, const Tensor& x) {
  if (!is_floating(x.dtype()))
    throw DTypeError(
        str(op, ": element type ", name(x.dtype()), " is not floating. Cast it first."));
  return domain_dims(op, x.shape());
}

/// The windows that the options describe, for any domain.
PoolArgs window_args(const char* op, int dims, const PoolOptions& o) {
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
  }
  return args;
}

PoolArgs make_args(const char* op, const Tensor& x, const PoolOptions& o) {
  const int dims = checked_dims(op, x);
  PoolArgs args = window_args(op, dims, o);
  for (int d = 0; d < dims; ++d) {
    args.size.push_back(kernels::pool_size(geometry(args), d, x.shape()[d + 1], o.ceil_mode));
    if (args.size[d] < 1) {
      throw ShapeError(str(op, ": kernel ", args.kernel[d], " does not fit input size ",
                           x.shape()[d + 1], " of domain dimension ", d,
                           " (output would be empty). Pad, or use a smaller kernel."));
    }
  }
  return args;
}

PoolArgs adaptive_args(const char* op, const Tensor& x, const Dims& size, const Layout& like) {
  const int dims = checked_dims(op, x);
  PoolArgs args{};
  args.bins = per_dim(op, "size", size, dims, 1, 1);
  args.size = args.bins;
  for (int d = 0; d < dims; ++d) {
    args.kernel.push_back(x.shape()[d + 1]);
    if (args.kernel[d] < 1)
      throw ShapeError(str(op, ": domain dimension ", d, " of ", x.shape(), " is empty."));
    if (like.defined() && (like.dims() != x.dims() || like.shape()[d + 1] != args.size[d])) {
      throw ShapeError(str(op, ": layout ", like, " of `like` does not have the domain ", args.size,
                           ". Pass the layout of a tensor of that size."));
    }
  }
  return args;
}

/// The layout of a tensor of `shape` that lies as x does, boundaries b of the domain at b * stride.
Layout stretched_layout(const Layout& x, const Shape& shape, const Dims& stride) {
  std::vector<DimSplit> splits;
  for (int d = 0; d < x.dims(); ++d) {
    DimSplit split = x.split(d);
    if (d > 0 && d <= stride.size() && x.is_split(d))
      split.bounds = mapped_bounds(split.bounds, shape[d],
                                   [s = stride[d - 1]](std::int64_t b) { return b * s; });
    splits.push_back(std::move(split));
  }
  return Layout::make(x.mesh(), shape, splits);
}

}  // namespace

Tensor max_pool(const Tensor& x, const PoolOptions& options) {
  return call(max_pool_op, {x}, make_args("max_pool", x, options));
}
Tensor avg_pool(const Tensor& x, const PoolOptions& options) {
  return average(x, make_args("avg_pool", x, options));
}

MaxPooled max_pool_with_index(const Tensor& x, const PoolOptions& options) {
  Outputs out = call(max_pool_op, {x}, make_args("max_pool", x, options));
  return {std::move(out[0]), std::move(out[1])};
}

Tensor max_unpool(const Tensor& x, const Tensor& index, const MaxUnpoolOptions& options) {
  const int dims = checked_dims("max_unpool", x);
  if (index.dtype() != DType::kInt64 || !(index.shape() == x.shape()))
    throw ShapeError(str("max_unpool: index ", index.str(), " is not an i64 tensor of the shape ",
                         x.shape(), " of the values. Pass what max_pool_with_index gave."));
  PoolArgs args = window_args("max_unpool", dims, options.pool);
  if (options.size.empty()) {
    for (int d = 0; d < dims; ++d)
      args.size.push_back((x.shape()[d + 1] - 1) * args.stride[d] - args.pad_lo[d] -
                          args.pad_hi[d] + args.dilation[d] * (args.kernel[d] - 1) + 1);
  } else {
    args.size = per_dim("max_unpool", "size", options.size, dims, 1, 1);
  }
  const Shape shape = with_domain(x.shape(), args.size);
  if (options.like.defined() && !(options.like.shape() == shape))
    throw ShapeError(str("max_unpool: layout ", options.like, " of `like` is not one of ", shape,
                         ". Pass the layout of what was pooled."));
  // Windows of both are read together; a whole tensor follows a split one.
  const Layout at = x.layout().split_axes() != 0 ? x.layout().dual() : index.layout();
  const Layout like =
      options.like.defined() ? options.like.dual() : stretched_layout(at, shape, args.stride);
  return call(max_unpool_op, {redistribute(x, at), redistribute(index, at)}, args, NoArgs{}, like);
}

Tensor adaptive_avg_pool(const Tensor& x, const Dims& size, const Layout& like) {
  const PoolArgs args = adaptive_args("adaptive_avg_pool", x, size, like);
  if (!like.defined() && args.size == Dims::filled(args.dims(), 1)) return global_avg_pool(x, true);
  return average(x, args, like.defined() ? like.dual() : Layout());
}

Tensor adaptive_max_pool(const Tensor& x, const Dims& size) {
  return call(max_pool_op, {x}, adaptive_args("adaptive_max_pool", x, size, {}));
}

namespace {

Dims domain_of(const char* op, const Tensor& x) {
  Dims dims;
  for (int d = 1; d <= checked_dims(op, x); ++d) dims.push_back(d);
  return dims;
}

}  // namespace

Tensor global_avg_pool(const Tensor& x, bool keepdim) {
  return mean(x, domain_of("global_avg_pool", x), keepdim);
}

Tensor global_max_pool(const Tensor& x, bool keepdim) {
  return amax(x, domain_of("global_max_pool", x), keepdim);
}

}  // namespace tessera
