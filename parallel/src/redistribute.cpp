#include <algorithm>
#include <optional>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/parallel/plan_cache.hpp>
#include <tessera/parallel/redistribute.hpp>

#include "strided.hpp"

namespace tessera::parallel {

namespace {

Box relative(const Box& box, const Box& to) {
  Box local = box;
  for (int d = 0; d < box.dims(); ++d) local.set(d, {box.lo[d] - to.lo[d], box.hi[d] - to.lo[d]});
  return local;
}

std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

std::int64_t bytes_of(const Box& box, DType dtype) {
  return box.volume() * static_cast<std::int64_t>(size_of(dtype));
}

Ref<Buffer> allocate(std::int64_t bytes, Device device) {
  return MemoryPool::of(device).allocate(static_cast<std::size_t>(bytes));
}

/// Packs what is not dense into one block, and lists the messages.
struct Outgoing {
  std::vector<Send> messages;
  Ref<Buffer> packed;

  Outgoing(const Mesh& mesh, const View& values, const Box& held, std::span<const Transfer> sends) {
    std::vector<View> parts;
    std::int64_t bytes = 0;
    for (const Transfer& t : sends) {
      parts.push_back(values.slice(relative(t.box, held)));
      if (!parts.back().is_dense()) bytes += aligned(bytes_of(t.box, values.dtype));
    }
    if (bytes > 0) packed = allocate(bytes, values.device);
    bytes = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      View part = parts[i];
      if (!part.is_dense()) {
        part = View::dense(packed->data() + bytes, values.dtype, part.shape, values.device);
        kernels::copy(parts[i], part);
        bytes += aligned(bytes_of(sends[i].box, values.dtype));
      }
      messages.push_back(
          {mesh.process_of(sends[i].peer), part.data, bytes_of(sends[i].box, values.dtype)});
    }
  }
};

/// One step in flight: transfers by plan, or an all-reduce.
class Step {
 public:
  Step(const Tensor& x,
       std::shared_ptr<const RedistributionPlan> plan,
       const Layout& to,
       const char* op)
      : source_(x), plan_(std::move(plan)) {
    const Mesh& mesh = x.mesh();
    const DType dtype = x.dtype();
    const View own = x.local();
    const RedistributionPlan& p = *plan_;
    // A part that is not dense is copied: replicas of the result must not differ in strides, on
    // which the order of a sum may depend.
    aliased_ = p.receives.empty() && p.local.size() == 1 && p.local[0].box == p.target &&
               !p.target.empty() && own.slice(relative(p.target, p.owned)).is_dense();
    if (aliased_) {
      result_ = Tensor::alias(x, to, own.slice(relative(p.target, p.owned)));
    } else {
      result_ = Tensor::empty(to, dtype, x.device());
      sum_ = result_.local();
    }
    combines_ =
        std::any_of(p.receives.begin(), p.receives.end(),
                    [](const Transfer& t) { return !t.first; }) ||
        std::any_of(p.local.begin(), p.local.end(), [](const Transfer& t) { return !t.first; });
    if (combines_ && dtype == DType::kBFloat16 && p.combine == ReduceOp::kSum) {
      wide_ = allocate(p.target.volume() * 4, x.device());
      sum_ = View::dense(wide_->data(), DType::kFloat32, p.target.shape(), x.device());
    }
    if (p.filled) fill_neutral(sum_, p.fill);

    std::int64_t staged = 0;
    std::vector<bool> direct;
    for (const Transfer& t : p.receives) {
      direct.push_back(!combines_ && sum_.slice(relative(t.box, p.target)).is_dense());
      if (!direct.back()) staged += aligned(bytes_of(t.box, dtype));
    }
    if (staged > 0) staging_ = allocate(staged, x.device());
    std::vector<Recv> recvs;
    staged = 0;
    for (std::size_t i = 0; i < p.receives.size(); ++i) {
      const Transfer& t = p.receives[i];
      View& arrived = arrived_.emplace_back(sum_.slice(relative(t.box, p.target)));
      if (!direct[i]) {
        arrived = View::dense(staging_->data() + staged, dtype, t.box.shape(), x.device());
        staged += aligned(bytes_of(t.box, dtype));
      }
#ifndef NDEBUG
      poison(arrived);
#endif
      recvs.push_back({mesh.process_of(t.peer), arrived.data, bytes_of(t.box, dtype)});
    }
    Outgoing outgoing(mesh, own, p.owned, p.sends);
    packed_ = outgoing.packed;
    if (!recvs.empty() || !outgoing.messages.empty())
      request_ = exchange_messages(outgoing.messages, recvs, {op, x.layout(), x.device()});
  }

