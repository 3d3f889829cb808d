// Places in order, and what stands there: the order is an op without gradient, values are taken by
// it.

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/index.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/autograd/ops/sort.hpp>
#include <tessera/kernels/order.hpp>

#include "sort_split.hpp"

namespace tessera {

namespace {

struct OrderArgs {
  std::int64_t dim;
  std::int64_t falling;
  std::int64_t count;  // elements wanted of each line

  int at() const { return static_cast<int>(dim); }
};

void infer_order(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<OrderArgs>();
  Shape shape = problem.shape(0);
  shape[args.at()] = args.count;
  out.push_back({shape, DType::kInt64});
}

void order_local(const LocalCall& call) {
  const auto& args = call.as<OrderArgs>();
  kernels::order_lines(call.in[0].view, args.at(), args.falling != 0, call.out[0].view);
}

template <void (*kSplit)(const Tensor&, const Tensor&, int, bool, AxisMask)>
void run_order(RunContext& context) {
  const auto& args = context.as<OrderArgs>();
  kSplit(context.in[0], context.out[0], args.at(), args.falling != 0, context.axes);
}

void other_dims(const Problem& problem, std::vector<Signature>& legal) {
  for (int d = 0; d < problem.shape(0).size(); ++d)
    if (d != problem.as<OrderArgs>().dim)
      legal.push_back({.in = {shard_role(d)}, .out = {shard_role(d)}});
}

/// All elements of each line.
const OpDef sort_op = {
    .name = "argsort",
    .infer = infer_order,
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          const int dim = problem.as<OrderArgs>().at();
          other_dims(problem, legal);
          legal.push_back({.in = {shard_role(dim)},
                           .out = {shard_role(dim)},
                           .run = run_order<order_split_lines>});
        },
    .local = order_local};

/// The first of each line, on every rank.
const OpDef top_op = {
    .name = "topk",
    .infer = infer_order,
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          other_dims(problem, legal);
          legal.push_back({.in = {shard_role(problem.as<OrderArgs>().at())},
                           .out = {replicate_role()},
                           .run = run_order<top_of_split_lines>});
        },
    .local = order_local};

/// The layout in which lines along `dim` are whole, because the axes that split it split another
/// dimension instead; undefined where none is long enough.
Layout with_whole_lines(const Layout& layout, int dim) {
  const DimSplit& split = layout.split(dim);
  const int parts = layout.parts(dim);
  int best = -1;
  for (int d = 0; d < layout.dims(); ++d) {
    const bool fits = d != dim && !layout.is_split(d) && layout.shape()[d] >= parts;
    if (fits && (best < 0 || layout.shape()[d] > layout.shape()[best])) best = d;
  }
  if (best < 0) return {};
  const std::int64_t n = layout.shape()[best];
  return layout.with_dim(dim, layout.shape()[dim], {})
      .with_dim(best, n, {split.axes, balanced_bounds(n, parts)});
}

Tensor sorted_places(const Tensor& x, int dim, bool falling) {
  return call(sort_op, {x.detach()}, OrderArgs{dim, falling, x.shape()[dim]});
}

Ordered sorted(const Tensor& x, int dim, bool falling, bool values) {
  const Tensor whole = reduced(x);
  const Layout lines =
      whole.layout().is_split(dim) ? with_whole_lines(whole.layout(), dim) : Layout();
  if (!lines.defined()) {
    const Tensor places = sorted_places(whole, dim, falling);
    return {values ? take_along(whole, places, dim) : Tensor(), places};
  }
  const Tensor by_line = redistribute(whole, lines);
  const Tensor places = sorted_places(by_line, dim, falling);
  return {values ? redistribute(take_along(by_line, places, dim), whole.layout()) : Tensor(),
          redistribute(places, whole.layout())};
}

Tensor top_places(const char* op, const Tensor& x, std::int64_t k, int dim, bool largest) {
  if (k < 0 || k > x.shape()[dim]) {
    throw ShapeError(str(op, ": there are no ", k, " elements along dimension ", dim, " of ",
                         x.shape(), ". Ask for at most ", x.shape()[dim], "."));
  }
  return call(top_op, {reduced(x.detach())}, OrderArgs{dim, largest, k});
}

/// Drops a dimension of size 1.
Tensor without_dim(const Tensor& x, int dim) {
  Shape shape = x.shape();
  shape.erase(dim);
  return reshape(x, shape);
}

Ordered extreme(const char* op, const Tensor& x, int dim, bool largest, bool keepdim, bool value) {
  const int d = wrap_dim(op, dim, x.dims());
  if (x.shape()[d] == 0) {
    throw ShapeError(str(op, ": dimension ", d, " of ", x.shape(),
                         " is empty (nothing has no extreme). Choose another one."));
  }
  const Tensor places = top_places(op, x, 1, d, largest);
  const Tensor values = value ? take_along(x, places, d) : Tensor();
  if (keepdim) return {values, places};
  return {value ? without_dim(values, d) : Tensor(), without_dim(places, d)};
}

}  // namespace

Tensor argsort(const Tensor& x, int dim, bool descending) {
  return sorted(x, wrap_dim("argsort", dim, x.dims()), descending, false).indices;
}

Ordered sort(const Tensor& x, int dim, bool descending) {
  return sorted(x, wrap_dim("sort", dim, x.dims()), descending, true);
}

Ordered topk(const Tensor& x, std::int64_t k, int dim, bool largest) {
  const int d = wrap_dim("topk", dim, x.dims());
  const std::int64_t parts = x.layout().parts(d);
  if (parts > 1 && k * parts > x.shape()[d] && k <= x.shape()[d]) {
    const Ordered all = sort(x, d, largest);
    return {slice(all.values, d, 0, k), slice(all.indices, d, 0, k)};
  }
  const Tensor places = top_places("topk", x, k, d, largest);
  return {take_along(x, places, d), places};
}

Tensor argmax(const Tensor& x, int dim, bool keepdim) {
  return extreme("argmax", x, dim, true, keepdim, false).indices;
}
Tensor argmin(const Tensor& x, int dim, bool keepdim) {
  return extreme("argmin", x, dim, false, keepdim, false).indices;
}
Ordered max_along(const Tensor& x, int dim, bool keepdim) {
  return extreme("max_along", x, dim, true, keepdim, true);
}
Ordered min_along(const Tensor& x, int dim, bool keepdim) {
  return extreme("min_along", x, dim, false, keepdim, true);
}

}  // namespace tessera
