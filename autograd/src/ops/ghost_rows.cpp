// Rows of other ranks beside the own ones, by a plan made once: ghost_rows and its adjoint
// ghost_sum, which differentiate into each other. The plan is named by a number in the static
// arguments, so that placements see where the rows are cut; a table keeps it for as long as
// somebody holds its index tensor (the tape does).

#include <algorithm>
#include <numeric>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/ghost_rows.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/index.hpp>
#include <tessera/parallel/communicator.hpp>
#include <unordered_map>

#include "broadcast.hpp"
#include "ghosts_in_flight.hpp"
#include "row_memory.hpp"
#include "watched.hpp"

namespace tessera {

struct GhostRows::Plan {
  struct Neighbour {
    int process;
    std::int64_t rows;
  };
  std::uint64_t id = 0;
  Layout owners;
  Tensor rows;
  std::int64_t total = 0;
  std::int64_t local = 0;
  std::vector<Neighbour> from;       // in the order of the ghosts
  std::vector<Neighbour> to;         // in the order of the parts
  std::vector<std::int64_t> served;  // own rows (counted from the first) for each of `to`
};

namespace {

using Plan = GhostRows::Plan;

std::unordered_map<std::uint64_t, std::shared_ptr<const Plan>>& table() {
  static auto* const plans = new std::unordered_map<std::uint64_t, std::shared_ptr<const Plan>>;
  return *plans;
}

void remember(const std::shared_ptr<const Plan>& plan) {
  // Nobody but the table holds these, and no tape their index.
  std::erase_if(table(), [](const auto& entry) {
    return entry.second.use_count() == 1 && entry.second->rows.is_unshared();
  });
  table()[plan->id] = plan;
}

struct PlanArgs {
  std::uint64_t id;
  std::uint64_t in_flight = 0;  // whether the ghosts of the result are awaited by who reads them
};

const Plan& plan_of(std::uint64_t id) { return *table().at(id); }

View rows_of(const View& v, std::int64_t lo, std::int64_t hi) {
  Box box = Box::whole(v.shape);
  box.set(0, {lo, hi});
  return v.slice(box);
}

std::vector<parallel::Send> sends(const std::vector<Plan::Neighbour>& to,
                                  const void* data,
                                  std::int64_t bytes) {
  std::vector<parallel::Send> list;
  const char* at = static_cast<const char*>(data);
  for (const Plan::Neighbour& n : to) {
    list.push_back({n.process, at, n.rows * bytes});
    at += n.rows * bytes;
  }
  return list;
}

std::vector<parallel::Recv> recvs(const std::vector<Plan::Neighbour>& from,
                                  void* data,
                                  std::int64_t bytes) {
  std::vector<parallel::Recv> list;
  char* at = static_cast<char*>(data);
  for (const Plan::Neighbour& n : from) {
    list.push_back({n.process, at, n.rows * bytes});
    at += n.rows * bytes;
  }
  return list;
}

void run_rows(RunContext& context) {
  const PlanArgs& args = context.as<PlanArgs>();
  const Plan& plan = plan_of(args.id);
  const View x = context.in[0].local();
  const View y = context.out[0].mutable_local();
  const std::int64_t own = x.shape[0];
  const std::int64_t bytes = row_bytes(x);
  const Shape sent = with_rows(x.shape, static_cast<std::int64_t>(plan.served.size()));
  const Ref<Buffer> send = allocate(x.dtype, sent);
  if (!dry_run()) kernels::take_rows(x, index_view(plan.served), 0, memory(send, x.dtype, sent));
  // Ghosts arrive in their place behind the own rows.
  auto request =
      parallel::exchange_messages(sends(plan.to, send->data(), bytes),
                                  recvs(plan.from, rows_of(y, own, own + plan.local).data, bytes),
                                  {"ghost_rows", context.in[0].layout(), {}});
  request.keep(send).keep(context.out[0].buffer());
  kernels::copy(x, rows_of(y, 0, own));
  if (args.in_flight == 0 || calls_are_watched()) {
    request.wait();
  } else {
    put_in_flight({context.out[0].buffer(), own, {}, std::move(request)});
  }
}

/// Sends the ghosts of y [R, ...] to their owners.
GhostExchange start_sum(const Tensor& rows, const Plan& plan) {
  const View y = rows.local();
  const std::int64_t own = y.shape[0] - plan.local;
  const std::int64_t bytes = row_bytes(y);
  const Ref<Buffer> recv =
      allocate(y.dtype, with_rows(y.shape, static_cast<std::int64_t>(plan.served.size())));
  View ghosts = rows_of(y, own, own + plan.local);
  Ref<Buffer> packed;
  if (!ghosts.is_dense()) {
    packed = allocate(y.dtype, ghosts.shape);
    const View dense = memory(packed, y.dtype, ghosts.shape);
    kernels::copy(ghosts, dense);
    ghosts = dense;
  }
  auto request = parallel::exchange_messages(sends(plan.from, ghosts.data, bytes),
                                             recvs(plan.to, recv->data(), bytes),
                                             {"ghost_sum", plan.owners, {}});
  request.keep(recv).keep(packed ? packed : rows.buffer());
  return {rows.buffer(), own, recv, std::move(request)};
}

void run_sum(RunContext& context) {
  const Plan& plan = plan_of(context.as<PlanArgs>().id);
  const View x = context.out[0].mutable_local();
  std::optional<GhostExchange> started = take_from_flight(context.in[0]);
  GhostExchange exchange = started ? std::move(*started) : start_sum(context.in[0], plan);
  kernels::copy(rows_of(context.in[0].local(), 0, x.shape[0]), x);
  exchange.request.wait();
  if (dry_run()) return;
  const Shape arrived = with_rows(x.shape, static_cast<std::int64_t>(plan.served.size()));
  kernels::scatter_add_rows(memory(exchange.arrive, x.dtype, arrived), index_view(plan.served), 0,
                            true, x);
}

void check(const char* op, const Problem& problem, std::int64_t rows) {
  if (problem.shape(0).empty() || problem.shape(0)[0] != rows) {
    throw ShapeError(str(op, ": ", problem.shape(0), " has not the ", rows,
                         " rows of the plan. Pass values of the same graph."));
  }
}

/// Whether x is split as `rows` are, and no further.
bool lies_as(const Tensor& x, const Tensor& rows) {
  Layout layout = rows.layout();
  for (int d = 1; d < x.dims(); ++d) layout = layout.with_inserted_dim(d, x.shape()[d]);
  return x.layout() == layout;
}

/// `out_rows`: whether the output has the rows with ghosts (then input 0 has the owners').
void signatures(const Problem& problem,
                const AxisGroup& group,
                bool out_rows,
                std::vector<Signature>& legal) {
  partial_signature(problem, 0b01, legal);
  const Plan& plan = plan_of(problem.as<PlanArgs>().id);
  if (group.splits(problem.in[1], 0)) {
    // Each rank knows all rows, and takes those it reads.
    if (out_rows) {
      legal.push_back({.in = {replicate_role(), shard_role(0)},
                       .out = {shard_role(0)},
                       .driver = 1,
                       .bounds = {}});
    }
    const int owned = out_rows ? 0 : 2;
    const Bounds owners = plan.owners.split(0).bounds;
    legal.push_back(
        {.in = {shard_role(0), shard_role(0)},
         .out = {shard_role(0)},
         .driver = 1,
         .bounds = [owned, owners](int t,
                                   const Bounds& rows) { return t == owned ? owners : rows; },
         .run = out_rows ? run_rows : run_sum});
  }
  for (int d = 1; d < problem.shape(0).size(); ++d) {
    legal.push_back(
        {.in = {shard_role(d), replicate_role()}, .out = {shard_role(d)}, .bounds = {}});
  }
}

extern const OpDef sum_op;
extern const OpDef start_op;

const OpDef rows_op = {
    .name = "ghost_rows",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          check("ghost_rows", problem, plan_of(problem.as<PlanArgs>().id).owners.shape()[0]);
          out.push_back({with_rows(problem.shape(0), problem.shape(1)[0]), problem.dtypes[0]});
        },
    .signatures = [](const Problem& problem,
                     const AxisGroup& group,
                     std::vector<Signature>& legal) { signatures(problem, group, true, legal); },
    .local =
        [](const LocalCall& call) {
          kernels::take_rows(call.in[0].view, call.in[1].view, call.in[0].box.lo[0],
                             call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          const Tensor g = context.grad();
          PlanArgs args = context.as<PlanArgs>();
          if (!lies_as(g, context.input(1))) args.in_flight = 0;
          context.set(0, call(sum_op, {g, context.input(1)}, args));
        },
    .saved_inputs = 0b10};

const OpDef sum_op = {
    .name = "ghost_sum",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          check("ghost_sum", problem, problem.shape(1)[0]);
          out.push_back(
              {with_rows(problem.shape(0), plan_of(problem.as<PlanArgs>().id).owners.shape()[0]),
               problem.dtypes[0]});
        },
    .signatures = [](const Problem& problem,
                     const AxisGroup& group,
                     std::vector<Signature>& legal) { signatures(problem, group, false, legal); },
    .local =
        [](const LocalCall& call) {
          kernels::scatter_add_rows(call.in[0].view, call.in[1].view, call.out[0].box.lo[0], false,
                                    call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(0, call(rows_op, {context.grad(), context.input(1)}, context.as<PlanArgs>()));
        },
    .saved_inputs = 0b10};

// Between start and end of an exchange stand two identities on the rows with ghosts. `wait_op`
// marks where ghosts are awaited: its gradient starts the way back. `start_op` marks that start:
// its gradient, in a gradient of a gradient, is where cotangents of ghosts are awaited.

OpDef identity(const char* name, void (*vjp)(VjpContext&)) {
  return {
      .name = name,
      .infer =
          [](const Problem& problem, std::vector<OutputMeta>& out) {
            out.push_back({problem.shape(0), problem.dtypes[0]});
          },
      .signatures =
          [](const Problem& problem, const AxisGroup& group, std::vector<Signature>& legal) {
            partial_signature(problem, 0b01, legal);
            if (group.splits(problem.in[1], 0)) {
              legal.push_back({.in = {shard_role(0), shard_role(0)},
                               .out = {shard_role(0)},
                               .driver = 1,
                               .bounds = {}});
            }
            for (int d = 1; d < problem.shape(0).size(); ++d) {
              legal.push_back(
                  {.in = {shard_role(d), replicate_role()}, .out = {shard_role(d)}, .bounds = {}});
            }
          },
      .local = [](const LocalCall& call) { kernels::copy(call.in[0].view, call.out[0].view); },
      .alias = [](const LocalCall& call) { return call.in[0].view; },
      .vjp = vjp,
      .saved_inputs = 0b10};
}

const OpDef wait_op = identity("ghost_rows_wait", [](VjpContext& context) {
  Tensor g = context.grad();
  const Tensor rows = context.input(1);
  if (lies_as(g, rows)) {
    const PlanArgs& args = context.as<PlanArgs>();
    g = call(start_op, {g, rows}, args);
    if (!calls_are_watched() && g.mesh().rank() >= 0) put_in_flight(start_sum(g, plan_of(args.id)));
  }
  context.set(0, g);
});

const OpDef start_op = identity("ghost_sum_start", [](VjpContext& context) {
  const Tensor g = context.grad();
  arrive(g);
  context.set(0, call(wait_op, {g, context.input(1)}, context.as<PlanArgs>()));
});

std::vector<std::int64_t> bytes_of(std::vector<std::int64_t> counts) {
  for (std::int64_t& c : counts) c *= static_cast<std::int64_t>(sizeof(std::int64_t));
  return counts;
}

/// The ranks that split the rows with this one, by part.
struct Parts {
  parallel::Group group;
  std::vector<int> member;          // mesh rank of each part
  std::vector<std::size_t> number;  // its place in the group
  int own = 0;

