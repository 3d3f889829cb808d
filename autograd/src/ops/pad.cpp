// Ops that move elements to other places of the same grid: pad, slice, concat, and what is made of
// them. Each states which input interval an output interval needs; boundaries move along with the
// elements.

#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/kernels/elementwise.hpp>

#include "broadcast.hpp"
#include "domain.hpp"

namespace tessera {

namespace {

Box shifted(const Box& box, const Dims& by) {
  Box result = box;
  for (int d = 0; d < box.dims(); ++d) result.set(d, {box.lo[d] + by[d], box.hi[d] + by[d]});
  return result;
}

Dims negated(const Dims& values) {
  Dims result = values;
  for (std::int64_t& v : result) v = -v;
  return result;
}

/// to[i + by] = from[i] wherever both exist.
void copy_shifted(const Piece& from, const Dims& by, const Piece& to) {
  const Box target = intersect(shifted(from.box, by), to.box);
  if (!target.empty())
    kernels::copy(from.slice(shifted(target, negated(by))).view, to.slice(target).view);
}

// ---- pad and its adjoint ----

struct PadArgs {
  Dims lo;
  Dims hi;
  std::int64_t edge;
  std::int64_t fills;  // whether the value is not 0: only then is a pending sum taken first

  EdgeRule rule() const { return static_cast<EdgeRule>(edge); }
  bool moves(int d) const { return lo[d] != 0 || hi[d] != 0; }
};
struct PadScalars {
  double value;
};

Tensor unpad(const Tensor& g, const PadArgs& args, const Layout& like);
Tensor pad_with(const Tensor& x, const PadArgs& args, double value);

void pad_signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  const auto& args = problem.as<PadArgs>();
  if (!args.fills) partial_signature(problem, 0b1, legal);
  for (int d = 0; d < args.lo.size(); ++d) {
    const std::int64_t m = problem.out[0].shape[d];
    legal.push_back({.in = {args.moves(d) ? window_role(d) : shard_role(d)},
                     .out = {shard_role(d)},
                     .bounds = [lo = args.lo[d], m](int, const Bounds& b) {
                       return mapped_bounds(b, m, [lo](std::int64_t i) { return i + lo; });
                     }});
  }
}

const OpDef pad_op = {.name = "pad",
                      .infer =
                          [](const Problem& problem, std::vector<OutputMeta>& out) {
                            const auto& args = problem.as<PadArgs>();
                            Shape shape = problem.shape(0);
                            for (int d = 0; d < shape.size(); ++d)
                              shape[d] += args.lo[d] + args.hi[d];
                            out.push_back({shape, problem.dtypes[0]});
                          },
                      .signatures = pad_signatures,
                      .windows =
                          [](const Problem& problem, std::vector<Window>& windows) {
                            const auto& args = problem.as<PadArgs>();
                            for (int d = 0; d < args.lo.size(); ++d) {
                              if (!args.moves(d)) continue;
                              windows.push_back({0, d, d,
                                                 [lo = args.lo[d]](Interval j) {
                                                   return Interval{j.lo - lo, j.hi - lo};
                                                 },
                                                 args.rule()});
                            }
                          },
                      .local =
                          [](const LocalCall& call) {
                            kernels::fill(call.out[0].view, call.dynamic_as<PadScalars>().value);
                            copy_shifted(call.in[0], call.as<PadArgs>().lo, call.out[0]);
                          },
                      .vjp =
                          [](VjpContext& context) {
                            context.set(0, unpad(context.grad(), context.as<PadArgs>(),
                                                 context.input_layout(0).dual()));
                          }};

/// dx[i] = g[i + lo], and what lies beyond the domain is added where the edge rule took it from.
const OpDef unpad_op = {
    .name = "pad_grad",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          const auto& args = problem.as<PadArgs>();
          Shape shape = problem.shape(0);
          for (int d = 0; d < shape.size(); ++d) shape[d] -= args.lo[d] + args.hi[d];
          out.push_back({shape, problem.dtypes[0]});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          const auto& args = problem.as<PadArgs>();
          partial_signature(problem, 0b1, legal);
          for (int d = 0; d < args.lo.size(); ++d) {
            const Role g = args.moves(d) ? window_role(d) : shard_role(d);
            legal.push_back(
                {.in = {g}, .out = {shard_role(d)}, .driver = Signature::kLike, .bounds = {}});
          }
        },
    .windows =
        [](const Problem& problem, std::vector<Window>& windows) {
          const auto& args = problem.as<PadArgs>();
          for (int d = 0; d < args.lo.size(); ++d) {
            if (!args.moves(d)) continue;
            windows.push_back({0, d, d,
                               [lo = args.lo[d]](Interval i) {
                                 return Interval{i.lo + lo, i.hi + lo};
                               },
                               EdgeRule::kZero});
          }
        },
    .folds =
        [](const Problem& problem, std::vector<Fold>& folds) {
          const auto& args = problem.as<PadArgs>();
          if (args.rule() == EdgeRule::kZero) return;
          for (int d = 0; d < args.lo.size(); ++d) {
            const std::int64_t lo = std::max<std::int64_t>(args.lo[d], 0);
            const std::int64_t hi = std::max<std::int64_t>(args.hi[d], 0);
            if (lo > 0 || hi > 0) folds.push_back({0, d, lo, hi, args.rule()});
          }
        },
    .local =
        [](const LocalCall& call) {
          kernels::fill(call.out[0].view, 0.0);
          copy_shifted(call.in[0], negated(call.as<PadArgs>().lo), call.out[0]);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(0, pad_with(context.grad(), context.as<PadArgs>(), 0.0));
        }};

