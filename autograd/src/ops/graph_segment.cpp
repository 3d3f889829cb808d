// Rows that belong to rows of another tensor on the same rank. The pairs (sum, spread), (pick,
// place) and (gather_own, scatter_own) are each other's gradients.

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/segment.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/kernels/index.hpp>
#include <tessera/kernels/segment.hpp>

#include "broadcast.hpp"
#include "row_memory.hpp"

namespace tessera {

namespace {

struct MeanArgs {
  std::int64_t mean;
};

/// Inputs x, rows [m] and segments [n] of integers; x has one row for each of `like`.
void check(const char* op, const Problem& problem, int like) {
  for (const int i : {1, 2}) {
    if (problem.dtypes[static_cast<std::size_t>(i)] != DType::kInt64)
      throw DTypeError(str(op, ": indices are ", name(problem.dtypes[static_cast<std::size_t>(i)]),
                           ", not i64. Use cast()."));
  }
  if (!is_floating(problem.dtypes[0]))
    throw DTypeError(str(op, ": element type ", name(problem.dtypes[0]), " is not floating."));
  const bool fits = problem.shape(1).size() == 1 && problem.shape(2).size() == 1 &&
                    !problem.shape(0).empty() && problem.shape(0)[0] == problem.shape(like)[0];
  if (!fits) {
    throw ShapeError(str(op, ": ", problem.shape(0), " has not one row for each of ",
                         problem.shape(like), " (indices are ", problem.shape(1), " into ",
                         problem.shape(2), "). Pass the tensors of one graph."));
  }
}

/// Tensors that have rows as input `of` (bit t of `rows`) are cut like input 1, others like input
/// 2; both are split by this group, or neither is.
void aligned_signatures(const Problem& problem,
                        const AxisGroup& group,
                        std::uint32_t rows,
                        std::vector<Signature>& legal) {
  partial_signature(problem, 0b001, legal);
  if (group.splits(problem.in[1], 0) && group.splits(problem.in[2], 0)) {
    const int out = static_cast<int>(problem.in.size());
    const Bounds of = problem.in[1].split(0).bounds;
    const Bounds segments = problem.in[2].split(0).bounds;
    std::vector<Role> in(problem.in.size(), shard_role(0));
    legal.push_back({.in = in,
                     .out = {shard_role(0)},
                     .driver = (rows >> out & 1u) != 0 ? 1 : 2,
                     .bounds = [rows, of, segments](int t, const Bounds&) {
                       return (rows >> t & 1u) != 0 ? of : segments;
                     }});
  }
  for (int d = 1; d < problem.shape(0).size(); ++d) {
    std::vector<Role> in(problem.in.size());
    in[0] = shard_role(d);
    if (in.size() > 3) in[3] = shard_role(d);
    legal.push_back({.in = in, .out = {shard_role(d)}, .bounds = {}});
  }
}

Tensor sum_rows(const Tensor& x, const Tensor& of, const Tensor& begin, bool mean);
Tensor spread_rows(const Tensor& x, const Tensor& of, const Tensor& begin, bool mean);
Tensor place(const Tensor& x, const Tensor& of, const Tensor& begin, const Tensor& at);

const OpDef sum_op = {
    .name = "segment_sum",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          check("segment_sum", problem, 1);
          out.push_back({with_rows(problem.shape(0), problem.shape(2)[0]), problem.dtypes[0]});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup& group, std::vector<Signature>& legal) {
          aligned_signatures(problem, group, 0b0011, legal);
        },
    .local =
        [](const LocalCall& call) {
          kernels::segment_sum(call.in[0].view, call.in[2].view, call.in[1].box.lo[0],
                               call.as<MeanArgs>().mean != 0, call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(0, spread_rows(context.grad(), context.input(1), context.input(2),
                                     context.as<MeanArgs>().mean != 0));
        },
    .saved_inputs = 0b110};

const OpDef spread_op = {
    .name = "segment_spread",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          check("segment_spread", problem, 2);
          out.push_back({with_rows(problem.shape(0), problem.shape(1)[0]), problem.dtypes[0]});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup& group, std::vector<Signature>& legal) {
          aligned_signatures(problem, group, 0b1010, legal);
        },
    .local =
        [](const LocalCall& call) {
          kernels::segment_spread(call.in[0].view, call.in[2].view, call.in[1].box.lo[0],
                                  call.as<MeanArgs>().mean != 0, call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(0, sum_rows(context.grad(), context.input(1), context.input(2),
                                  context.as<MeanArgs>().mean != 0));
        },
    .saved_inputs = 0b110};

const OpDef argmax_op = {
    .name = "segment_argmax",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          check("segment_max", problem, 1);
          out.push_back({with_rows(problem.shape(0), problem.shape(2)[0]), DType::kInt64});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup& group, std::vector<Signature>& legal) {
          std::vector<Signature> all;
          aligned_signatures(problem, group, 0b0011, all);
          for (Signature& s : all)
            if (s.in[0].kind != Role::kPartial) legal.push_back(std::move(s));
        },
    .local =
        [](const LocalCall& call) {
          kernels::segment_argmax(call.in[0].view, call.in[2].view, call.in[1].box.lo[0],
                                  call.out[0].view);
        }};

const OpDef pick_op = {
    .name = "segment_pick",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          check("segment_max", problem, 1);
          out.push_back({problem.shape(3), problem.dtypes[0]});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup& group, std::vector<Signature>& legal) {
          aligned_signatures(problem, group, 0b00011, legal);
        },
    .local =
        [](const LocalCall& call) {
          kernels::pick_rows(call.in[0].view, call.in[3].view, call.in[1].box.lo[0],
                             call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(0,
                      place(context.grad(), context.input(1), context.input(2), context.input(3)));
        },
    .saved_inputs = 0b1110};

const OpDef place_op = {
    .name = "segment_place",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          check("segment_max", problem, 2);
          out.push_back({with_rows(problem.shape(0), problem.shape(1)[0]), problem.dtypes[0]});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup& group, std::vector<Signature>& legal) {
          aligned_signatures(problem, group, 0b10010, legal);
        },
    .local =
        [](const LocalCall& call) {
          kernels::place_rows(call.in[0].view, call.in[3].view, call.in[1].box.lo[0],
                              call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(
              0,
              call(pick_op, {context.grad(), context.input(1), context.input(2), context.input(3)},
                   NoArgs{}));
        },
    .saved_inputs = 0b1110};

void check_range(const char* op, const View& index, Interval rows) {
  for (std::int64_t i = 0; i < index.size(); ++i) {
    const std::int64_t row = index.as<std::int64_t>()[i * index.strides[0]];
    if (row < rows.lo || row >= rows.hi) {
      throw ShapeError(str(op, ": index ", row, " is outside the rows ", rows.lo, " to ", rows.hi,
                           " of this rank. Use gather() or scatter_add() for rows of others."));
    }
  }
}

Tensor add_rows(const Tensor& x, const Tensor& index, const Tensor& rows);

const OpDef gather_op = {
    .name = "gather_own",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          check("gather_own", problem, 2);
          out.push_back({with_rows(problem.shape(0), problem.shape(1)[0]), problem.dtypes[0]});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup& group, std::vector<Signature>& legal) {
          aligned_signatures(problem, group, 0b1010, legal);
        },
    .local =
        [](const LocalCall& call) {
          check_range("gather_own", call.in[1].view, call.in[0].box[0]);
          kernels::take_rows(call.in[0].view, call.in[1].view, call.in[0].box.lo[0],
                             call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(0, add_rows(context.grad(), context.input(1), context.input(2)));
        },
    .saved_inputs = 0b110};

const OpDef scatter_op = {
    .name = "scatter_own",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          check("scatter_own", problem, 1);
          out.push_back({with_rows(problem.shape(0), problem.shape(2)[0]), problem.dtypes[0]});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup& group, std::vector<Signature>& legal) {
          aligned_signatures(problem, group, 0b0011, legal);
        },
    .local =
        [](const LocalCall& call) {
          check_range("scatter_own", call.in[1].view, call.out[0].box[0]);
          kernels::scatter_add_rows(call.in[0].view, call.in[1].view, call.out[0].box.lo[0], false,
                                    call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(0, gather_own(context.grad(), context.input(1), context.input(2)));
        },
    .saved_inputs = 0b110};

Tensor sum_rows(const Tensor& x, const Tensor& of, const Tensor& begin, bool mean) {
  return call(sum_op, {x, of, begin}, MeanArgs{mean ? 1 : 0});
}

Tensor spread_rows(const Tensor& x, const Tensor& of, const Tensor& begin, bool mean) {
  return call(spread_op, {x, of, begin}, MeanArgs{mean ? 1 : 0});
}

Tensor place(const Tensor& x, const Tensor& of, const Tensor& begin, const Tensor& at) {
  return call(place_op, {x, of, begin, at}, NoArgs{});
}

Tensor add_rows(const Tensor& x, const Tensor& index, const Tensor& rows) {
  return call(scatter_op, {x, index, rows}, NoArgs{});
}

/// Otherwise a rank would hold parts of segments.
void check_cut(const char* op, const Tensor& of, const Tensor& begin) {
  const Layout& m = of.layout();
  const Layout& n = begin.layout();
  if (m.dims() == 1 && n.dims() == 1 && m.split(0).axes != n.split(0).axes) {
    throw LayoutError(str(op, ": rows ", m, " and segments ", n,
                          " are not split by the same axes (a segment must lie with all its rows). "
                          "Redistribute one."));
  }
}

}  // namespace