  explicit Parts(const Layout& owners) {
    const Mesh& mesh = owners.mesh();
    const AxisMask axes = owners.axes_of(0);
    group = parallel::Group::of(mesh, axes);
    const std::vector<int> members = mesh.group(mesh.rank(), axes);
    member.resize(members.size());
    number.resize(members.size());
    for (std::size_t r = 0; r < members.size(); ++r) {
      const auto part = static_cast<std::size_t>(owners.part_of(0, members[r]));
      member[part] = members[r];
      number[part] = r;
    }
    own = owners.part_of(0, mesh.rank());
  }
  std::size_t size() const { return member.size(); }
};

void check_owners(const Layout& owners) {
  if (owners.dims() != 1)
    throw ShapeError(str("ghost_rows: owners ", owners, " are not a list of rows [n]."));
}

/// Whether `ghosts` are ascending rows, each once, of others.
bool valid(const Layout& owners, Interval own, const std::vector<std::int64_t>& ghosts) {
  const std::int64_t n = owners.shape()[0];
  for (std::size_t i = 0; i < ghosts.size(); ++i) {
    const std::int64_t row = ghosts[i];
    if (row < 0 || row >= n || (row >= own.lo && row < own.hi)) return false;
    if (i > 0 && ghosts[i - 1] >= row) return false;
  }
  return true;
}

[[noreturn]] void throw_wrong(std::int64_t n) {
  throw ShapeError(
      str("ghost_rows: the rows that some rank asks for are not ascending rows of "
          "others among ",
          n, ". Sort them and leave out repeats and own rows."));
}

/// The rows of `ghosts` that lie in `part`.
std::vector<std::int64_t> within(const std::vector<std::int64_t>& ghosts, Interval part) {
  const auto lo = std::lower_bound(ghosts.begin(), ghosts.end(), part.lo);
  const auto hi = std::lower_bound(lo, ghosts.end(), std::max(part.lo, part.hi));
  return {lo, hi};
}

/// `wanted`: numbers of ghosts by part; `served`: global rows that each part wants of this one.
std::shared_ptr<const Plan> finish_plan(const Layout& owners,
                                        const Parts& parts,
                                        const std::vector<std::int64_t>& ghosts,
                                        const std::vector<std::int64_t>& wanted,
                                        const std::vector<std::vector<std::int64_t>>& served) {
  static std::uint64_t last_id = 0;
  const Mesh& mesh = owners.mesh();
  const Interval own = owners.local_box()[0];
  const auto plan = std::make_shared<Plan>();
  plan->id = ++last_id;
  plan->owners = owners;
  plan->local = static_cast<std::int64_t>(ghosts.size());
  Bounds bounds{0};
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Interval part = owners.owned(0, parts.member[p]);
    bounds.push_back(bounds.back() + part.size() + wanted[p]);
    plan->total += wanted[p];
    const int process = mesh.process_of(parts.member[p]);
    const auto asked = static_cast<std::int64_t>(within(ghosts, part).size());
    if (asked > 0) plan->from.push_back({process, asked});
    if (served[p].empty()) continue;
    plan->to.push_back({process, static_cast<std::int64_t>(served[p].size())});
    for (const std::int64_t row : served[p]) plan->served.push_back(row - own.lo);
  }
  std::vector<std::int64_t> rows;
  rows.reserve(static_cast<std::size_t>(own.size() + plan->local));
  for (std::int64_t row = own.lo; row < own.hi; ++row) rows.push_back(row);
  rows.insert(rows.end(), ghosts.begin(), ghosts.end());
  DimSplit split = owners.split(0);
  if (!split.axes.empty()) split.bounds = bounds;
  plan->rows = Tensor::from_local(index_view(rows),
                                  Layout::make(mesh, {owners.shape()[0] + plan->total}, {split}));
  remember(plan);
  return plan;
}

}  // namespace

