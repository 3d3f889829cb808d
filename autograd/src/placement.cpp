#include "placement.hpp"

#include <algorithm>
#include <limits>

namespace tessera {

namespace {

constexpr double kForbidden = std::numeric_limits<double>::infinity();

/// What a group of axes does to a tensor at present.
struct State {
  enum Kind { kReplicate, kShard, kPartial, kMixed } kind = kReplicate;
  int dim = -1;
  bool splits = false;  // kMixed: whether any dimension is split by some of the axes
};

State state_of(const Layout& layout, AxisMask axes) {
  if (!layout.defined() || ((layout.split_axes() | layout.partial_axes()) & axes) == 0) return {};
  for (int d = 0; d < layout.dims(); ++d)
    if (layout.axes_of(d) == axes) return {State::kShard, d, true};
  if ((layout.partial_axes() & axes) == axes) return {State::kPartial, -1, false};
  return {State::kMixed, -1, (layout.split_axes() & axes) != 0};
}

/// The first input that is there.
const Layout& first_layout(const Problem& problem) {
  std::size_t i = 0;
  while (i + 1 < problem.in.size() && !problem.in[i].defined()) ++i;
  return problem.in[i];
}

const Mesh& mesh_of(const Problem& problem) {
  return problem.like.defined() ? problem.like.mesh() : first_layout(problem).mesh();
}

/// Axes belong together when they split one dimension of some tensor together.
std::vector<AxisGroup> find_groups(const Problem& problem) {
  const Mesh mesh = mesh_of(problem);
  std::vector<AxisMask> groups;
  const auto join = [&](AxisMask mask) {
    if (mask == 0) return;
    std::erase_if(groups, [&](AxisMask other) {
      if ((other & mask) == 0) return false;
      mask |= other;
      return true;
    });
    groups.push_back(mask);
  };
  const auto visit = [&](const Layout& layout) {
    if (!layout.defined()) return;
    for (int d = 0; d < layout.dims(); ++d) join(layout.axes_of(d));
    for (int a = 0; a < mesh.axis_count(); ++a) join(layout.partial_axes() & (AxisMask{1} << a));
  };
  for (const Layout& layout : problem.in) visit(layout);
  visit(problem.like);
  std::sort(groups.begin(), groups.end(),
            [](AxisMask a, AxisMask b) { return (a & -a) < (b & -b); });
  std::vector<AxisGroup> result;
  for (const AxisMask mask : groups) result.push_back({mesh, mask, mesh.parts(mask)});
  return result;
}

double bytes_outside(const Shape& shape, DType dtype, const Layout& layout, AxisMask axes) {
  double bytes = static_cast<double>(shape.product()) * static_cast<double>(size_of(dtype));
  if (layout.defined()) bytes /= layout.mesh().parts(layout.split_axes() & ~axes);
  return bytes;
}

/// The placement of one group under one signature.
class Candidate {
 public:
  Candidate(const Problem& problem, const AxisGroup& group, const Signature& signature)
      : problem_(problem), group_(group), signature_(signature) {}

  /// Whether the driver is now as the signature says; fixes the boundaries of all others.
  bool eligible() {
    const Role role = driver_role();
    const Layout& layout = driver_layout();
    if (!layout.defined()) return false;
    const State state = state_of(layout, group_.axes);
    switch (role.kind) {
      case Role::kReplicate:
        return state.kind == State::kReplicate;
      case Role::kPartial:
        return state.kind == State::kPartial && layout.partial_op() == signature_.partial_op;
      case Role::kShard:
      case Role::kWindow:
        if (state.kind != State::kShard || state.dim != role.dim) return false;
        split_ = layout.split(role.dim);
        return true;
    }
    return false;
  }

  double cost() const {
    double total = 0.0;
    for (int i = 0; i < static_cast<int>(problem_.in.size()); ++i) total += input_cost(i);
    for (std::size_t j = 0; j < problem_.out.size(); ++j) {
      if (signature_.out[j].kind == Role::kPartial) {
        total += 2.0 * share() *
                 bytes_outside(problem_.out[j].shape, problem_.out[j].dtype, first_layout(problem_),
                               group_.axes);
      }
    }
    return total;
  }

  /// The split of tensor `t` (inputs first) under this signature; no axes unless its role is a
  /// split one.
  DimSplit split_of(int t) const {
    const int inputs = static_cast<int>(problem_.in.size());
    const bool is_input = t < inputs;
    const Role role = is_input ? signature_.in[static_cast<std::size_t>(t)]
                               : signature_.out[static_cast<std::size_t>(t - inputs)];
    if (role.kind != Role::kShard && role.kind != Role::kWindow) return {};
    if (is_input && keeps_boundaries(t, role))
      return problem_.in[static_cast<std::size_t>(t)].split(role.dim);
    const std::int64_t n = is_input
                               ? problem_.shape(t)[role.dim]
                               : problem_.out[static_cast<std::size_t>(t - inputs)].shape[role.dim];
    Bounds bounds;
    if (signature_.bounds) {
      bounds = signature_.bounds(t, split_.bounds);
    } else if (!split_.bounds.empty() && split_.bounds.back() == n) {
      bounds = split_.bounds;
    } else {
      bounds = balanced_bounds(n, group_.parts);
    }
    return {axes_in_order(), std::move(bounds)};
  }

