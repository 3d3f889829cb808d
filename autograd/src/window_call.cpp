#include "window_call.hpp"

#include <algorithm>
#include <optional>
#include <tessera/core/threads.hpp>

namespace tessera {

namespace {

std::int64_t overlap_threshold = kOverlapThreshold;

/// A boundary box is computed from a dense copy of its window; larger windows are computed in
/// slices of this size.
constexpr std::int64_t kScratchBytes = 4 << 20;

Interval clipped(Interval need, EdgeRule edge, std::int64_t n) {
  return edge == EdgeRule::kZero ? intersect(need, {0, n}) : need;
}

}  // namespace

void set_overlap_threshold(std::int64_t bytes) { overlap_threshold = bytes; }

WindowCall::WindowCall(const OpDef& op, const Problem& problem, std::span<const Layout> outputs)
    : mesh_(outputs[0].mesh()),
      work_(op.work),
      work_layout_(op.work == OpDef::kOutput ? outputs[0]
                                             : problem.in[static_cast<std::size_t>(op.work)]),
      in_layouts_(problem.in.begin(), problem.in.end()),
      out_layouts_(outputs.begin(), outputs.end()) {
  const int rank = mesh_.rank();
  std::vector<Window> windows;
  if (op.windows != nullptr) op.windows(problem, windows);
  std::vector<Fold> folds;
  if (op.folds != nullptr) op.folds(problem, folds);

  // The work of any rank along a dimension, with the virtual elements of folded outputs at the ends
  // of the domain.
  const auto work_interval = [this, folds](int dim, int r) {
    Interval work = work_layout_.owned(dim, r);
    for (const Fold& fold : folds) {
      if (work_ != OpDef::kOutput || fold.dim != dim || work.empty()) continue;
      if (work.lo == 0) work.lo -= fold.lo;
      if (work.hi == work_layout_.shape()[dim]) work.hi += fold.hi;
    }
    return work;
  };

  std::vector<Interval> interior;
  const Box work = work_layout_.owned(rank);
  for (int d = 0; d < work.dims(); ++d) interior.push_back(work[d]);

  std::int64_t bytes = 0;
  for (int i = 0; i < static_cast<int>(problem.in.size()); ++i) {
    const Layout& layout = problem.in[static_cast<std::size_t>(i)];
    Input input;
    input.index = i;
    bool any = false;
    for (const Window& window : windows) {
      if (window.input != i) continue;
      input.windows.resize(static_cast<std::size_t>(layout.dims()));
      input.windows[static_cast<std::size_t>(window.in_dim)] = window;
      any = true;
    }
    if (!any) continue;
    std::vector<EdgeRule> edges(static_cast<std::size_t>(layout.dims()), EdgeRule::kZero);
    for (int d = 0; d < layout.dims(); ++d) {
      if (input.windows[static_cast<std::size_t>(d)].need)
        edges[static_cast<std::size_t>(d)] = input.windows[static_cast<std::size_t>(d)].edge;
    }
    const auto needed = [&](int dim, int r) -> Interval {
      const Window& window = input.windows[static_cast<std::size_t>(dim)];
      if (!window.need) return layout.owned(dim, r);
      const Interval w = work_interval(window.work_dim, r);
      if (w.empty()) return {0, 0};
      return window.need(w);
    };
    input.plan = std::make_shared<const parallel::ExchangePlan>(
        parallel::plan_window(layout, edges, rank, needed));
    send_bytes_ += input.plan->send_bytes(problem.dtypes[static_cast<std::size_t>(i)]);
    send_messages_ = std::max(send_messages_, input.plan->send_messages());
    for (int d = 0; d < layout.dims(); ++d) {
      const Window& window = input.windows[static_cast<std::size_t>(d)];
      if (!window.need) continue;
      Interval& inner = interior[static_cast<std::size_t>(window.work_dim)];
      inner = intersect(inner,
                        parallel::interior_interval(work[window.work_dim], layout.owned(d, rank),
                                                    layout.shape()[d], window.edge, window.need));
    }
    bytes += layout.owned(rank).volume() *
             static_cast<std::int64_t>(size_of(problem.dtypes[static_cast<std::size_t>(i)]));
    inputs_.push_back(std::move(input));
  }

  split_ = parallel::split_work(work, interior);
  if (bytes < overlap_threshold && !split_.boundary.empty()) {
    split_.interior = Box(work.lo, work.lo);
    split_.boundary = {work};
  }

  const auto moves_nothing = [](const Input& input) {
    return !input.plan->communicates() && input.plan->images.empty();
  };
  local_only_ = folds.empty() && std::all_of(inputs_.begin(), inputs_.end(), moves_nothing);
  if (!folds.empty()) {
    const Layout& out = out_layouts_[0];
    std::vector<EdgeRule> edges(static_cast<std::size_t>(out.dims()), EdgeRule::kZero);
    for (const Fold& fold : folds) edges[static_cast<std::size_t>(fold.dim)] = fold.edge;
    fold_ = std::make_shared<const parallel::ExchangePlan>(
        parallel::plan_window(out, edges, rank, work_interval));
    send_bytes_ +=
        fold_->receive_bytes(problem.out[0].dtype);  // the adjoint sends what the plan receives
    send_messages_ += fold_->receive_messages();
  }
}

/// The virtual box of an input that `work` needs, without what no edge rule fills.
Box WindowCall::needed(const Input& input, const Box& work, const Layout& layout) const {
  Box box = input.plan->owned;
  for (int d = 0; d < box.dims(); ++d) {
    const Window& window = input.windows[static_cast<std::size_t>(d)];
    if (!window.need) continue;
    const Interval w = work[window.work_dim];
    box.set(d, w.empty() ? Interval{box.lo[d], box.lo[d]}
                         : clipped(window.need(w), window.edge, layout.shape()[d]));
  }
  return box;
}

double WindowCall::interior_share() const {
  const auto inner = static_cast<double>(split_.interior.volume());
  double all = inner;
  for (const Box& box : split_.boundary) all += static_cast<double>(box.volume());
  return all > 0.0 ? inner / all : 0.0;
}

std::vector<WindowWidth> WindowCall::widths() const {
  std::vector<WindowWidth> widths;
  for (const Input& input : inputs_) {
    const Box& owned = input.plan->owned;
    WindowWidth width;
    width.input = input.index;
    for (int d = 0; d < owned.dims(); ++d) {
      const Interval need =
          clipped(input.plan->needed[d], input.windows[static_cast<std::size_t>(d)].edge,
                  input.plan->global[d]);
      width.lo.push_back(need.empty() ? 0 : std::max<std::int64_t>(0, owned.lo[d] - need.lo));
      width.hi.push_back(need.empty() ? 0 : std::max<std::int64_t>(0, need.hi - owned.hi[d]));
    }
    widths.push_back(std::move(width));
  }
  return widths;
}

/// One execution.
class WindowCall::Runner {
 public:
  Runner(const WindowCall& plan,
         const OpDef& op,
         const ArgsRef& args,
         std::span<const Piece> in,
         std::span<const Piece> out)
      : plan_(plan),
        op_(op),
        args_(args),
        in_(in.begin(), in.end()),
        out_(out.begin(), out.end()) {}

