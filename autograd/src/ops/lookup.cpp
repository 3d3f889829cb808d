// Weighted sums of rows by position. One form, F = sum w x[index] g, and its derivatives by g
// (lookup), by x (lookup_add) and by w (lookup_dot), which differentiate into each other.
//
// Where the table is split over its domain by the axes that split the index, rows are routed: those
// that are named here are fetched from their owners, or sums for them are sent there.

#include <algorithm>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/lookup.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/index.hpp>
#include <tessera/kernels/lookup.hpp>
#include <tessera/parallel/communicator.hpp>

#include "broadcast.hpp"
#include "lookup_route.hpp"
#include "row_memory.hpp"

namespace tessera {

namespace {

using kernels::LookupAdd;

struct LookupArgs {
  LookupDims dims;
  std::int64_t largest;  // lookup_add takes the largest instead of the sum
};

/// A dense two-dimensional view of a local part, the last dimension kept; copied where its strides
/// are others.
class Rows {
 public:
  explicit Rows(const View& view) : view_(view) {
    if (view.dims() == 0) return;  // an absent input
    const std::int64_t width = view.shape.back();
    std::int64_t rows = 1;
    for (int d = 0; d + 1 < view.dims(); ++d) rows *= view.shape[d];
    if (!view.empty() && !view.is_dense()) {
      copy_ = allocate(view.dtype, view.shape);
      kernels::copy(view, memory(copy_, view.dtype, view.shape));
      view_.data = copy_->data();
    }
    view_.shape = {rows, width};
    view_.strides = row_major(view_.shape);
  }
  const View& view() const { return view_; }