GhostRows GhostRows::make(const Layout& owners, const std::vector<std::int64_t>& ghosts) {
  check_owners(owners);
  const Parts parts(owners);
  const parallel::CallInfo info{"ghost_rows", owners, {}};
  // A negative number tells the others of a list that is wrong: all throw together.
  const auto counts = parallel::all_gather_counts(
      parts.group,
      valid(owners, owners.local_box()[0], ghosts) ? static_cast<std::int64_t>(ghosts.size()) : -1,
      info);
  if (std::find(counts.begin(), counts.end(), -1) != counts.end()) throw_wrong(owners.shape()[0]);
  // The group's members need not be in the order of the parts.
  const std::size_t count = parts.size();
  std::vector<std::int64_t> wanted(count);
  std::vector<std::vector<std::int64_t>> asked(count);
  std::vector<std::int64_t> want(count, 0);
  for (std::size_t p = 0; p < count; ++p) {
    const std::size_t r = parts.number[p];
    wanted[p] = counts[r];
    asked[r] = within(ghosts, owners.owned(0, parts.member[p]));
    want[r] = static_cast<std::int64_t>(asked[r].size());
  }
  std::vector<std::int64_t> requests;
  for (const auto& list : asked) requests.insert(requests.end(), list.begin(), list.end());
  std::vector<std::int64_t> serve(count, 0);
  const std::vector<std::int64_t> one(count, sizeof(std::int64_t));
  parallel::all_to_all(parts.group, want.data(), one, serve.data(), one, info).wait();
  std::vector<std::int64_t> rows(
      static_cast<std::size_t>(std::accumulate(serve.begin(), serve.end(), std::int64_t{0})));
  parallel::all_to_all(parts.group, requests.data(), bytes_of(want), rows.data(), bytes_of(serve),
                       info)
      .wait();
  std::vector<std::vector<std::int64_t>> by_member(count);
  auto at = rows.begin();
  for (std::size_t r = 0; r < count; ++r) {
    by_member[r].assign(at, at + serve[r]);
    at += serve[r];
  }
  std::vector<std::vector<std::int64_t>> served(count);
  for (std::size_t p = 0; p < count; ++p) served[p] = std::move(by_member[parts.number[p]]);
  GhostRows result;
  result.plan_ = finish_plan(owners, parts, ghosts, wanted, served);
  return result;
}