  Step(const Tensor& x, const Layout& to, AxisMask axes, const char* op)
      : result_(Tensor::empty(to, x.dtype(), x.device())), aliased_(true) {
    kernels::copy(x.local(), result_.local());
    const std::int64_t count = result_.local_shape().product();
    if (count == 0) return;  // for the whole group: its members own the same box
    request_ = all_reduce(Group::of(x.mesh(), axes), result_.local().data, count, x.dtype(),
                          x.layout().partial_op(), {op, x.layout(), x.device()});
  }

  bool poll() { return request_.test(); }

  Tensor finish() {
    request_.wait();
    if (aliased_) return result_;
    const RedistributionPlan& p = *plan_;
    std::size_t next = 0;
    const auto take = [&](const Transfer& t, const View& values) {
      const View target = sum_.slice(relative(t.box, p.target));
      if (target.data == values.data && target.dtype == values.dtype) return;  // received in place
      if (t.first) {
        kernels::copy(values, target);
      } else if (!wide_) {
        accumulate(values, target, p.combine);
      } else {
        const Ref<Buffer> widened = allocate(target.size() * 4, target.device);
        const View wide = View::dense(widened->data(), target.dtype, target.shape, target.device);
        kernels::copy(values, wide);
        accumulate(wide, target, p.combine);
      }
    };
    const auto take_until = [&](int rank) {
      for (; next < p.receives.size() && p.receives[next].peer < rank; ++next)
        take(p.receives[next], arrived_[next]);
    };
    for (const Transfer& t : p.local) {
      take_until(t.peer);
      take(t, source_.local().slice(relative(t.box, p.owned)));
    }
    take_until(source_.mesh().size());
    if (wide_) kernels::copy(sum_, result_.local());
    return result_;
  }

 private:
  Tensor source_;
  std::shared_ptr<const RedistributionPlan> plan_;
  Tensor result_;
  View sum_;
  Ref<Buffer> wide_;
  Ref<Buffer> staging_;
  Ref<Buffer> packed_;
  std::vector<View> arrived_;
  bool aliased_ = false;  // nothing is left to do once the messages are through
  bool combines_ = false;
  Request request_;  // last: its destructor waits before the buffers go
};

int checked_root(const char* op, const Mesh& mesh, int root) {
  if (root < 0 || root >= mesh.size()) {
    throw UsageError(str(op, ": root ", root, " is not a rank of the mesh (", mesh.size(),
                         " ranks). Use 0 to ", mesh.size() - 1, "."));
  }
  return root;
}

}  // namespace

struct Redistribution::State {
  Tensor current;
  const char* op = "";
  std::vector<RedistributionStep> steps;
  std::size_t next = 0;
  std::optional<Step> flight;

  void start() {
    const RedistributionStep& step = steps[next++];
    if (step.axes) {
      flight.emplace(current, step.to, step.axes, op);
    } else {
      flight.emplace(current, cached_redistribution_plan(current.layout(), step.to), step.to, op);
    }
  }
};

Redistribution::Redistribution(std::unique_ptr<State> state) : state_(std::move(state)) {}
Redistribution::Redistribution(Redistribution&&) noexcept = default;
Redistribution& Redistribution::operator=(Redistribution&&) noexcept = default;
Redistribution::~Redistribution() = default;

bool Redistribution::poll() { return !state_ || !state_->flight || state_->flight->poll(); }

