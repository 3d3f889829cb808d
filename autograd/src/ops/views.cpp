// Other shapes of the same elements: permute, reshape, expand, and other element types: cast. The
// first three are views of the local memory wherever its strides allow, and never move an element
// between ranks.

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/kernels/elementwise.hpp>

#include "broadcast.hpp"

namespace tessera {

namespace {

// ---- permute ----

struct PermuteArgs {
  Dims order;  // result dimension j is dimension order[j] of x
};

void infer_permute(const Problem& problem, std::vector<OutputMeta>& out) {
  const Dims& order = problem.as<PermuteArgs>().order;
  const Shape& shape = problem.shape(0);
  Shape result;
  for (int j = 0; j < shape.size(); ++j) {
    if (order.size() != shape.size() || !order.contains(j)) {
      throw ShapeError(str("permute: ", order, " is not an order of the ", shape.size(),
                           " dimensions of ", shape, ". Name each dimension once."));
    }
    result.push_back(shape[static_cast<int>(order[j])]);
  }
  out.push_back({result, problem.dtypes[0]});
}

const OpDef permute_op = {
    .name = "permute",
    .infer = infer_permute,
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          legal.push_back({.in = {partial_role()}, .out = {partial_role()}, .bounds = {}});
          const Dims& order = problem.as<PermuteArgs>().order;
          for (int j = 0; j < order.size(); ++j) {
            legal.push_back({.in = {shard_role(static_cast<int>(order[j]))},
                             .out = {shard_role(j)},
                             .bounds = {}});
          }
        },
    .alias =
        [](const LocalCall& call) {
          return kernels::permute(call.in[0].view, call.as<PermuteArgs>().order);
        },
    .vjp =
        [](VjpContext& context) {
          const Dims& order = context.as<PermuteArgs>().order;
          Dims inverse = order;
          for (int j = 0; j < order.size(); ++j) inverse[static_cast<int>(order[j])] = j;
          context.set(0, permute(context.grad(), inverse));
        },
    .linear_view = true};

// ---- reshape ----

struct ReshapeArgs {
  Shape shape;
};

/// Dimensions [in0, in1) of x and [out0, out1) of the result hold the same elements.
struct Block {
  int in0, in1, out0, out1;
};

/// The finest cut of two shapes with equal products into blocks with equal products.
std::vector<Block> matching_blocks(const Shape& in, const Shape& out) {
  std::vector<Block> blocks;
  int i = 0;
  int j = 0;
  while (i < in.size() || j < out.size()) {
    if (i < in.size() && j < out.size() && in[i] == out[j]) {
      blocks.push_back({i, i + 1, j, j + 1});
      ++i;
      ++j;
      continue;
    }
    Block block{i, i, j, j};
    std::int64_t a = 1;
    std::int64_t b = 1;
    do {
      if ((a <= b && i < in.size()) || j == out.size()) {
        a *= in[i++];
      } else {
        b *= out[j++];
      }
    } while (a != b && (i < in.size() || j < out.size()));
    // Trailing ones belong to the block before the next one starts.
    if (i == in.size() || j == out.size()) {
      i = in.size();
      j = out.size();
    }
    block.in1 = i;
    block.out1 = j;
    blocks.push_back(block);
  }
  return blocks;
}

/// The outermost dimension of [from, to) that is not 1 (the first one when all are), and the
/// product behind it.
std::pair<int, std::int64_t> outermost(const Shape& shape, int from, int to) {
  int dim = from;
  while (dim + 1 < to && shape[dim] == 1) ++dim;
  std::int64_t inner = 1;
  for (int d = dim + 1; d < to; ++d) inner *= shape[d];
  return {dim, inner};
}

void infer_reshape(const Problem& problem, std::vector<OutputMeta>& out) {
  const Shape& from = problem.shape(0);
  const Shape& to = problem.as<ReshapeArgs>().shape;
  if (from.product() != to.product()) {
    throw ShapeError(str("reshape: ", from, " has ", from.product(), " elements but ", to, " has ",
                         to.product(), ". They must be equal."));
  }
  out.push_back({to, problem.dtypes[0]});
}

void reshape_signatures(const Problem& problem,
                        const AxisGroup& group,
                        std::vector<Signature>& legal) {
  const Layout& layout = problem.in[0];
  const Shape& in = layout.shape();
  const Shape& out = problem.out[0].shape;
  legal.push_back({.in = {partial_role()}, .out = {partial_role()}, .bounds = {}});
  if (in.product() == 0) {
    // Elements say nothing about which dimensions match: equal ones from the left do, ones apart.
    // Whatever else is split becomes whole, for nothing moves.
    for (int d = 0, e = 0; d < in.size(); ++d) {
      while (e < out.size() && out[e] == 1 && in[d] != 1) ++e;
      const bool match = e < out.size() && in[d] == out[e];
      if (match) legal.push_back({.in = {shard_role(d)}, .out = {shard_role(e++)}, .bounds = {}});
      if (!match && in[d] != 1) e = out.size();
    }
    for (int d = 0; d < in.size(); ++d) {
      legal.push_back({.in = {shard_role(d)}, .out = {replicate_role()}, .bounds = {}});
    }
    return;
  }
  for (const Block& block : matching_blocks(in, out)) {
    for (int d = block.in0; d < block.in1 && out.size() > 0; ++d) {
      // A split dimension of size 1: one part has everything, so any dimension may be split so.
      if (in[d] != 1 || !group.splits(layout, d)) continue;
      const int to = std::min(block.out0, out.size() - 1);
      legal.push_back({.in = {shard_role(d)},
                       .out = {shard_role(to)},
                       .bounds = [size = out[to]](int t, const Bounds& driver) {
                         Bounds bounds = driver;
                         if (t == 1)
                           for (std::int64_t& b : bounds) b *= size;
                         return bounds;
                       }});
    }
    if (block.in0 == block.in1 || block.out0 == block.out1) continue;
    const auto [i, inner_in] = outermost(in, block.in0, block.in1);
    const auto [j, inner_out] = outermost(out, block.out0, block.out1);
    if (in[i] == 1 || !group.splits(layout, i)) continue;
    bool divides = true;
    for (const std::int64_t b : layout.split(i).bounds) divides &= b * inner_in % inner_out == 0;
    if (!divides) continue;
    legal.push_back(
        {.in = {shard_role(i)},
         .out = {shard_role(j)},
         .bounds = [in_rows = inner_in, out_rows = inner_out](int t, const Bounds& driver) {
           Bounds bounds = driver;
           if (t == 1)
             for (std::int64_t& b : bounds) b = b * in_rows / out_rows;
           return bounds;
         }});
  }
}

/// `view` with another shape, or null data when its strides do not allow one.
View reshaped(const View& view, const Shape& shape) {
  View result{view.data, view.dtype, shape, row_major(shape)};
  if (view.is_dense()) return result;
  for (const Block& block : matching_blocks(view.shape, shape)) {
    // The dimensions of a block must lie densely within it; its innermost stride then carries over.
    bool first = true;  // a stride of 0 is one like others: an expanded dimension
    std::int64_t stride = 0;
    std::int64_t expected = 0;
    for (int d = block.in1 - 1; d >= block.in0; --d) {
      if (view.shape[d] == 1) continue;
      if (first) stride = expected = view.strides[d];
      first = false;
      if (view.strides[d] != expected) return {};
      expected *= view.shape[d];
    }
    for (int d = block.out1 - 1; d >= block.out0; --d) {
      result.strides[d] = stride;
      stride *= shape[d];
    }
  }
  return result;
}

const OpDef reshape_op = {
    .name = "reshape",
    .infer = infer_reshape,
    .signatures = reshape_signatures,
    .local =
        [](const LocalCall& call) {
          View to = call.out[0].view;
          to.shape = call.in[0].view.shape;
          to.strides = row_major(to.shape);
          kernels::copy(call.in[0].view, to);
        },
    .alias =
        [](const LocalCall& call) {
          const View& view = call.in[0].view;
          return view.empty() ? View{view.data, view.dtype, call.out[0].view.shape,
                                     row_major(call.out[0].view.shape)}
                              : reshaped(view, call.out[0].view.shape);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(0, reshape(context.grad(), context.input_layout(0).shape()));
        },
    .linear_view = true};

// ---- expand ----

struct ExpandArgs {
  Shape shape;
};

void infer_expand(const Problem& problem, std::vector<OutputMeta>& out) {
  const Shape& shape = problem.as<ExpandArgs>().shape;
  if (!(broadcast_shape("expand", problem.shape(0), shape) == shape)) {
    throw ShapeError(str("expand: ", problem.shape(0), " does not stretch to ", shape,
                         ". Only dimensions of size 1 stretch."));
  }
  out.push_back({shape, problem.dtypes[0]});
}

void expand_signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  legal.push_back({.in = {partial_role()}, .out = {partial_role()}, .bounds = {}});
  const Shape& in = problem.shape(0);
  const Shape& out = problem.out[0].shape;
  for (int d = 0; d < out.size(); ++d) {
    const int from = d - (out.size() - in.size());
    const bool same = from >= 0 && in[from] == out[d];
    if (same) legal.push_back({.in = {shard_role(from)}, .out = {shard_role(d)}, .bounds = {}});
    if (problem.like.defined()) {
      legal.push_back({.in = {same ? shard_role(from) : replicate_role()},
                       .out = {shard_role(d)},
                       .driver = Signature::kLike,
                       .bounds = {}});
    }
  }
}