Tensor unpad(const Tensor& g, const PadArgs& args, const Layout& like) {
  return call(unpad_op, {g}, args, NoArgs{}, like);
}
Tensor pad_with(const Tensor& x, const PadArgs& args, double value) {
  PadArgs with = args;
  with.fills = value != 0.0;
  return call(pad_op, {x}, with, PadScalars{value});
}

// ---- slice and its adjoint ----

struct SliceArgs {
  std::int64_t dim;
  std::int64_t start;
  std::int64_t step;
  std::int64_t size;  // of the result in `dim`

  /// The first element of the slice at or behind element i of x.
  std::int64_t behind(std::int64_t i) const {
    return std::clamp<std::int64_t>(ceil_div(i - start, step), 0, size);
  }
};

Tensor take_slice(const Tensor& x, const SliceArgs& args);
Tensor embed(const Tensor& g, const SliceArgs& args, const Layout& like);

const OpDef slice_op = {
    .name = "slice",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          const auto& args = problem.as<SliceArgs>();
          Shape shape = problem.shape(0);
          shape[static_cast<int>(args.dim)] = args.size;
          out.push_back({shape, problem.dtypes[0]});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          const auto& args = problem.as<SliceArgs>();
          legal.push_back({.in = {partial_role()}, .out = {partial_role()}, .bounds = {}});
          for (int d = 0; d < problem.shape(0).size(); ++d) {
            if (d != args.dim) {
              legal.push_back({.in = {shard_role(d)}, .out = {shard_role(d)}, .bounds = {}});
              continue;
            }
            legal.push_back({.in = {shard_role(d)},
                             .out = {shard_role(d)},
                             .bounds = [args](int, const Bounds& b) {
                               return mapped_bounds(
                                   b, args.size, [args](std::int64_t i) { return args.behind(i); });
                             }});
          }
        },
    .alias =
        [](const LocalCall& call) {
          const auto& args = call.as<SliceArgs>();
          const int d = static_cast<int>(args.dim);
          const Piece& x = call.in[0];
          const Piece& y = call.out[0];
          View view = x.view;
          view.shape = y.view.shape;
          if (view.shape.product() == 0) return view;
          const std::int64_t first = args.start + y.box.lo[d] * args.step - x.box.lo[d];
          view.data = static_cast<std::byte*>(view.data) +
                      first * view.strides[d] * static_cast<std::int64_t>(size_of(view.dtype));
          view.strides[d] *= args.step;
          return view;
        },
    .vjp =
        [](VjpContext& context) {
          context.set(
              0, embed(context.grad(), context.as<SliceArgs>(), context.input_layout(0).dual()));
        },
    .linear_view = true};