Tensor Redistribution::wait() {
  if (!state_) throw UsageError("redistribute: wait() was called twice. Keep its result.");
  const std::unique_ptr<State> state = std::move(state_);
  while (state->flight) {
    state->current = state->flight->finish();
    state->flight.reset();
    if (state->next < state->steps.size()) state->start();
  }
  return state->current;
}

Redistribution start_redistribute(const Tensor& x, const Layout& to, const char* op) {
  auto state = std::make_unique<Redistribution::State>();
  state->op = op;
  state->current = x;
  state->steps = redistribution_steps(x.layout(), to);
  if (x.mesh().rank() < 0 && !state->steps.empty()) {
    state->current = Tensor::empty(to, x.dtype(), x.device());
    state->steps.clear();
  }
  if (!state->steps.empty()) state->start();
  return Redistribution(std::move(state));
}

Tensor redistribute(const Tensor& x, const Layout& to, const char* op) {
  if (x.layout() == to) return x;
  return start_redistribute(x, to, op).wait();
}

Tensor scatter(const Layout& layout, const View& values, int root) {
  const Mesh& mesh = layout.mesh();
  checked_root("scatter", mesh, root);
  const int rank = mesh.rank();
  Tensor result = Tensor::empty(layout, values.dtype);
  if (rank < 0) return result;
  const auto holds = [&](int r) {
    for (int a = 0; a < mesh.axis_count(); ++a)
      if ((layout.partial_axes() >> a & 1u) && mesh.coordinate(r, a) != 0) return false;
    return true;
  };
  if (!holds(rank)) fill_neutral(result.local(), layout.partial_op());
  const Box whole = Box::whole(layout.shape());
  Ref<Buffer> packed;
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  if (rank == root) {
    if (!(values.shape == layout.shape())) {
      throw ShapeError(str("scatter: the values have shape ", values.shape, " but layout ", layout,
                           " is one of ", layout.shape(), ". Pass the global value."));
    }
    std::vector<Transfer> transfers;
    for (int r = 0; r < mesh.size(); ++r) {
      const Box box = layout.owned(r);
      if (r != root && holds(r) && !box.empty()) transfers.push_back({r, box, true});
    }
    Outgoing outgoing(mesh, values, whole, transfers);
    packed = outgoing.packed;
    sends = std::move(outgoing.messages);
    if (holds(rank))
      kernels::copy(values.slice(relative(layout.local_box(), whole)), result.local());
  } else if (holds(rank) && !layout.local_box().empty()) {
    recvs.push_back(
        {mesh.process_of(root), result.local().data, bytes_of(layout.local_box(), values.dtype)});
  }
  if (!sends.empty() || !recvs.empty())
    exchange_messages(sends, recvs, {"scatter", layout, {}}).wait();
  return result;
}

Tensor gather_to(const Tensor& x, int root) {
  const Mesh& mesh = x.mesh();
  checked_root("gather_to", mesh, root);
  const Layout result = Layout::replicated(Mesh::single(mesh.process_of(root)), x.shape());
  if (mesh.rank() < 0) return Tensor::empty(result, x.dtype(), x.device());
  RedistributionPlan plan =
      plan_redistribution(x.layout(), Layout::replicated(mesh, x.shape()), mesh.rank());
  if (mesh.rank() == root) {
    plan.sends.clear();
  } else {
    std::erase_if(plan.sends, [&](const Transfer& t) { return t.peer != root; });
    plan.receives.clear();
    plan.local.clear();
    plan.target = result.local_box();
    plan.filled = false;
  }
  return Step(x, std::make_shared<const RedistributionPlan>(std::move(plan)), result, "gather_to")
      .finish();
}

Tensor replicate_values(const Tensor& x) {
  const Tensor everywhere = redistribute(x, Layout::replicated(x.mesh(), x.shape()));
  return Tensor::alias(everywhere, Layout::replicated(Mesh::self(), x.shape()), everywhere.local());
}

}  // namespace tessera::parallel