const OpDef expand_op = {
    .name = "expand",
    .infer = infer_expand,
    .signatures = expand_signatures,
    .alias =
        [](const LocalCall& call) {
          return kernels::broadcast_to(call.in[0].view, call.out[0].view.shape);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(0, sum_to(context.grad(), context.input_layout(0).shape()));
        }};

// ---- cast ----

struct CastArgs {
  std::int64_t dtype;
};

/// The gradient of a cast. A pending sum (of a parameter, see DESIGN 6) is cast part by part: taken
/// before, it would be taken in the narrow type, and outside of the buckets.
void cast_vjp(VjpContext& context) {
  const Tensor g = context.grad();
  const DType dtype = context.input_dtype(0);
  if (g.layout().partial_axes() == 0 || grad_enabled()) return context.set(0, cast(g, dtype));
  const Tensor parts = Tensor::empty(g.layout(), dtype, g.device());
  kernels::copy(g.local(), parts.mutable_local());
  context.set(0, parts);
}

OpDef make_cast(bool again) {
  OpDef op = {
      .name = "cast",
      .infer =
          [](const Problem& problem, std::vector<OutputMeta>& out) {
            out.push_back({problem.shape(0), static_cast<DType>(problem.as<CastArgs>().dtype)});
          },
      .signatures =
          [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
            // A sum of rounded parts is the rounded sum only between floating types (to rounding).
            if (is_floating(problem.dtypes[0]) && is_floating(problem.out[0].dtype))
              partial_signature(problem, 0b1, legal);
            broadcast_signatures(problem, legal);
          },
      .local = [](const LocalCall& call) { kernels::copy(call.in[0].view, call.out[0].view); },
      .vjp = cast_vjp,
      .linear_view = true};
  if (again) {
    op.saved_inputs = 0b1;
    op.recompute = [](const VjpContext& context) {
      return cast(context.input(0), static_cast<DType>(context.as<CastArgs>().dtype));
    };
  }
  return op;
}