/// Zero but for the elements of the slice.
const OpDef embed_op = {
    .name = "slice_grad",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          out.push_back({problem.like.shape(), problem.dtypes[0]});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          const auto& args = problem.as<SliceArgs>();
          partial_signature(problem, 0b1, legal);
          for (int d = 0; d < problem.shape(0).size(); ++d) {
            const Role g = d == args.dim ? window_role(d) : shard_role(d);
            legal.push_back(
                {.in = {g}, .out = {shard_role(d)}, .driver = Signature::kLike, .bounds = {}});
          }
        },
    .windows =
        [](const Problem& problem, std::vector<Window>& windows) {
          const auto& args = problem.as<SliceArgs>();
          const int d = static_cast<int>(args.dim);
          windows.push_back({0, d, d,
                             [args](Interval i) {
                               return Interval{args.behind(i.lo), args.behind(i.hi)};
                             },
                             EdgeRule::kZero});
        },
    .local =
        [](const LocalCall& call) {
          const auto& args = call.as<SliceArgs>();
          const int d = static_cast<int>(args.dim);
          kernels::fill(call.out[0].view, 0.0);
          Box region = call.out[0].box;
          region.set(d, {args.behind(region.lo[d]), args.behind(region.hi[d])});
          const Piece g = call.in[0].slice(region);
          if (g.view.empty()) return;
          View to = call.out[0].view;
          to.data = static_cast<std::byte*>(to.data) +
                    (args.start + g.box.lo[d] * args.step - call.out[0].box.lo[d]) * to.strides[d] *
                        static_cast<std::int64_t>(size_of(to.dtype));
          to.strides[d] *= args.step;
          to.shape = g.view.shape;
          kernels::copy(g.view, to);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(0, take_slice(context.grad(), context.as<SliceArgs>()));
        }};

Tensor take_slice(const Tensor& x, const SliceArgs& args) { return call(slice_op, {x}, args); }
Tensor embed(const Tensor& g, const SliceArgs& args, const Layout& like) {
  return call(embed_op, {g}, args, NoArgs{}, like);
}

// ---- concat ----

struct ConcatArgs {
  std::int64_t dim;
};

/// Where each input begins in the result.
std::vector<std::int64_t> concat_offsets(const Problem& problem) {
  const int dim = static_cast<int>(problem.as<ConcatArgs>().dim);
  std::vector<std::int64_t> offsets{0};
  for (int i = 0; i < static_cast<int>(problem.in.size()); ++i)
    offsets.push_back(offsets.back() + problem.shape(i)[dim]);
  return offsets;
}

void infer_concat(const Problem& problem, std::vector<OutputMeta>& out) {
  const int dim = static_cast<int>(problem.as<ConcatArgs>().dim);
  const DType dtype = common_dtype("concat", problem);
  Shape shape = problem.shape(0);
  for (int i = 1; i < static_cast<int>(problem.in.size()); ++i) {
    const Shape& other = problem.shape(i);
    bool fits = other.size() == shape.size();
    for (int d = 0; fits && d < shape.size(); ++d) fits = d == dim || shape[d] == other[d];
    if (!fits) {
      throw ShapeError(str("concat: ", problem.shape(0), " and ", other,
                           " do not fit along dimension ", dim, " (all others must be equal)."));
    }
  }
  shape[dim] = concat_offsets(problem).back();
  out.push_back({shape, dtype});
}

