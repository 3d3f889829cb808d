// The convolution over edges as the 5-linear form S(g, u, y, h, w): one record gives its
// derivatives by any set of arguments (by g alone: the convolution), and derivatives of those are
// again derivatives of S in which a cotangent has taken the place of an argument.

#include <array>
#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/equivariant.hpp>
#include <tessera/kernels/equivariant.hpp>

#include "broadcast.hpp"
#include "ghosts_in_flight.hpp"
#include "summed.hpp"

namespace tessera {

namespace {

constexpr int kSlots = 5;
enum Input { kG, kU, kY, kH, kW, kSenders, kReceivers, kFirstRow };

/// Bit s of `wanted`: an output for slot s. Where it is the only one, that input is absent and
/// `like` is its layout; otherwise all inputs are given.
struct ConvolutionArgs {
  std::int64_t wanted;
  std::int64_t l_in, l_edge, l_out;
};

extern const OpDef convolution_op;

bool wants(const ConvolutionArgs& args, int slot) { return (args.wanted >> slot & 1) != 0; }

const kernels::TensorPaths& paths_of(const ConvolutionArgs& args) {
  return kernels::tensor_paths(static_cast<int>(args.l_in), static_cast<int>(args.l_edge),
                               static_cast<int>(args.l_out));
}

const Layout& layout_of(const Problem& problem, int slot) {
  const Layout& in = problem.in[static_cast<std::size_t>(slot)];
  return in.defined() ? in : problem.like;
}

void check(const Problem& problem) {
  const auto& args = problem.as<ConvolutionArgs>();
  const auto& paths = paths_of(args);
  std::array<Shape, kSlots> s;
  for (int i = 0; i < kSlots; ++i) s[static_cast<std::size_t>(i)] = layout_of(problem, i).shape();
  const Shape& senders = problem.shape(kSenders);
  const bool dims = s[kG].size() == 3 && s[kU].size() == 3 && s[kY].size() == 2 &&
                    s[kH].size() == 2 && s[kW].size() == 2 && senders.size() == 1;
  const bool table = problem.in[kFirstRow].defined();
  const bool fits =
      dims && s[kG][1] == paths.rows &&
      s[kU][1] == kernels::irreps_rows(static_cast<int>(args.l_in)) && s[kG][2] == s[kU][2] &&
      s[kY][1] == kernels::irreps_rows(static_cast<int>(args.l_edge)) && s[kY][0] == senders[0] &&
      s[kH][0] == senders[0] && problem.shape(kReceivers) == senders &&
      (table ? problem.shape(kFirstRow) == senders : s[kW][0] == s[kH][1]) &&
      s[kW][1] == paths.count() * s[kU][2];
  if (!fits) {
    throw ShapeError(str(
        "equivariant_convolution: u ", s[kU], ", y ", s[kY], ", h ", s[kH], ", w ", s[kW],
        ", senders ", senders, ", receivers ", problem.shape(kReceivers), " for ", paths.count(),
        " paths do not fit (needed are [R, (l_in + 1)^2, K], [E, (l_edge + 1)^2], [E, H], [H, P K],"
        " [E], [E])."));
  }
}

void infer(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<ConvolutionArgs>();
  check(problem);
  const DType dtype = problem.dtypes[problem.in[kH].defined() ? kH : kW];
  for (std::size_t i = 0; i < kSlots; ++i) {
    if (problem.in[i].defined() && problem.dtypes[i] != dtype) {
      throw DTypeError(str("equivariant_convolution: element types ", name(dtype), " and ",
                           name(problem.dtypes[i]), " are mixed. Use cast()."));
    }
  }
  if (dtype != DType::kFloat64 && dtype != DType::kFloat32) {
    throw DTypeError(str("equivariant_convolution: element type ", name(dtype),
                         " is neither f32 nor f64. Cast it first."));
  }
  for (int i = kSenders; i <= kFirstRow; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (problem.in[at].defined() && problem.dtypes[at] != DType::kInt32 &&
        problem.dtypes[at] != DType::kInt64) {
      throw DTypeError(str("equivariant_convolution: indices are ", name(problem.dtypes[at]),
                           ", not i32 or i64. Use cast()."));
    }
  }
  for (int slot = 0; slot < kSlots; ++slot)
    if (wants(args, slot)) out.push_back({layout_of(problem, slot).shape(), dtype});
}

/// Nodes, rows and edges split over the same axes, each with its own boundaries: no communication.
void signatures(const Problem& problem, const AxisGroup& group, std::vector<Signature>& legal) {
  const auto& args = problem.as<ConvolutionArgs>();
  const Layout nodes = layout_of(problem, kG);
  const Layout rows = layout_of(problem, kU);
  if (!group.splits(nodes, 0) || !group.splits(rows, 0) || !group.splits(problem.in[kSenders], 0))
    return;
  std::vector<int> slots;
  Signature s{.in = {}, .out = {}, .driver = kSenders, .bounds = {}};
  for (int i = 0; i <= kFirstRow; ++i) {
    const bool split = i != kW && problem.in[static_cast<std::size_t>(i)].defined();
    s.in.push_back(split ? shard_role(0) : replicate_role());
    slots.push_back(i);
  }
  for (int slot = 0; slot < kSlots; ++slot) {
    if (!wants(args, slot)) continue;
    s.out.push_back(slot == kW ? partial_role() : shard_role(0));
    slots.push_back(slot);
  }
  s.bounds = [slots, node_bounds = nodes.split(0).bounds, row_bounds = rows.split(0).bounds](
                 int t, const Bounds& edges) {
    const int slot = slots[static_cast<std::size_t>(t)];
    return slot == kG ? node_bounds : slot == kU ? row_bounds : edges;
  };
  legal.push_back(std::move(s));
}

struct Pieces {
  kernels::EdgeConvolution c;
  kernels::EdgeConvolutionGradients out;
};

Pieces pieces_of(const LocalCall& call) {
  const auto& args = call.as<ConvolutionArgs>();
  Pieces p;
  p.c.paths = &paths_of(args);
  View* const in[] = {&p.c.g, &p.c.u,       &p.c.y,         &p.c.h,
                      &p.c.w, &p.c.senders, &p.c.receivers, &p.c.first_row};
  for (std::size_t i = 0; i <= kFirstRow; ++i) *in[i] = call.in[i].view;
  View* const out[] = {&p.out.g, &p.out.u, &p.out.y, &p.out.h, &p.out.w};
  const Piece* nodes = &call.in[kG];
  const Piece* rows = &call.in[kU];
  std::size_t next = 0;
  for (int slot = 0; slot < kSlots; ++slot) {
    if (!wants(args, slot)) continue;
    *out[slot] = call.out[next].view;
    if (slot == kG && nodes->view.dims() == 0) nodes = &call.out[next];
    if (slot == kU && rows->view.dims() == 0) rows = &call.out[next];
    ++next;
  }
  p.c.receiver_origin = nodes->box.lo[0];
  p.c.node_count = nodes->view.shape[0];
  p.c.sender_origin = rows->box.lo[0];
  p.c.row_count = rows->view.shape[0];
  p.c.channels = rows->view.shape[2];
  return p;
}

void local(const LocalCall& call) {
  Pieces p = pieces_of(call);
  if (p.c.u.data != nullptr) {
    p.c.own_rows = rows_ahead_of_ghosts(p.c.u.data);
    if (p.c.own_rows >= 0) p.c.arrived = [data = p.c.u.data] { arrive(data); };
  }
  kernels::edge_convolution(p.c, p.out);
}

double cost(const LocalCall& call) {
  const Pieces p = pieces_of(call);
  return kernels::edge_convolution_cost(p.c, p.out);
}

void vjp(VjpContext& context) {
  const auto& args = context.as<ConvolutionArgs>();
  std::array<Tensor, kSlots> total;
  std::array<Tensor, kFirstRow + 1> in;
  for (int i = 0; i <= kFirstRow; ++i) in[static_cast<std::size_t>(i)] = input_or_none(context, i);
  int output = 0;
  for (int slot = 0; slot < kSlots; ++slot) {
    if (!wants(args, slot)) continue;
    const Tensor cotangent = context.grad(output++);
    if (!cotangent.defined()) continue;
    ConvolutionArgs next = args;
    next.wanted = 0;
    int last = 0;
    int count = 0;
    for (int i = 0; i < kSlots; ++i) {
      if (i == slot || !context.input_layout(i).defined() || !context.needs(i)) continue;
      next.wanted |= std::int64_t{1} << i;
      last = i;
      ++count;
    }
    if (count == 0) continue;
    auto arguments = in;
    arguments[static_cast<std::size_t>(slot)] = cotangent;
    Layout like;
    if (count == 1) {
      arguments[static_cast<std::size_t>(last)] = Tensor();
      like = context.input_layout(last).dual();
    }
    const auto& a = arguments;
    Outputs results =
        call(convolution_op,
             {a[kG], a[kU], a[kY], a[kH], a[kW], a[kSenders], a[kReceivers], a[kFirstRow]}, next,
             NoArgs{}, like);
    for (int i = 0, j = 0; i < kSlots; ++i) {
      if (!wants(next, i)) continue;
      Tensor& sum = total[static_cast<std::size_t>(i)];
      sum = sum.defined() ? summed(std::move(sum), std::move(results[j])) : std::move(results[j]);
      ++j;
    }
  }
  for (int i = 0; i < kSlots; ++i)
    if (total[static_cast<std::size_t>(i)].defined())
      context.set(i, total[static_cast<std::size_t>(i)]);
}

const OpDef convolution_op = {.name = "equivariant_convolution",
                              .infer = infer,
                              .signatures = signatures,
                              .takes_scratch = true,
                              .local = local,
                              .vjp = vjp,
                              .saved_inputs = 0xff,
                              .cost = cost};

}  // namespace

Tensor equivariant_convolution(const GhostRowsInFlight& u,
                               const Tensor& y,
                               const Tensor& h,
                               const Tensor& w,
                               const Tensor& senders,
                               const Tensor& receivers,
                               const ConvolutionPaths& paths,
                               const Layout& nodes,
                               const Tensor& first_row) {
  const Tensor rows = u.early();
  const ConvolutionArgs args{1 << kG, paths.l_in, paths.l_edge, paths.l_out};
  if (nodes.dims() < 1 || rows.dims() != 3) {
    throw ShapeError(
        str("equivariant_convolution: features ", rows.shape(),
            " are not [R, (l_in + 1)^2, K], or the layout of the nodes has no dimension."));
  }
  const Shape shape{nodes.shape()[0], paths_of(args).rows, rows.shape()[2]};
  const Layout like = Layout::replicated(nodes.mesh(), shape).with_dim(0, shape[0], nodes.split(0));
  // Otherwise the rows would be moved first.
  const bool in_place = senders.dims() > 0 &&
                        senders.layout().axes_of(0) == rows.layout().axes_of(0) &&
                        nodes.axes_of(0) == rows.layout().axes_of(0);
  if (!in_place) u.arrive();
  Tensor m = call(convolution_op, {Tensor(), rows, y, h, w, senders, receivers, first_row}, args,
                  NoArgs{}, like);
  u.arrive();  // nothing is left to wait for, unless no kernel has run
  return m;
}

}  // namespace tessera