const OpDef cast_op = make_cast(false);
const OpDef cast_again_op = make_cast(true);

}  // namespace

Tensor permute(const Tensor& x, const Dims& order) {
  Dims wrapped = order;
  for (std::int64_t& d : wrapped) d = wrap_dim("permute", d, x.dims());
  return call(permute_op, {x}, PermuteArgs{wrapped});
}

Tensor reshape(const Tensor& x, const Shape& shape) {
  Shape full = shape;
  int unknown = -1;
  std::int64_t known = 1;
  for (int d = 0; d < full.size(); ++d) {
    if (full[d] == -1 && unknown < 0) {
      unknown = d;
    } else if (full[d] < 0) {
      throw ShapeError(str("reshape: ", shape,
                           " has more than one unknown or a negative size. Use -1 at most once."));
    } else {
      known *= full[d];
    }
  }
  if (unknown >= 0) {
    if (known == 0 || x.numel() % known != 0) {
      throw ShapeError(str("reshape: ", x.shape(), " with ", x.numel(), " elements does not fill ",
                           shape, ". Give all sizes."));
    }
    full[unknown] = x.numel() / known;
  }
  return call(reshape_op, {x}, ReshapeArgs{full});
}

Tensor expand(const Tensor& x, const Shape& shape) {
  return call(expand_op, {x}, ExpandArgs{shape});
}
Tensor expand(const Tensor& x, const Layout& like) {
  return call(expand_op, {x}, ExpandArgs{like.shape()}, NoArgs{}, like.dual());
}

Tensor cast(const Tensor& x, DType dtype) {
  return x.dtype() == dtype
             ? x
             : Tensor(call(cast_op, {x}, CastArgs{static_cast<std::int64_t>(dtype)}));
}

Tensor cast_again(const Tensor& x, DType dtype) {
  return x.dtype() == dtype
             ? x
             : Tensor(call(cast_again_op, {x}, CastArgs{static_cast<std::int64_t>(dtype)}));
}

}  // namespace tessera