void concat_signatures(const Problem& problem,
                       const AxisGroup& group,
                       std::vector<Signature>& legal) {
  const int dim = static_cast<int>(problem.as<ConcatArgs>().dim);
  const int inputs = static_cast<int>(problem.in.size());
  partial_signature(problem, (1u << inputs) - 1, legal);
  for (int d = 0; d < problem.out[0].shape.size(); ++d) {
    for (int driver = 0; driver < inputs; ++driver) {
      Signature signature{
          .in = std::vector<Role>(problem.in.size(), d == dim ? window_role(d) : shard_role(d)),
          .out = {shard_role(d)},
          .driver = driver,
          .bounds = {}};
      if (d == dim) {
        // Each rank gets as many rows of the result as it has of all inputs together.
        Bounds total(static_cast<std::size_t>(group.parts) + 1, 0);
        for (const Layout& layout : problem.in) {
          const Bounds b = group.splits(layout, d)
                               ? layout.split(d).bounds
                               : balanced_bounds(layout.shape()[d], group.parts);
          for (std::size_t p = 0; p < total.size(); ++p) total[p] += b[p];
        }
        signature.bounds = [total, inputs, group,
                            problem_in = std::vector<Layout>(problem.in.begin(), problem.in.end()),
                            d](int t, const Bounds&) {
          return t == inputs ? total
                             : balanced_bounds(problem_in[static_cast<std::size_t>(t)].shape()[d],
                                               group.parts);
        };
      }
      legal.push_back(std::move(signature));
    }
  }
}

const OpDef concat_op = {
    .name = "concat",
    .infer = infer_concat,
    .signatures = concat_signatures,
    .windows =
        [](const Problem& problem, std::vector<Window>& windows) {
          const int dim = static_cast<int>(problem.as<ConcatArgs>().dim);
          const std::vector<std::int64_t> offsets = concat_offsets(problem);
          for (int i = 0; i < static_cast<int>(problem.in.size()); ++i) {
            const std::int64_t offset = offsets[static_cast<std::size_t>(i)];
            const std::int64_t n = problem.shape(i)[dim];
            windows.push_back({i, dim, dim,
                               [offset, n](Interval j) {
                                 return Interval{std::clamp<std::int64_t>(j.lo - offset, 0, n),
                                                 std::clamp<std::int64_t>(j.hi - offset, 0, n)};
                               },
                               EdgeRule::kZero});
          }
        },
    .local =
        [](const LocalCall& call) {
          const int dim = static_cast<int>(call.as<ConcatArgs>().dim);
          Dims by = Dims::filled(call.out[0].box.dims(), 0);
          for (const Piece& x : call.in) {
            copy_shifted(x, by, call.out[0]);
            by[dim] += x.global[dim];
          }
        },
    .vjp =
        [](VjpContext& context) {
          const auto dim = static_cast<int>(context.as<ConcatArgs>().dim);
          std::int64_t offset = 0;
          for (int i = 0; i < context.input_count(); ++i) {
            const std::int64_t n = context.input_layout(i).shape()[dim];
            if (context.needs(i)) context.set(i, slice(context.grad(), dim, offset, offset + n));
            offset += n;
          }
        }};

}  // namespace

Tensor pad(const Tensor& x, const Dims& lo, const Dims& hi, EdgeRule edge, double value) {
  if (lo.size() != x.dims() || hi.size() != x.dims()) {
    throw ShapeError(str("pad: ", lo.size(), " low and ", hi.size(), " high values for the ",
                         x.dims(), " dimensions of ", x.shape(), ". Give one for each."));
  }
  for (int d = 0; d < x.dims(); ++d) {
    if (x.shape()[d] + lo[d] + hi[d] < 0) {
      throw ShapeError(str("pad: cropping ", -lo[d], " and ", -hi[d], " from dimension ", d, " of ",
                           x.shape(), " leaves less than nothing."));
    }
    if (x.shape()[d] == 0 && edge != EdgeRule::kZero && (lo[d] > 0 || hi[d] > 0)) {
      throw ShapeError(str("pad: edge rule ", name(edge), " needs elements but dimension ", d,
                           " of ", x.shape(), " is empty."));
    }
  }
  if (edge != EdgeRule::kZero && value != 0.0)
    throw UsageError("pad: a value was given with an edge rule that does not use it. Use kZero.");
  return pad_with(x, {lo, hi, static_cast<std::int64_t>(edge), 0}, value);
}

Tensor slice(const Tensor& x, int dim, std::int64_t start, std::int64_t stop, std::int64_t step) {
  const int d = wrap_dim("slice", dim, x.dims());
  if (step < 1 || start < 0 || start > stop || stop > x.shape()[d]) {
    throw ShapeError(str("slice: [", start, ", ", stop, ") with step ", step,
                         " does not lie in 0..", x.shape()[d], " of dimension ", d, " of ",
                         x.shape(), "."));
  }
  return take_slice(x, {d, start, step, ceil_div(stop - start, step)});
}