Tensor segment_sum(const Tensor& x, const Segments& segments) {
  check_cut("segment_sum", segments.of, segments.begin);
  return sum_rows(x, segments.of, segments.begin, false);
}

Tensor segment_mean(const Tensor& x, const Segments& segments) {
  check_cut("segment_mean", segments.of, segments.begin);
  return sum_rows(x, segments.of, segments.begin, true);
}

Tensor segment_max(const Tensor& x, const Segments& segments) {
  check_cut("segment_max", segments.of, segments.begin);
  const Tensor at = call<NoArgs>(argmax_op, {x.detach(), segments.of, segments.begin});
  return call<NoArgs>(pick_op, {x, segments.of, segments.begin, at});
}

Tensor segment_softmax(const Tensor& x, const Segments& segments) {
  if (x.dtype() == DType::kBFloat16)  // sums of 8 bits are none
    return cast(segment_softmax(cast(x, DType::kFloat32), segments), x.dtype());
  const Tensor whole = reduced(x);
  // The largest element changes no result and so counts as a constant.
  const Tensor e = exp(whole - segment_spread(segment_max(whole.detach(), segments), segments));
  return e / segment_spread(segment_sum(e, segments), segments);
}

Tensor segment_spread(const Tensor& x, const Segments& segments) {
  check_cut("segment_spread", segments.of, segments.begin);
  return spread_rows(x, segments.of, segments.begin, false);
}

Tensor gather_own(const Tensor& x, const Tensor& index, const Tensor& rows) {
  check_cut("gather_own", index, rows);
  return call<NoArgs>(gather_op, {x, index, rows});
}

Tensor scatter_own(const Tensor& x, const Tensor& index, const Tensor& rows) {
  check_cut("scatter_own", index, rows);
  return add_rows(x, index, rows);
}

}  // namespace tessera