GhostRows GhostRows::make_known(const Layout& owners,
                                const std::vector<std::vector<std::int64_t>>& ghosts) {
  check_owners(owners);
  const Parts parts(owners);
  if (ghosts.size() != parts.size()) {
    throw ShapeError(str("ghost_rows: ", ghosts.size(), " lists of ghosts for ", parts.size(),
                         " parts. Give one for each."));
  }
  const Interval own = owners.local_box()[0];
  std::vector<std::int64_t> wanted;
  std::vector<std::vector<std::int64_t>> served;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (!valid(owners, owners.owned(0, parts.member[p]), ghosts[p])) throw_wrong(owners.shape()[0]);
    wanted.push_back(static_cast<std::int64_t>(ghosts[p].size()));
    served.push_back(within(ghosts[p], own));
  }
  GhostRows result;
  result.plan_ =
      finish_plan(owners, parts, ghosts[static_cast<std::size_t>(parts.own)], wanted, served);
  return result;
}

const Layout& GhostRows::owners() const { return plan_->owners; }
const Tensor& GhostRows::rows() const { return plan_->rows; }
std::int64_t GhostRows::total() const { return plan_->total; }
std::int64_t GhostRows::local() const { return plan_->local; }
std::int64_t GhostRows::sent() const { return static_cast<std::int64_t>(plan_->served.size()); }

