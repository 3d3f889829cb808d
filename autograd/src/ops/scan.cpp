// Running sums. Along a split dimension: totals of lines to all ranks of the group, then each scans
// its part from the sum of what comes before.

#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/scan.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/reduce.hpp>
#include <tessera/kernels/scan.hpp>
#include <tessera/parallel/communicator.hpp>

#include "broadcast.hpp"
#include "row_memory.hpp"

namespace tessera {

namespace {

struct ScanArgs {
  std::int64_t dim;
  std::int64_t reverse;

  int at() const { return static_cast<int>(dim); }
};

void infer_scan(const Problem& problem, std::vector<OutputMeta>& out) {
  if (problem.dtypes[0] == DType::kBool)
    throw DTypeError("cumsum: element type bool has no running sum. Cast it to an integer type.");
  out.push_back({problem.shape(0), problem.dtypes[0]});
}

void run_scan(RunContext& context) {
  const auto& args = context.as<ScanArgs>();
  const int dim = args.at();
  const View x = context.in[0].local();
  const View y = context.out[0].mutable_local();
  const Layout& layout = context.in[0].layout();
  const Mesh& mesh = layout.mesh();
  const parallel::Group group = parallel::Group::of(mesh, context.axes);
  const std::vector<int> members = mesh.group(mesh.rank(), context.axes);

  const DType wide = is_floating(x.dtype) ? DType::kFloat64 : DType::kInt64;
  Shape lines = x.shape;
  lines[dim] = 1;
  Shape gathered = lines;
  gathered.insert(0, group.size());
  const Ref<Buffer> mine = allocate(wide, lines);
  const Ref<Buffer> all = allocate(wide, gathered);
  const View total = memory(mine, wide, lines);
  if (!dry_run()) kernels::reduce(kernels::ReduceKind::kSum, x, total);
  parallel::all_gather(group, mine->data(), all->data(), lines.product() * 8,
                       {"cumsum", layout, {}})
      .wait();
  // In the order of parts, which need not be that of the members.
  kernels::fill(total, 0.0);
  const int part = layout.part_of(dim, mesh.rank());
  std::vector<std::size_t> member(members.size());
  for (std::size_t r = 0; r < members.size(); ++r)
    member[static_cast<std::size_t>(layout.part_of(dim, members[r]))] = r;
  for (int i = 0; i < group.size(); ++i) {
    const int p = args.reverse ? group.size() - 1 - i : i;
    if (p == part) break;
    const auto from = static_cast<std::int64_t>(member[static_cast<std::size_t>(p)]);
    const View other =
        View::dense(static_cast<std::byte*>(all->data()) + from * lines.product() * 8, wide, lines);
    kernels::binary(kernels::BinaryKind::kAdd, total, other, total);
  }
  kernels::cumulative_sum(x, dim, args.reverse != 0, total, y);
}

const OpDef scan_op = {
    .name = "cumsum",
    .infer = infer_scan,
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          const int dim = problem.as<ScanArgs>().at();
          partial_signature(problem, 0b1, legal);
          for (int d = 0; d < problem.shape(0).size(); ++d) {
            legal.push_back({.in = {shard_role(d)},
                             .out = {shard_role(d)},
                             .run = d == dim ? run_scan : nullptr});
          }
        },
    .local =
        [](const LocalCall& call) {
          const auto& args = call.as<ScanArgs>();
          kernels::cumulative_sum(call.in[0].view, args.at(), args.reverse != 0, {},
                                  call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          const auto& args = context.as<ScanArgs>();
          context.set(0, cumsum(context.grad(), args.at(), args.reverse == 0));
        }};

}  // namespace

Tensor cumsum(const Tensor& x, int dim, bool reverse) {
  return call(scan_op, {x}, ScanArgs{wrap_dim("cumsum", dim, x.dims()), reverse});
}

}  // namespace tessera