 private:
  double share() const { return (group_.parts - 1.0) / group_.parts; }

  Role driver_role() const {
    if (signature_.driver == Signature::kLike) return signature_.out[0];
    return signature_.in[static_cast<std::size_t>(signature_.driver)];
  }
  const Layout& driver_layout() const {
    return signature_.driver == Signature::kLike
               ? problem_.like
               : problem_.in[static_cast<std::size_t>(signature_.driver)];
  }
  std::vector<int> axes_in_order() const {
    if (!split_.axes.empty()) return split_.axes;
    std::vector<int> axes;
    for (int a = 0; a < group_.mesh.axis_count(); ++a)
      if (group_.axes >> a & 1u) axes.push_back(a);
    return axes;
  }

  /// A driver stays where it is, and a windowed input may be cut anywhere.
  bool keeps_boundaries(int input, const Role& role) const {
    const State state = state_of(problem_.in[static_cast<std::size_t>(input)], group_.axes);
    return state.kind == State::kShard && state.dim == role.dim &&
           (input == signature_.driver || role.kind == Role::kWindow);
  }

  double input_cost(int i) const {
    const auto u = static_cast<std::size_t>(i);
    const Layout& layout = problem_.in[u];
    if (!layout.defined()) return 0.0;
    const Role role = signature_.in[u];
    const State state = state_of(layout, group_.axes);
    const double bytes = bytes_outside(layout.shape(), problem_.dtypes[u], layout, group_.axes);
    switch (role.kind) {
      case Role::kReplicate:
        if (state.kind == State::kReplicate) return 0.0;
        if (!state.splits) return 2.0 * share() * bytes;
        return (signature_.may_gather >> i & 1u) ? share() * bytes : kForbidden;
      case Role::kPartial: {
        if (state.kind == State::kReplicate || state.splits) return 0.0;
        const bool same = layout.partial_op() == signature_.partial_op;
        return state.kind == State::kPartial && same ? 0.0 : 2.0 * share() * bytes;
      }
      case Role::kShard:
      case Role::kWindow:
        if (state.kind == State::kReplicate) return 0.0;
        if (state.kind == State::kShard && state.dim == role.dim) {
          const DimSplit wanted = split_of(i);
          return wanted == layout.split(role.dim) ? 0.0 : bytes / group_.parts;
        }
        return state.kind == State::kPartial ? share() * bytes : bytes / group_.parts;
    }
    return kForbidden;
  }

  const Problem& problem_;
  const AxisGroup& group_;
  const Signature& signature_;
  DimSplit split_;  // of the driver; no axes when it is not split
};

std::string axes_text(const AxisGroup& group) {
  std::string text;
  for (int a = 0; a < group.mesh.axis_count(); ++a)
    if (group.axes >> a & 1u) text += (text.empty() ? "" : "*") + group.mesh.axis_name(a);
  return text;
}

[[noreturn]] void no_placement(const OpDef& op, const Problem& problem, const AxisGroup& group) {
  std::string text =
      str(op.name, ": no placement fits on mesh axis ", axes_text(group), " (inputs");
  for (const Layout& layout : problem.in) text += layout.defined() ? str(" ", layout) : " -";
  if (problem.like.defined()) text += str(", result like ", problem.like);
  text += str(", mesh ", group.mesh.str(),
              "). Split another dimension, or call replicate(x) to gather explicitly.");
  throw LayoutError(text);
}

/// Collects the splits of one tensor over all groups.
struct Composed {
  std::vector<DimSplit> splits;
  AxisMask partial = 0;
  ReduceOp op = ReduceOp::kSum;