Tensor ghost_rows(const Tensor& x, const GhostRows& ghosts) {
  if (ghosts.total() == 0) return x;
  return call(rows_op, {x, ghosts.rows()}, PlanArgs{ghosts.plan()->id});
}

GhostRowsInFlight start_ghost_rows(const Tensor& x, const GhostRows& ghosts) {
  if (ghosts.total() == 0) return x;
  GhostRowsInFlight started =
      Tensor(call(rows_op, {x, ghosts.rows()}, PlanArgs{ghosts.plan()->id, 1}));
  started.ghosts_ = ghosts;
  return started;
}

void GhostRowsInFlight::arrive() const {
  if (ghosts_.defined()) tessera::arrive(rows_);
}

Tensor GhostRowsInFlight::early() const {
  return ghosts_.defined()
             ? Tensor(call(wait_op, {rows_, ghosts_.rows()}, PlanArgs{ghosts_.plan()->id, 1}))
             : rows_;
}

Tensor GhostRowsInFlight::wait() const {
  arrive();
  return early();
}

Tensor ghost_sum(const Tensor& y, const GhostRows& ghosts) {
  if (ghosts.total() == 0) return y;
  return call(sum_op, {y, ghosts.rows()}, PlanArgs{ghosts.plan()->id});
}

}  // namespace tessera