 private:
  Ref<Buffer> copy_;
  View view_;
};

View local_or_none(const Tensor& x) { return x.defined() ? x.local() : View{}; }

/// Indices of rows as [m, K]; `shape` is that of the index, [..., K].
View row_index(const std::vector<std::int64_t>& rows, const Shape& shape) {
  std::int64_t count = 1;
  for (int d = 0; d + 1 < shape.size(); ++d) count *= shape[d];
  return View::dense(const_cast<std::int64_t*>(rows.data()), DType::kInt64, {count, shape.back()});
}

void check_table(const char* op,
                 const LookupDims& dims,
                 const Shape& table,
                 const Shape& index,
                 const DType index_dtype) {
  if (index_dtype != DType::kInt32 && index_dtype != DType::kInt64)
    throw DTypeError(str(op, ": indices are ", name(index_dtype), ", not i32 or i64. Use cast()."));
  bool fits = table.size() == dims.channel() + 1 && index.size() == dims.tap() + 1 &&
              dims.domain >= 1 && dims.batch >= 0;
  for (int d = 0; fits && d < dims.first_domain(); ++d) fits = table[d] == index[d];
  if (!fits) {
    throw ShapeError(str(op, ": table ", table, " and index ", index, " with ", dims.batch,
                         " batch dimensions are not [b..., d..., C] and [b..., o..., K]. Reshape "
                         "one of them."));
  }
}

void check_values(const char* op, const LookupDims& dims, const Shape& values, const Shape& index) {
  bool fits = values.size() == index.size();
  for (int d = 0; fits && d < dims.tap(); ++d) fits = values[d] == index[d];
  if (!fits)
    throw ShapeError(str(op, ": values ", values, " and index ", index,
                         " are not [b..., o..., C] and [b..., o..., K]. Reshape one of them."));
}

void check_weights(const char* op, const Problem& problem, DType values) {
  if (!problem.in[2].defined()) return;
  if (!(problem.shape(2) == problem.shape(1)))
    throw ShapeError(str(op, ": weights ", problem.shape(2), " are not one for each index ",
                         problem.shape(1), "."));
  const DType w = problem.dtypes[2];
  const bool fits =
      is_floating(w) && (w == values || (w == DType::kFloat32 && values == DType::kBFloat16));
  if (!fits)
    throw DTypeError(
        str(op, ": weights are ", name(w), " beside values of ", name(values), ". Use cast()."));
}

Role split_or_none(const Problem& problem, int input, const Role& role) {
  return problem.in[static_cast<std::size_t>(input)].defined() ? role : replicate_role();
}

/// Each input as a driver of these roles.
void append(std::vector<Signature>& legal,
            Signature signature,
            std::initializer_list<int> drivers) {
  for (const int driver : drivers) {
    signature.driver = driver;
    legal.push_back(signature);
  }
}

Tensor by_values(const Tensor& x, const Tensor& index, const Tensor& w, const LookupArgs& args);
Tensor by_table(const Tensor& g,
                const Tensor& index,
                const Tensor& w,
                const LookupArgs& args,
                const Layout& like);
Tensor by_weights(const Tensor& x,
                  const Tensor& index,
                  const Tensor& g,
                  const LookupArgs& args,
                  const Layout& like,
                  DType dtype);

/// What has the points of the index ([b..., o..., any]), for a gradient: moved to the index where
/// its own split is in the way of that of the index. Gradients of what has a value never fail.
Tensor beside(const Tensor& x, const Layout& index) {
  const int points = index.dims() - 1;
  const Layout& layout = x.layout();
  bool fits = true;
  for (int i = 0; i < layout.dims(); ++i) {
    for (int j = 0; j < index.dims(); ++j) {
      const AxisMask p = layout.axes_of(i);
      const AxisMask q = index.axes_of(j);
      // The same axes in another dimension are no hindrance: one of the two is cut anew.
      const bool apart = i != j || i == points ? (p & q) == 0 : p == 0 || q == 0;
      fits = fits && (apart || (p == q && i < points));
    }
  }
  if (fits) return x;
  std::vector<DimSplit> splits;
  for (int d = 0; d < points; ++d) splits.push_back(index.split(d));
  splits.emplace_back();
  return redistribute(x, Layout::make(layout.mesh(), layout.shape(), std::move(splits)));
}

Tensor weights_beside(const VjpContext& context) {
  return context.input_layout(2).defined() ? beside(context.input(2), context.input_layout(1))
                                           : Tensor();
}

/// The rows that `route` names, from their owners: [unique, C].
Ref<Buffer> fetch(const char* op, const RowRoute& route, const Tensor& x) {
  const Rows table(x.local());
  const View& rows = table.view();
  const Shape sent = with_rows(rows.shape, static_cast<std::int64_t>(route.served.size()));
  const Shape arrived = with_rows(rows.shape, static_cast<std::int64_t>(route.unique.size()));
  const Ref<Buffer> send = allocate(rows.dtype, sent);
  Ref<Buffer> recv = allocate(rows.dtype, arrived);
  kernels::take_rows(rows, index_view(route.served), 0, memory(send, rows.dtype, sent));
  parallel::all_to_all(route.group, send->data(), times(route.serve_counts, row_bytes(rows)),
                       recv->data(), times(route.want_counts, row_bytes(rows)),
                       {op, x.layout(), {}})
      .wait();
  return recv;
}

View fetched(const Ref<Buffer>& buffer, const RowRoute& route, const Tensor& x) {
  return memory(buffer, x.dtype(),
                {static_cast<std::int64_t>(route.unique.size()), x.local_shape().back()});
}

// ---- lookup ----

void infer_lookup(const Problem& problem, std::vector<OutputMeta>& out) {
  const LookupDims& dims = problem.as<LookupArgs>().dims;
  check_table("lookup", dims, problem.shape(0), problem.shape(1), problem.dtypes[1]);
  check_weights("lookup", problem, problem.dtypes[0]);
  Shape shape = problem.shape(1);
  shape.back() = problem.shape(0).back();
  out.push_back({shape, problem.dtypes[0]});
}

void run_lookup(RunContext& context) {
  const Tensor& x = context.in[0];
  const Tensor& index = context.in[1];
  const RowRoute route =
      lookup_route("lookup", context.as<LookupArgs>().dims, index, x.layout(), context.axes);
  const Ref<Buffer> rows = fetch("lookup", route, x);
  const Rows w(local_or_none(context.in[2]));
  const Rows y(context.out[0].mutable_local());
  kernels::lookup(fetched(rows, route, x), row_index(route.place, index.local_shape()), w.view(),
                  y.view());
}

void lookup_signatures(const Problem& problem,
                       const AxisGroup& group,
                       std::vector<Signature>& legal) {
  const LookupDims& dims = problem.as<LookupArgs>().dims;
  const bool weighted = problem.in[2].defined();
  partial_signature(problem, 0b001, legal);
  if (weighted) partial_signature(problem, 0b100, legal);
  const auto w = [&](const Role& role) { return split_or_none(problem, 2, role); };
  for (int b = 0; b < dims.first_domain(); ++b) {
    append(legal, {.in = {shard_role(b), shard_role(b), w(shard_role(b))}, .out = {shard_role(b)}},
           {0, 1, 2});
  }
  for (int o = dims.first_domain(); o < dims.tap(); ++o) {
    for (int d = dims.first_domain(); d < dims.channel(); ++d) {
      if (!group.splits(problem.in[0], d)) continue;
      append(legal,
             {.in = {window_role(d), shard_role(o), w(shard_role(o))},
              .out = {shard_role(o)},
              .run = run_lookup},
             {1, 2});
    }
    append(legal,
           {.in = {replicate_role(), shard_role(o), w(shard_role(o))}, .out = {shard_role(o)}},
           {1, 2});
  }
  // Sums over some of the taps each.
  for (int d = dims.first_domain(); d < dims.channel(); ++d) {
    if (!group.splits(problem.in[0], d)) continue;
    append(legal,
           {.in = {window_role(d), shard_role(dims.tap()), w(shard_role(dims.tap()))},
            .out = {partial_role()},
            .run = run_lookup},
           {1, 2});
  }
  append(legal,
         {.in = {replicate_role(), shard_role(dims.tap()), w(shard_role(dims.tap()))},
          .out = {partial_role()}},
         {1, 2});
  // Every rank gives the rows it owns; those of others count as zero.
  for (int d = dims.first_domain(); d < dims.channel(); ++d) {
    legal.push_back(
        {.in = {shard_role(d), replicate_role(), replicate_role()}, .out = {partial_role()}});
  }
  legal.push_back({.in = {shard_role(dims.channel()), replicate_role(), replicate_role()},
                   .out = {shard_role(dims.tap())}});
}

const OpDef lookup_op = {
    .name = "lookup",
    .infer = infer_lookup,
    .signatures = lookup_signatures,
    .local =
        [](const LocalCall& call) {
          const LookupDims& dims = call.as<LookupArgs>().dims;
          const View& index = call.in[1].view;
          const auto rows = local_rows("lookup", dims, index, call.in[0].box, call.in[0].global);
          const Rows x(call.in[0].view);
          const Rows w(call.in[2].view);
          const Rows y(call.out[0].view);
          kernels::lookup(x.view(), row_index(rows, index.shape), w.view(), y.view());
        },
    .vjp =
        [](VjpContext& context) {
          const auto& args = context.as<LookupArgs>();
          const Tensor g = beside(context.grad(), context.input_layout(1));
          if (context.needs(0)) {
            context.set(0, by_table(g, context.input(1), weights_beside(context), args,
                                    context.input_layout(0).dual()));
          }
          if (context.input_layout(2).defined() && context.needs(2)) {
            context.set(2, by_weights(context.input(0), context.input(1), g, args,
                                      context.input_layout(1), context.input_dtype(2)));
          }
        },
    .saved_inputs = 0b111};

// ---- lookup_add ----

void infer_add(const Problem& problem, std::vector<OutputMeta>& out) {
  const LookupDims& dims = problem.as<LookupArgs>().dims;
  check_table("lookup_add", dims, problem.like.shape(), problem.shape(1), problem.dtypes[1]);
  check_values("lookup_add", dims, problem.shape(0), problem.shape(1));
  check_weights("lookup_add", problem, problem.dtypes[0]);
  if (problem.like.shape().back() != problem.shape(0).back()) {
    throw ShapeError(str("lookup_add: ", problem.shape(0), " does not add up to ",
                         problem.like.shape(), " (channels differ). Pass another layout."));
  }
  out.push_back({problem.like.shape(), problem.dtypes[0]});
}

void run_add(RunContext& context) {
  const auto& args = context.as<LookupArgs>();
  const Tensor& index = context.in[1];
  const Tensor& y = context.out[0];
  const RowRoute route = lookup_route("lookup_add", args.dims, index, y.layout(), context.axes);
  const Rows g(context.in[0].local());
  const Rows w(local_or_none(context.in[2]));
  const Rows out(y.mutable_local());
  const LookupAdd kind = args.largest ? LookupAdd::kMax : LookupAdd::kSum;

  const Shape sent = with_rows(g.view().shape, static_cast<std::int64_t>(route.unique.size()));
  const Shape arrived = with_rows(g.view().shape, static_cast<std::int64_t>(route.served.size()));
  const Ref<Buffer> send = allocate(y.dtype(), sent);
  const Ref<Buffer> recv = allocate(y.dtype(), arrived);
  kernels::lookup_add(kind, g.view(), row_index(route.place, index.local_shape()), w.view(),
                      memory(send, y.dtype(), sent));
  parallel::all_to_all(route.group, send->data(), times(route.want_counts, row_bytes(g.view())),
                       recv->data(), times(route.serve_counts, row_bytes(g.view())),
                       {"lookup_add", y.layout(), {}})
      .wait();
  // Pieces lie in rank order, which fixes the order of the sum.
  kernels::lookup_add(kind, memory(recv, y.dtype(), arrived),
                      row_index(route.served, with_rows({0, 1}, arrived[0])), {}, out.view());
}

void add_signatures(const Problem& problem, const AxisGroup& group, std::vector<Signature>& legal) {
  const auto& args = problem.as<LookupArgs>();
  const LookupDims& dims = args.dims;
  const int like = Signature::kLike;
  if (args.largest == 0) {
    partial_signature(problem, 0b001, legal);
    if (problem.in[2].defined()) partial_signature(problem, 0b100, legal);
  }
  const ReduceOp op = args.largest ? ReduceOp::kMax : ReduceOp::kSum;
  const auto w = [&](const Role& role) { return split_or_none(problem, 2, role); };
  for (int b = 0; b < dims.first_domain(); ++b) {
    append(legal, {.in = {shard_role(b), shard_role(b), w(shard_role(b))}, .out = {shard_role(b)}},
           {like, 0, 1, 2});
  }
  for (int o = dims.first_domain(); o < dims.tap(); ++o) {
    const std::vector<Role> in = {shard_role(o), shard_role(o), w(shard_role(o))};
    for (int d = dims.first_domain(); d < dims.channel(); ++d) {
      if (!group.splits(problem.like, d)) continue;
      append(legal,
             {.in = in,
              .out = {shard_role(d)},
              .bounds = [own = problem.like.split(d).bounds](
                            int t, const Bounds& driver) { return t == 3 ? own : driver; },
              .run = run_add},
             {1, 0, 2});
    }
    append(legal, {.in = in, .out = {partial_role()}, .partial_op = op}, {1, 0, 2});
  }
  const std::vector<Role> taps = {replicate_role(), shard_role(dims.tap()),
                                  w(shard_role(dims.tap()))};
  for (int d = dims.first_domain(); d < dims.channel(); ++d) {
    if (!group.splits(problem.like, d)) continue;
    append(legal,
           {.in = taps,
            .out = {shard_role(d)},
            .bounds = [own = problem.like.split(d).bounds](
                          int t, const Bounds& driver) { return t == 3 ? own : driver; },
            .run = run_add},
           {1, 2});
  }
  append(legal, {.in = taps, .out = {partial_role()}, .partial_op = op}, {1, 2});
  // Every rank knows all values and keeps what falls on its own rows.
  for (int d = dims.first_domain(); d < dims.channel(); ++d) {
    legal.push_back({.in = {replicate_role(), replicate_role(), replicate_role()},
                     .out = {shard_role(d)},
                     .driver = like});
  }
  append(legal,
         {.in = {shard_role(dims.tap()), replicate_role(), replicate_role()},
          .out = {shard_role(dims.channel())}},
         {like, 0});
}

OpDef make_add(bool differentiable) {
  OpDef op = {.name = "lookup_add",
              .infer = infer_add,
              .signatures = add_signatures,
              .local =
                  [](const LocalCall& call) {
                    const auto& args = call.as<LookupArgs>();
                    const View& index = call.in[1].view;
                    const auto rows = local_rows("lookup_add", args.dims, index, call.out[0].box,
                                                 call.out[0].global);
                    const Rows g(call.in[0].view);
                    const Rows w(call.in[2].view);
                    const Rows y(call.out[0].view);
                    kernels::lookup_add(args.largest ? LookupAdd::kMax : LookupAdd::kSum, g.view(),
                                        row_index(rows, index.shape), w.view(), y.view());
                  },
              .saved_inputs = 0b111};
  if (!differentiable) return op;
  op.vjp = [](VjpContext& context) {
    const auto& args = context.as<LookupArgs>();
    const Tensor h = context.grad();
    if (context.needs(0))
      context.set(0, by_values(h, context.input(1), weights_beside(context), args));
    if (context.input_layout(2).defined() && context.needs(2)) {
      const Tensor g = beside(context.input(0), context.input_layout(1));
      context.set(2, by_weights(h, context.input(1), g, args, context.input_layout(1),
                                context.input_dtype(2)));
    }
  };
  return op;
}

const OpDef add_op = make_add(true);
const OpDef max_op = make_add(false);

// ---- lookup_dot ----

struct DotArgs {
  LookupArgs lookup;
  std::int64_t dtype;  // of the weights
};

void infer_dot(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<DotArgs>();
  check_table("lookup_dot", args.lookup.dims, problem.shape(0), problem.shape(1),
              problem.dtypes[1]);
  check_values("lookup_dot", args.lookup.dims, problem.shape(2), problem.shape(1));
  out.push_back({problem.shape(1), static_cast<DType>(args.dtype)});
}

void run_dot(RunContext& context) {
  const Tensor& x = context.in[0];
  const Tensor& index = context.in[1];
  const RowRoute route = lookup_route("lookup_dot", context.as<DotArgs>().lookup.dims, index,
                                      x.layout(), context.axes);
  const Ref<Buffer> rows = fetch("lookup_dot", route, x);
  const Rows g(context.in[2].local());
  const Rows y(context.out[0].mutable_local());
  kernels::lookup_dot(fetched(rows, route, x), g.view(),
                      row_index(route.place, index.local_shape()), y.view());
}

void dot_signatures(const Problem& problem, const AxisGroup& group, std::vector<Signature>& legal) {
  const LookupDims& dims = problem.as<DotArgs>().lookup.dims;
  const int like = Signature::kLike;
  partial_signature(problem, 0b001, legal);
  partial_signature(problem, 0b100, legal);
  for (int b = 0; b < dims.first_domain(); ++b) {
    append(legal, {.in = {shard_role(b), shard_role(b), shard_role(b)}, .out = {shard_role(b)}},
           {like, 0, 1, 2});
  }
  for (int o = dims.first_domain(); o < dims.tap(); ++o) {
    for (int d = dims.first_domain(); d < dims.channel(); ++d) {
      if (!group.splits(problem.in[0], d)) continue;
      append(legal,
             {.in = {window_role(d), shard_role(o), shard_role(o)},
              .out = {shard_role(o)},
              .run = run_dot},
             {like, 1, 2});
    }
    append(legal, {.in = {replicate_role(), shard_role(o), shard_role(o)}, .out = {shard_role(o)}},
           {like, 1, 2});
  }
  for (int d = dims.first_domain(); d < dims.channel(); ++d) {
    if (!group.splits(problem.in[0], d)) continue;
    append(legal,
           {.in = {window_role(d), shard_role(dims.tap()), replicate_role()},
            .out = {shard_role(dims.tap())},
            .run = run_dot},
           {like, 1});
  }
  append(legal,
         {.in = {replicate_role(), shard_role(dims.tap()), replicate_role()},
          .out = {shard_role(dims.tap())}},
         {like, 1});
  for (int d = dims.first_domain(); d < dims.channel(); ++d) {
    legal.push_back(
        {.in = {shard_role(d), replicate_role(), replicate_role()}, .out = {partial_role()}});
  }
  append(legal,
         {.in = {shard_role(dims.channel()), replicate_role(), shard_role(dims.tap())},
          .out = {partial_role()}},
         {0, 2});
}

const OpDef dot_op = {
    .name = "lookup_dot",
    .infer = infer_dot,
    .signatures = dot_signatures,
    .local =
        [](const LocalCall& call) {
          const View& index = call.in[1].view;
          const auto rows = local_rows("lookup_dot", call.as<DotArgs>().lookup.dims, index,
                                       call.in[0].box, call.in[0].global);
          const Rows x(call.in[0].view);
          const Rows g(call.in[2].view);
          const Rows y(call.out[0].view);
          kernels::lookup_dot(x.view(), g.view(), row_index(rows, index.shape), y.view());
        },
    .vjp =
        [](VjpContext& context) {
          const auto& args = context.as<DotArgs>().lookup;
          const Tensor v = beside(context.grad(), context.input_layout(1));
          if (context.needs(0)) {
            const Tensor g = beside(context.input(2), context.input_layout(1));
            context.set(0, by_table(g, context.input(1), v, args, context.input_layout(0).dual()));
          }
          if (context.needs(2))
            context.set(2, by_values(context.input(0), context.input(1), v, args));
        },
    .saved_inputs = 0b111};

Tensor by_values(const Tensor& x, const Tensor& index, const Tensor& w, const LookupArgs& args) {
  return call(lookup_op, {x, index, w}, args);
}
Tensor by_table(const Tensor& g,
                const Tensor& index,
                const Tensor& w,
                const LookupArgs& args,
                const Layout& like) {
  return call(args.largest ? max_op : add_op, {g, index, w}, args, NoArgs{}, like);
}
Tensor by_weights(const Tensor& x,
                  const Tensor& index,
                  const Tensor& g,
                  const LookupArgs& args,
                  const Layout& like,
                  DType dtype) {
  return call(dot_op, {x, index, g}, DotArgs{args, static_cast<std::int64_t>(dtype)}, NoArgs{},
              like);
}

/// `x` ([b..., o..., any]) where `to` has its points, if the two split these differently: so that
/// their gradients agree as well.
Tensor aligned(const Tensor& x, const Tensor& to) {
  if (!x.defined() || x.dims() != to.dims()) return x;
  const Layout& mine = x.layout();
  const Layout& other = to.layout();
  const int points = x.dims() - 1;
  bool fits = true;
  for (int i = 0; i < points; ++i) {
    for (int j = 0; j < points; ++j) {
      const AxisMask p = mine.axes_of(i);
      const AxisMask q = other.axes_of(j);
      fits = fits && (i == j ? p == 0 || q == 0 || p == q : (p & q) == 0);
    }
    if (mine.shape()[i] != other.shape()[i]) return x;  // infer says what is wrong
  }
  if (fits) return x;
  std::vector<DimSplit> splits;
  for (int d = 0; d < points; ++d) splits.push_back(other.split(d));
  const bool free = (mine.axes_of(points) & other.split_axes()) == 0;
  splits.push_back(free ? mine.split(points) : DimSplit{});
  return redistribute(x, Layout::make(mine.mesh(), mine.shape(), std::move(splits)));
}

}  // namespace

Tensor lookup(const Tensor& x, const Tensor& index, const Tensor& weights, int batch_dims) {
  return by_values(x, index, aligned(weights, index),
                   {{batch_dims, x.dims() - 1 - batch_dims, index.dims() - 1 - batch_dims}, 0});
}

Tensor lookup_add(const Tensor& g,
                  const Tensor& index,
                  const Tensor& weights,
                  const Layout& like,
                  int batch_dims) {
  const LookupArgs args{{batch_dims, like.dims() - 1 - batch_dims, index.dims() - 1 - batch_dims},
                        0};
  return redistribute(by_table(g, aligned(index, g), aligned(weights, g), args, like.dual()), like);
}

Tensor lookup_max(const Tensor& g, const Tensor& index, const Layout& like, int batch_dims) {
  const LookupArgs args{{batch_dims, like.dims() - 1 - batch_dims, index.dims() - 1 - batch_dims},
                        1};
  return redistribute(by_table(g, aligned(index, g), {}, args, like.dual()), like.dual());
}

}  // namespace tessera