  /// What speaks against this role beside those of the groups before; empty: nothing.
  std::string conflict(const Role& role, ReduceOp partial_op) const {
    switch (role.kind) {
      case Role::kReplicate:
        return {};
      case Role::kPartial:
        if (partial == 0 || op == partial_op) return {};
        return str("a value would be a pending ", name(op), " and ", name(partial_op),
                   " at once. Call reduced(x) first.");
      case Role::kShard:
      case Role::kWindow:
        if (splits[static_cast<std::size_t>(role.dim)].axes.empty()) return {};
        return str("two groups of mesh axes would split dimension ", role.dim,
                   " of one tensor. Call replicate(x) on one of the inputs, or split along one.");
    }
    return {};
  }
  void apply(const Role& role, DimSplit split, AxisMask axes, ReduceOp partial_op) {
    if (role.kind == Role::kPartial) {
      partial |= axes;
      op = partial_op;
    } else if (role.kind != Role::kReplicate) {
      splits[static_cast<std::size_t>(role.dim)] = std::move(split);
    }
  }
};

/// The placement of all groups, one after the other.
class Composition {
 public:
  Composition(const OpDef& op, const Problem& problem, bool gathers)
      : op_(op), problem_(problem), gathers_(gathers), composed_(problem.in.size()) {
    for (std::size_t i = 0; i < inputs(); ++i)
      if (problem.in[i].defined())
        composed_[i].splits.resize(static_cast<std::size_t>(problem.in[i].dims()));
    for (const OutputMeta& out : problem.out)
      composed_.emplace_back().splits.resize(static_cast<std::size_t>(out.shape.size()));
  }

  void add(const AxisGroup& group) {
    std::vector<Signature> legal;
    if (op_.signatures != nullptr) op_.signatures(problem_, group, legal);
    // All-replicated is always legal; its driver is any tensor, so it needs no check.
    Signature replicated;
    replicated.in.assign(inputs(), replicate_role());
    replicated.out.assign(problem_.out.size(), replicate_role());
    // A gradient that has to be whole on every rank may gather what it is made of.
    const Layout& like = problem_.like;
    if (like.defined() && !(like.split_axes() & group.axes)) replicated.may_gather = ~0u;

    const Signature* best = nullptr;
    double best_cost = kForbidden;
    for (const Signature& signature : legal) {
      Candidate candidate(problem_, group, signature);
      if (!candidate.eligible()) continue;
      const double cost = candidate.cost();
      if (cost >= best_cost || (gathers_ && !conflict(group, signature).empty())) continue;
      best = &signature;
      best_cost = cost;
    }
    if (Candidate(problem_, group, replicated).cost() < best_cost || (gathers_ && best == nullptr))
      best = &replicated;
    if (best == nullptr) no_placement(op_, problem_, group);
    if (const std::string text = conflict(group, *best); !text.empty())
      throw LayoutError(str(op_.name, ": ", text));

    Candidate chosen(problem_, group, *best);
    if (best != &replicated) chosen.eligible();
    for (std::size_t t = 0; t < composed_.size(); ++t)
      if (counts(group, *best, t))
        composed_[t].apply(role(*best, t), chosen.split_of(static_cast<int>(t)), group.axes,
                           best->partial_op);
    if (best->run != nullptr) {
      placed_.run = best->run;
      placed_.run_axes |= group.axes;
    }
  }

  Placed placed(const Mesh& mesh) && {
    for (std::size_t i = 0; i < inputs(); ++i) {
      const Layout& given = problem_.in[i];
      placed_.in.push_back(given.defined() ? layout(mesh, given.shape(), composed_[i]) : Layout());
    }
    for (std::size_t j = 0; j < problem_.out.size(); ++j)
      placed_.out.push_back(layout(mesh, problem_.out[j].shape, composed_[inputs() + j]));
    return std::move(placed_);
  }

 private:
  std::size_t inputs() const { return problem_.in.size(); }
  const Role& role(const Signature& signature, std::size_t t) const {
    return t < inputs() ? signature.in[t] : signature.out[t - inputs()];
  }
  /// Whether the signature says anything of tensor `t`, inputs first.
  bool counts(const AxisGroup& group, const Signature& signature, std::size_t t) const {
    if (t >= inputs()) return true;
    if (!problem_.in[t].defined()) return false;
    // Every rank has all rows of the window already.
    return role(signature, t).kind != Role::kWindow ||
           state_of(problem_.in[t], group.axes).kind != State::kReplicate;
  }
  std::string conflict(const AxisGroup& group, const Signature& signature) const {
    for (std::size_t t = 0; t < composed_.size(); ++t) {
      if (!counts(group, signature, t)) continue;
      std::string text = composed_[t].conflict(role(signature, t), signature.partial_op);
      if (!text.empty()) return text;
    }
    if (signature.run == nullptr || placed_.run == nullptr || signature.run == placed_.run)
      return {};
    return str("two algorithms would be needed on mesh ", group.mesh.str(),
               ". Split along one group of axes only.");
  }
  static Layout layout(const Mesh& mesh, const Shape& shape, Composed& c) {
    return Layout::make(mesh, shape, std::move(c.splits), c.partial, c.op);
  }

  const OpDef& op_;
  const Problem& problem_;
  const bool gathers_;
  std::vector<Composed> composed_;  // of the inputs, then of the outputs
  Placed placed_;
};

}  // namespace

Placed choose_placement(const OpDef& op, const Problem& problem, bool gathers) {
  Composition all(op, problem, gathers);
  for (const AxisGroup& group : find_groups(problem)) all.add(group);
  return std::move(all).placed(mesh_of(problem));
}

}  // namespace tessera
