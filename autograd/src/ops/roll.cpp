// roll and flip: y[j] = x[edge(j + by)] in each dimension, with boundaries unchanged. A circular
// edge makes it a roll; reflection at the far end, by = n - 1, a flip: 2 (n - 1) - (n - 1 + j).

#include <algorithm>
#include <array>
#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/roll.hpp>
#include <tessera/kernels/elementwise.hpp>

#include "broadcast.hpp"

namespace tessera {

namespace {

struct MoveArgs {
  Dims by;
  std::int64_t flips;  // bit d: dimension d is mirrored

  bool mirrors(int d) const { return (flips >> d & 1) != 0; }
  bool moves(int d) const { return by[d] != 0 || mirrors(d); }
  /// What the outputs `j` read, in virtual coordinates.
  Interval need(int d, Interval j) const { return {j.lo + by[d], j.hi + by[d]}; }
};

Tensor move(const Tensor& x, const MoveArgs& args);

/// Outputs [to, to + size) of one dimension and the inputs they show: from, from + step, ...
struct Run {
  std::int64_t to;
  std::int64_t from;
  std::int64_t size;
  std::int64_t step;
};

/// Where the piece holds what is needed in one row, that; else (a dimension that is whole) the runs
/// of real elements.
std::vector<Run> runs(const MoveArgs& args, int d, Interval work, Interval have, std::int64_t n) {
  const Interval need = args.need(d, work);
  if (have.contains(need)) return {{work.lo, need.lo, work.size(), 1}};
  if (args.mirrors(d)) return {{work.lo, n - 1 - work.lo, work.size(), -1}};
  std::vector<Run> result;
  for (std::int64_t j = work.lo; j < work.hi;) {
    const std::int64_t from = ((j + args.by[d]) % n + n) % n;
    const std::int64_t size = std::min(work.hi - j, n - from);
    result.push_back({j, from, size, 1});
    j += size;
  }
  return result;
}

void move_local(const LocalCall& call) {
  const auto& args = call.as<MoveArgs>();
  const Piece& x = call.in[0];
  const Piece& y = call.out[0];
  if (y.view.empty()) return;
  std::array<std::vector<Run>, kMaxDims> all;
  const int dims = y.view.dims();
  for (int d = 0; d < dims; ++d)
    all[static_cast<std::size_t>(d)] = runs(args, d, y.box[d], x.box[d], y.global[d]);
  // The product of the runs of all dimensions.
  std::array<std::size_t, kMaxDims> at{};
  for (int d = 0; d >= 0;) {
    View from = x.view;
    View to = y.view;
    std::int64_t source = 0;
    std::int64_t target = 0;
    for (int e = 0; e < dims; ++e) {
      const Run& run = all[static_cast<std::size_t>(e)][at[static_cast<std::size_t>(e)]];
      source += (run.from - x.box.lo[e]) * from.strides[e];
      target += (run.to - y.box.lo[e]) * to.strides[e];
      from.strides[e] *= run.step;
      from.shape[e] = to.shape[e] = run.size;
    }
    const auto bytes = static_cast<std::int64_t>(size_of(to.dtype));
    from.data = static_cast<std::byte*>(from.data) + source * bytes;
    to.data = static_cast<std::byte*>(to.data) + target * bytes;
    kernels::copy(from, to);
    for (d = dims - 1; d >= 0; --d) {
      const auto u = static_cast<std::size_t>(d);
      if (++at[u] < all[u].size()) break;
      at[u] = 0;
    }
  }
}

const OpDef move_op = {
    .name = "roll",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          out.push_back({problem.shape(0), problem.dtypes[0]});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          const auto& args = problem.as<MoveArgs>();
          partial_signature(problem, 0b1, legal);
          for (int d = 0; d < problem.shape(0).size(); ++d) {
            legal.push_back(
                {.in = {args.moves(d) ? window_role(d) : shard_role(d)}, .out = {shard_role(d)}});
          }
        },
    .windows =
        [](const Problem& problem, std::vector<Window>& windows) {
          const auto& args = problem.as<MoveArgs>();
          for (int d = 0; d < problem.shape(0).size(); ++d) {
            // A dimension that is whole needs no images: `local` reads it where it lies.
            if (!args.moves(d) || !problem.in[0].is_split(d)) continue;
            windows.push_back({0, d, d, [args, d](Interval j) { return args.need(d, j); },
                               args.mirrors(d) ? EdgeRule::kReflect : EdgeRule::kCircular});
          }
        },
    .local = move_local,
    .vjp =
        [](VjpContext& context) {
          MoveArgs back = context.as<MoveArgs>();
          for (int d = 0; d < back.by.size(); ++d)
            if (!back.mirrors(d)) back.by[d] = -back.by[d];
          context.set(0, move(context.grad(), back));
        }};

Tensor move(const Tensor& x, const MoveArgs& args) { return call(move_op, {x}, args); }

}  // namespace

Tensor roll(const Tensor& x, const Dims& shifts, const Dims& dims) {
  if (shifts.size() != dims.size()) {
    throw ShapeError(str("roll: ", shifts.size(), " shifts for ", dims.size(),
                         " dimensions. Give one for each."));
  }
  MoveArgs args{Dims::filled(x.dims(), 0), 0};
  std::int64_t listed = 0;
  for (int i = 0; i < dims.size(); ++i) {
    const int d = wrap_dim("roll", dims[i], x.dims());
    if (listed >> d & 1)
      throw ShapeError(str("roll: dimension ", dims[i], " is listed twice in ", dims, "."));
    listed |= std::int64_t{1} << d;
    const std::int64_t n = x.shape()[d];
    if (n == 0) continue;
    // The shorter way around.
    const std::int64_t up = (shifts[i] % n + n) % n;
    args.by[d] = up <= n / 2 ? -up : n - up;
  }
  return move(x, args);
}

Tensor flip(const Tensor& x, const Dims& dims) {
  MoveArgs args{Dims::filled(x.dims(), 0), 0};
  for (const std::int64_t dim : dims) {
    const int d = wrap_dim("flip", dim, x.dims());
    if (args.mirrors(d))
      throw ShapeError(str("flip: dimension ", dim, " is listed twice in ", dims, "."));
    args.flips |= std::int64_t{1} << d;
  }
  if (dims.empty()) args.flips = (std::int64_t{1} << x.dims()) - 1;
  for (int d = 0; d < x.dims(); ++d)
    if (args.mirrors(d)) args.by[d] = std::max<std::int64_t>(0, x.shape()[d] - 1);
  return move(x, args);
}

}  // namespace tessera
