// Rows by index, along dimension 0: gather and its adjoint, which differentiate into each other:
//   gather:      y[i, ...] = x[index[i], ...]
//   scatter_add: y[index[i], ...] += x[i, ...]
// Where the side that is addressed (x of gather, y of scatter_add) is split by the axes that split
// the index, rows are routed: a RowRoute says which rank needs which rows of which other.

#include <algorithm>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/gather.hpp>
#include <tessera/kernels/index.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/redistribute.hpp>

#include "broadcast.hpp"
#include "row_memory.hpp"
#include "row_route.hpp"

namespace tessera {

namespace {

void check_index(const char* op, const Problem& problem) {
  const DType dtype = problem.dtypes[1];
  if (dtype != DType::kInt32 && dtype != DType::kInt64)
    throw DTypeError(str(op, ": indices are ", name(dtype), ", not i32 or i64. Use cast()."));
  if (problem.shape(1).size() != 1 || problem.shape(0).empty()) {
    throw ShapeError(str(op, ": rows of ", problem.shape(0), " by index ", problem.shape(1),
                         " (needed are [n, ...] and [m]). Reshape the index."));
  }
}

/// An index outside [0, n) of a part that this rank sees.
void check_range(const char* op, const View& index, std::int64_t n) {
  for (std::int64_t i = 0; i < index.size(); ++i) {
    const std::int64_t at = i * index.strides[0];
    const std::int64_t row =
        index.dtype == DType::kInt64 ? index.as<std::int64_t>()[at] : index.as<std::int32_t>()[at];
    if (row < 0 || row >= n)
      throw ShapeError(
          str(op, ": index ", row, " is outside the ", n, " rows. Check the indices."));
  }
}

Tensor scatter_rows(const Tensor& x, const Tensor& index, const Layout& like);

// ---- gather ----

void infer_gather(const Problem& problem, std::vector<OutputMeta>& out) {
  check_index("gather", problem);
  out.push_back({with_rows(problem.shape(0), problem.shape(1)[0]), problem.dtypes[0]});
}

void run_gather(RunContext& context) {
  const View x = context.in[0].local();
  const View y = context.out[0].mutable_local();
  const auto route = row_route("gather", context.in[1], context.in[0].layout(), context.axes);
  // Owners send each row once, whatever how often it is named here.
  const Shape owned = with_rows(x.shape, static_cast<std::int64_t>(route->served.size()));
  const Shape wanted = with_rows(x.shape, static_cast<std::int64_t>(route->unique.size()));
  const Ref<Buffer> send = allocate(x.dtype, owned);
  const Ref<Buffer> recv = allocate(x.dtype, wanted);
  kernels::take_rows(x, index_view(route->served), 0, memory(send, x.dtype, owned));
  parallel::all_to_all(route->group, send->data(), times(route->serve_counts, row_bytes(x)),
                       recv->data(), times(route->want_counts, row_bytes(x)),
                       {"gather", context.in[0].layout(), {}})
      .wait();
  kernels::take_rows(memory(recv, x.dtype, wanted), index_view(route->place), 0, y);
}

void gather_signatures(const Problem& problem,
                       const AxisGroup& group,
                       std::vector<Signature>& legal) {
  partial_signature(problem, 0b01, legal);
  // The result is split as the index; the rows are wherever they are.
  if (group.splits(problem.in[0], 0)) {
    legal.push_back({.in = {window_role(0), shard_role(0)},
                     .out = {shard_role(0)},
                     .driver = 1,
                     .bounds = {},
                     .run = run_gather});
  }
  legal.push_back(
      {.in = {replicate_role(), shard_role(0)}, .out = {shard_role(0)}, .driver = 1, .bounds = {}});
  // Every rank gives the rows it owns; those of others count as zero.
  legal.push_back({.in = {shard_role(0), replicate_role()}, .out = {partial_role()}, .bounds = {}});
  for (int d = 1; d < problem.shape(0).size(); ++d)
    legal.push_back(
        {.in = {shard_role(d), replicate_role()}, .out = {shard_role(d)}, .bounds = {}});
}

const OpDef gather_op = {.name = "gather",
                         .infer = infer_gather,
                         .signatures = gather_signatures,
                         .local =
                             [](const LocalCall& call) {
                               check_range("gather", call.in[1].view, call.in[0].global[0]);
                               kernels::take_rows(call.in[0].view, call.in[1].view,
                                                  call.in[0].box.lo[0], call.out[0].view);
                             },
                         .vjp =
                             [](VjpContext& context) {
                               context.set(0, scatter_rows(context.grad(), context.input(1),
                                                           context.input_layout(0).dual()));
                             },
                         .saved_inputs = 0b10};

// ---- scatter_add ----

struct ScatterArgs {
  std::int64_t rows;
};

void infer_scatter(const Problem& problem, std::vector<OutputMeta>& out) {
  check_index("scatter_add", problem);
  if (problem.shape(0)[0] != problem.shape(1)[0]) {
    throw ShapeError(str("scatter_add: ", problem.shape(0), " has not one row for each of the ",
                         problem.shape(1)[0], " indices."));
  }
  out.push_back({with_rows(problem.shape(0), problem.as<ScatterArgs>().rows), problem.dtypes[0]});
}

void run_scatter(RunContext& context) {
  const Tensor& y = context.out[0];
  const View out = y.mutable_local();
  // Both may be cut anywhere: rows go with their indices.
  Tensor rows = context.in[0];
  Tensor index = context.in[1];
  if (index.layout().is_split(0)) {
    const Layout& l = rows.layout();
    rows = parallel::redistribute(rows, l.with_dim(0, l.shape()[0], index.layout().split(0)),
                                  "scatter_add");
  } else {
    const Layout& l = index.layout();
    index = parallel::redistribute(index, l.with_dim(0, l.shape()[0], rows.layout().split(0)),
                                   "scatter_add");
  }
  const View x = rows.local();
  const auto route = row_route("scatter_add", index, y.layout(), context.axes);
  const Shape sent = with_rows(x.shape, static_cast<std::int64_t>(route->unique.size()));
  const Shape arrived = with_rows(x.shape, static_cast<std::int64_t>(route->served.size()));
  const Ref<Buffer> send = allocate(x.dtype, sent);
  const Ref<Buffer> recv = allocate(x.dtype, arrived);
  kernels::scatter_add_rows(x, index_view(route->place), 0, false, memory(send, x.dtype, sent));
  parallel::all_to_all(route->group, send->data(), times(route->want_counts, row_bytes(x)),
                       recv->data(), times(route->serve_counts, row_bytes(x)),
                       {"scatter_add", y.layout(), {}})
      .wait();
  // Pieces lie in rank order, which fixes the order of the sum.
  kernels::scatter_add_rows(memory(recv, x.dtype, arrived), index_view(route->served), 0, false,
                            out);
}

void scatter_signatures(const Problem& problem,
                        const AxisGroup& group,
                        std::vector<Signature>& legal) {
  partial_signature(problem, 0b01, legal);
  const int like = Signature::kLike;
  if (group.splits(problem.in[0], 0) || group.splits(problem.in[1], 0)) {
    legal.push_back({.in = {window_role(0), window_role(0)},
                     .out = {shard_role(0)},
                     .driver = like,
                     .bounds = {},
                     .run = run_scatter});
  }
  // Every rank knows all rows and keeps its own.
  legal.push_back({.in = {replicate_role(), replicate_role()},
                   .out = {shard_role(0)},
                   .driver = like,
                   .bounds = {}});
  for (const int driver : {1, 0}) {
    legal.push_back({.in = {shard_role(0), shard_role(0)},
                     .out = {partial_role()},
                     .driver = driver,
                     .bounds = {}});
  }
  for (int d = 1; d < problem.shape(0).size(); ++d) {
    for (const int driver : {0, like}) {
      legal.push_back({.in = {shard_role(d), replicate_role()},
                       .out = {shard_role(d)},
                       .driver = driver,
                       .bounds = {}});
    }
  }
}

const OpDef scatter_op = {
    .name = "scatter_add",
    .infer = infer_scatter,
    .signatures = scatter_signatures,
    .local =
        [](const LocalCall& call) {
          check_range("scatter_add", call.in[1].view, call.out[0].global[0]);
          kernels::scatter_add_rows(call.in[0].view, call.in[1].view, call.out[0].box.lo[0], false,
                                    call.out[0].view);
        },
    .vjp = [](VjpContext& context) { context.set(0, gather(context.grad(), context.input(1))); },
    .saved_inputs = 0b10};

Tensor scatter_rows(const Tensor& x, const Tensor& index, const Layout& like) {
  return call(scatter_op, {x, index}, ScatterArgs{like.shape()[0]}, NoArgs{}, like);
}

}  // namespace

Tensor gather(const Tensor& x, const Tensor& index) { return call<NoArgs>(gather_op, {x, index}); }

Tensor scatter_add(const Tensor& x, const Tensor& index, const Layout& like) {
  if (!(with_rows(x.shape(), like.dims() > 0 ? like.shape()[0] : 0) == like.shape())) {
    throw ShapeError(str("scatter_add: rows of ", x.shape(), " do not add up to ", like.shape(),
                         " (only dimension 0 may differ)."));
  }
  return redistribute(scatter_rows(x, index, like.dual()), like);
}

}  // namespace tessera