std::vector<Tensor> split(const Tensor& x, const Dims& sizes, int dim) {
  const int d = wrap_dim("split", dim, x.dims());
  std::int64_t total = 0;
  for (const std::int64_t n : sizes) total += n;
  if (total != x.shape()[d]) {
    throw ShapeError(str("split: sizes ", sizes, " add up to ", total, ", not to the ",
                         x.shape()[d], " of dimension ", d, " of ", x.shape(), "."));
  }
  std::vector<Tensor> parts;
  std::int64_t start = 0;
  for (const std::int64_t n : sizes) {
    parts.push_back(slice(x, d, start, start + n));
    start += n;
  }
  return parts;
}

Tensor concat(const std::vector<Tensor>& parts, int dim) {
  if (parts.empty()) throw UsageError("concat: no tensors were given.");
  const int d = wrap_dim("concat", dim, parts[0].dims());
  if (parts.size() <= kMaxInputs) {
    const ConcatArgs args{d};
    const NoArgs none;
    return dispatch(concat_op, parts, {&args, sizeof args, &none, sizeof none});
  }
  std::vector<Tensor> joined;
  for (std::size_t i = 0; i < parts.size(); i += kMaxInputs) {
    const auto from = parts.begin() + static_cast<std::ptrdiff_t>(i);
    const auto to =
        parts.begin() + static_cast<std::ptrdiff_t>(std::min(i + kMaxInputs, parts.size()));
    joined.push_back(concat(std::vector<Tensor>(from, to), d));
  }
  return concat(joined, d);
}

Tensor pixel_shuffle(const Tensor& x, std::int64_t factor) {
  const int dims = domain_dims("pixel_shuffle", x.shape());
  std::int64_t offsets = 1;
  for (int d = 0; d < dims; ++d) offsets *= factor;
  if (factor < 1 || x.shape().back() % offsets != 0) {
    throw ShapeError(str("pixel_shuffle: ", x.shape().back(), " channels are not a multiple of ",
                         factor, "^", dims, "."));
  }
  Shape opened;  // [N, d..., r..., C]
  for (int d = 0; d <= dims; ++d) opened.push_back(x.shape()[d]);
  for (int d = 0; d < dims; ++d) opened.push_back(factor);
  opened.push_back(x.shape().back() / offsets);
  Dims order{0};  // [N, d0, r0, d1, r1, ..., C]
  Shape closed{x.shape()[0]};
  for (int d = 0; d < dims; ++d) {
    order.push_back(1 + d);
    order.push_back(1 + dims + d);
    closed.push_back(x.shape()[1 + d] * factor);
  }
  order.push_back(1 + 2 * dims);
  closed.push_back(opened.back());
  return reshape(permute(reshape(x, opened), order), closed);
}

Tensor pixel_unshuffle(const Tensor& x, std::int64_t factor) {
  const int dims = domain_dims("pixel_unshuffle", x.shape());
  Shape opened{x.shape()[0]};  // [N, d0, r0, d1, r1, ..., C]
  Dims order{0};               // [N, d..., r..., C]
  Shape closed{x.shape()[0]};
  std::int64_t offsets = 1;
  for (int d = 0; d < dims; ++d) {
    if (factor < 1 || x.shape()[1 + d] % factor != 0) {
      throw ShapeError(str("pixel_unshuffle: size ", x.shape()[1 + d], " of domain dimension ", d,
                           " is not a multiple of ", factor, "."));
    }
    opened.push_back(x.shape()[1 + d] / factor);
    opened.push_back(factor);
    closed.push_back(x.shape()[1 + d] / factor);
    offsets *= factor;
  }
  opened.push_back(x.shape().back());
  for (int d = 0; d < dims; ++d) order.push_back(1 + 2 * d);
  for (int d = 0; d < dims; ++d) order.push_back(2 + 2 * d);
  order.push_back(1 + 2 * dims);
  closed.push_back(x.shape().back() * offsets);
  return reshape(permute(reshape(x, opened), order), closed);
}

}  // namespace tessera