  void run() {
    std::vector<parallel::WindowInput> windowed;
    for (const Input& input : plan_.inputs_)
      windowed.push_back({input.plan, in_[static_cast<std::size_t>(input.index)]});
    exchange_.emplace(plan_.mesh_, windowed, parallel::CallInfo{op_.name, plan_.work_layout_, {}});

    const bool reads_work = plan_.work_ != OpDef::kOutput;
    const bool nothing = plan_.split_.interior.empty() && plan_.split_.boundary.empty();
    if (!plan_.split_.interior.empty() || (nothing && reads_work))
      owned_call(plan_.split_.interior);
    exchange_->wait();
    for (const Box& box : plan_.split_.boundary) boundary_call(box);
    if (plan_.fold_) fold();
  }

 private:
  /// From the owned memory alone.
  void owned_call(const Box& box) { call(box, in_, out_); }

  void boundary_call(const Box& box) { windowed_call(box, out_); }

  /// Computes `box` of the work from assembled windows, in slices that keep the copies small.
  void windowed_call(const Box& box, const std::vector<Piece>& out) {
    std::int64_t bytes = 0;
    for (const Input& input : plan_.inputs_) {
      const Piece& own = in_[static_cast<std::size_t>(input.index)];
      bytes += plan_.needed(input, box, plan_.in_layouts_[static_cast<std::size_t>(input.index)])
                   .volume() *
               static_cast<std::int64_t>(size_of(own.view.dtype));
    }
    if (bytes > kScratchBytes) {
      for (int d = 0; d < box.dims(); ++d) {
        if (box[d].size() < 2) continue;
        const std::int64_t middle = box.lo[d] + box[d].size() / 2;
        Box half = box;
        half.hi[d] = middle;
        windowed_call(half, out);
        half.hi[d] = box.hi[d];
        half.lo[d] = middle;
        windowed_call(half, out);
        return;
      }
    }
    std::vector<Piece> in = in_;
    std::vector<Ref<Buffer>> scratch;
    for (std::size_t w = 0; w < plan_.inputs_.size(); ++w) {
      const Input& input = plan_.inputs_[w];
      Piece& piece = in[static_cast<std::size_t>(input.index)];
      const Box region =
          plan_.needed(input, box, plan_.in_layouts_[static_cast<std::size_t>(input.index)]);
      if (piece.box.contains(region)) continue;
      const AllocationScope scope(op_.name);
      scratch.push_back(MemoryPool::of(Device{}).allocate(
          static_cast<std::size_t>(region.volume()) * size_of(piece.view.dtype)));
      const View view = View::dense(scratch.back()->data(), piece.view.dtype, region.shape());
      exchange_->assemble(region, view, 0.0, static_cast<int>(w));
      piece = {view, region, piece.global};
    }
    call(box, in, out);
  }

  void call(const Box& box, const std::vector<Piece>& inputs, const std::vector<Piece>& outputs) {
    std::vector<Piece> in = inputs;
    std::vector<Piece> out = outputs;
    if (plan_.work_ == OpDef::kOutput) {
      for (Piece& piece : out)
        if (piece.global == out_[0].global) piece = piece.slice(box);
    } else {
      Piece& work = in[static_cast<std::size_t>(plan_.work_)];
      work = work.slice(box);
    }
    run_local(op_, {args_.data, args_.dynamic, in, out, called_ && plan_.work_ != OpDef::kOutput});
    called_ = true;
    poll_progress();
  }

  /// The virtual elements beyond the domain: computed box by box, then added to the elements they
  /// stand for.
  void fold() {
    parallel::AdjointExchange adjoint(plan_.mesh_,
                                      parallel::AdjointInput{plan_.fold_, out_[0].view.dtype},
                                      parallel::CallInfo{op_.name, plan_.out_layouts_[0], {}});
    for (const Box& outside : difference(plan_.fold_->needed, plan_.fold_->owned)) {
      const AllocationScope scope(op_.name);
      const Ref<Buffer> buffer = MemoryPool::of(Device{}).allocate(
          static_cast<std::size_t>(outside.volume()) * size_of(out_[0].view.dtype));
      std::vector<Piece> out = out_;
      out[0] = {View::dense(buffer->data(), out_[0].view.dtype, outside.shape()), outside,
                out_[0].global};
      windowed_call(outside, out);
      adjoint.add(outside, out[0].view);
    }
    adjoint.start();
    adjoint.finish(out_[0].view);
  }

  const WindowCall& plan_;
  const OpDef& op_;
  const ArgsRef& args_;
  std::vector<Piece> in_;
  std::vector<Piece> out_;
  std::optional<parallel::WindowExchange> exchange_;
  bool called_ = false;
};

void WindowCall::run(const OpDef& op,
                     const ArgsRef& args,
                     std::span<const Piece> in,
                     std::span<const Piece> out) const {
  if (local_only_) {
    run_local(op, {args.data, args.dynamic, in, out, false});
    return;
  }
  Runner(*this, op, args, in, out).run();
}

}  // namespace tessera
