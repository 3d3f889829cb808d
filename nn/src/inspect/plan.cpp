#include <algorithm>
#include <map>
#include <optional>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/observe.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/core/profile.hpp>
#include <tessera/nn/inspect/plan.hpp>
#include <tessera/parallel/make_transport.hpp>

namespace tessera::nn {
namespace {

using parallel::Call;
using parallel::CallKind;
using parallel::CommStats;
using parallel::Operation;
using parallel::Transport;

/// Books what happens under the layer and the phase that the program is in.
class Recorder : public OpObserver {
 public:
  Recorder(RankPlan& plan, Mesh mesh, bool events) : plan_(plan), mesh_(std::move(mesh)) {
    if (events) profile_.emplace();
  }

  void start() {
    plan_.layers.clear();
    plan_.sent = {};
    plan_.by_axes.clear();
    rows_.clear();
    MemoryPool::of({}).reset_peak();
    plan_.rest_bytes = MemoryPool::of({}).stats().live_bytes;
    plan_.peak_bytes = plan_.rest_bytes;
    recording_ = true;
    if (profile_) profile_->start();
  }
  void stop() {
    note_memory(row());
    recording_ = false;
    if (profile_) {
      profile_->stop();
      list_events();
    }
  }

  void called(const OpCall& call) override {
    if (!recording_) return;
    LayerPlan& layer = row();
    note_memory(layer);
    if (profile_) {
      // A ring computes with one part while the next one comes.
      const bool ring = call.variant.find("ring") != std::string::npos;
      interior_[profile_->events().size()] = ring ? 1.0 : call.interior;
    }
    if (current_scope().phase != Phase::kForward) return;
    layer.live_bytes = MemoryPool::of({}).stats().live_bytes;
    layer.layout = call.outputs[0].layout().str();
    std::string op = call.op.name;
    if (!call.variant.empty()) op += "[" + call.variant + "]";
    if (std::find(layer.ops.begin(), layer.ops.end(), op) == layer.ops.end())
      layer.ops.push_back(op);
    for (const WindowWidth& width : call.windows) {
      widen(layer.window_lo, width.lo);
      widen(layer.window_hi, width.hi);
    }
  }

  void sent(const Call& call, std::int64_t messages, std::int64_t bytes) {
    if (!recording_) return;
    parallel::CommCounters& counters = plan_.sent.kinds[static_cast<std::size_t>(call.kind)];
    ++counters.calls;
    counters.messages += messages;
    counters.bytes += bytes;
    LayerPlan& layer = row();
    note_memory(layer);
    Traffic& traffic = current_scope().phase == Phase::kForward    ? layer.forward
                       : current_scope().phase == Phase::kBackward ? layer.backward
                                                                   : layer.update;
    traffic += {messages, bytes};
    book_axes(call, {messages, bytes});
    if (profile_ && messages > 0) {
      const bool background = std::string_view(current_scope().layer) == kBuckets;
      calls_.push_back({profile_->events().size(),
                        {.sent = {messages, bytes},
                         .exchange = call.kind == CallKind::kExchange && !background,
                         .background = background,
                         .phase = current_scope().phase}});
    }
  }

 private:
  static constexpr std::string_view kBuckets = "gradient buckets";

  /// A call, and how many ops had ended before it.
  struct Placed {
    std::size_t place;
    StepEvent event;
  };

  /// Which axes lie between this rank and a process of the dry run.
  AxisMask axes_to(int process) const {
    if (process == tessera::process().rank || process >= mesh_.size()) return 0;
    AxisMask axes = 0;
    for (int a = 0; a < mesh_.axis_count(); ++a) {
      if (mesh_.coordinate(process, a) != mesh_.coordinate(plan_.rank, a)) axes |= AxisMask{1} << a;
    }
    return axes;
  }

  const std::string& name_of(AxisMask axes) {
    std::string& name = names_[axes];
    if (!name.empty()) return name;
    for (int a = 0; a < mesh_.axis_count(); ++a) {
      if ((axes >> a & 1u) != 0) name += (name.empty() ? "" : "+") + mesh_.axis_name(a);
    }
    if (name.empty()) name = "self";
    return name;
  }

  void book_axes(const Call& call, const Traffic& all) {
    if (all.messages == 0) return;
    if (call.kind == CallKind::kExchange) {
      for (const parallel::Send& send : call.sends) {
        if (send.peer != process().rank)
          plan_.by_axes[name_of(axes_to(send.peer))] += {1, send.bytes};
      }
      return;
    }
    if (call.kind == CallKind::kSend || call.kind == CallKind::kRecv) {
      plan_.by_axes[name_of(axes_to(call.peer))] += all;
      return;
    }
    AxisMask axes = 0;
    for (const int process : call.group.processes()) axes |= axes_to(process);
    plan_.by_axes[name_of(axes)] += all;
  }

  void list_events() {
    std::map<std::uint32_t, std::uint32_t> layers;
    plan_.events.clear();
    plan_.layer_names.clear();
    std::size_t next = 0;
    const std::vector<ProfileEvent>& ops = profile_->events();
    for (std::size_t i = 0; i <= ops.size(); ++i) {
      for (; next < calls_.size() && calls_[next].place == i; ++next)
        plan_.events.push_back(calls_[next].event);
      if (i == ops.size() || ops[i].kind != ProfileKind::kOp) continue;
      const auto [it, fresh] =
          layers.try_emplace(ops[i].layer, static_cast<std::uint32_t>(plan_.layer_names.size()));
      if (fresh) plan_.layer_names.push_back(profile_->text_of(ops[i].layer));
      const auto inner = interior_.find(i);
      plan_.events.push_back({.op = ops[i].name,
                              .layer = it->second,
                              .flops = ops[i].flops,
                              .bytes = static_cast<double>(ops[i].bytes),
                              .interior = inner != interior_.end() ? inner->second : 0.0});
    }
  }

  static void widen(Dims& to, const Dims& by) {
    while (to.size() < by.size()) to.push_back(0);
    for (int d = 0; d < by.size(); ++d) to[d] = std::max(to[d], by[d]);
  }

  LayerPlan& row() {
    const auto [it, fresh] = rows_.try_emplace(current_scope().layer, plan_.layers.size());
    if (fresh) plan_.layers.push_back({.layer = current_scope().layer});
    return plan_.layers[it->second];
  }

  /// The peak since the last event belongs to what ran in between.
  void note_memory(LayerPlan& layer) {
    MemoryPool& pool = MemoryPool::of({});
    const std::int64_t peak = pool.stats().peak_bytes;
    layer.peak_bytes = std::max(layer.peak_bytes, peak);
    plan_.peak_bytes = std::max(plan_.peak_bytes, peak);
    pool.reset_peak();
  }

  RankPlan& plan_;
  Mesh mesh_;
  std::map<std::string_view, std::size_t> rows_;
  std::map<AxisMask, std::string> names_;
  std::optional<Profile> profile_;
  std::vector<Placed> calls_;
  std::map<std::size_t, double> interior_;
  bool recording_ = false;
};

/// Hands calls to a transport of the real kind, which a DryRun keeps from sending.
class CountingTransport : public Transport {
 public:
  explicit CountingTransport(Recorder& recorder) : recorder_(recorder) {}
  Ref<Operation> start(const Call& call) override {
    Ref<Operation> operation = host_->start(call);
    while (!operation->advance()) {
    }
    recorder_.sent(call, operation->messages(), operation->bytes());
    return operation;
  }

 private:
  Recorder& recorder_;
  std::unique_ptr<Transport> host_ = parallel::make_host_transport();
};

/// While alive, `recorder` sees ops and calls.
class Recording {
 public:
  explicit Recording(Recorder& recorder)
      : transport_(parallel::exchange_transport(Device::kCpu,
                                                std::make_unique<CountingTransport>(recorder))),
        observer_(observe_ops(&recorder)) {}
  ~Recording() {
    observe_ops(observer_);
    parallel::exchange_transport(Device::kCpu, std::move(transport_));
  }
  Recording(const Recording&) = delete;

 private:
  std::unique_ptr<Transport> transport_;
  OpObserver* observer_;
};

std::int64_t parameter_bytes(Module& model) {
  std::int64_t bytes = 0;
  for (const Parameter& p : model.parameters()) bytes += p.local_bytes();
  return bytes;
}

RankPlan plan_rank(const DryRun& dry,
                   const std::vector<MeshAxis>& axes,
                   int rank,
                   const MakeWorkload& make,
                   const PlanOptions& options) {
  RankPlan plan{.rank = rank};
  const Mesh mesh = dry.mesh(axes, rank);
  Recorder recorder(plan, mesh, options.events);
  const Recording recording(recorder);
  const std::unique_ptr<Workload> workload = make(mesh);
  workload->run(0);
  recorder.start();
  workload->run(1);
  recorder.stop();
  plan.parameter_bytes = parameter_bytes(workload->model());
  return plan;
}

int ranks_of(const std::vector<MeshAxis>& axes) {
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : axes) {
    ranks *= std::max(axis.size, 1);
    if (ranks > (1 << 24))
      throw UsageError("plan: a mesh of more than 2^24 ranks. Choose smaller axes.");
  }
  return static_cast<int>(ranks);
}

/// Ranks that stand for all: on each axis the ends, their neighbours and the middle.
std::vector<int> representatives(const std::vector<MeshAxis>& axes) {
  std::vector<int> ranks{0};
  for (const MeshAxis& axis : axes) {
    std::vector<int> at{0, 1, axis.size / 2, axis.size - 2, axis.size - 1};
    std::erase_if(at, [&](int c) { return c < 0 || c >= axis.size; });
    std::sort(at.begin(), at.end());
    at.erase(std::unique(at.begin(), at.end()), at.end());
    std::vector<int> longer;
    for (const int rank : ranks)
      for (const int c : at) longer.push_back(rank * axis.size + c);
    ranks = std::move(longer);
  }
  return ranks;
}

}  // namespace

void Workload::run(std::int64_t step) {
  backward(loss(step));
  update();
}

Traffic& Traffic::operator+=(const Traffic& other) {
  messages += other.messages;
  bytes += other.bytes;
  return *this;
}

RankPlan plan_rank(const std::vector<MeshAxis>& axes,
                   int rank,
                   const MakeWorkload& make,
                   const PlanOptions& options) {
  const DryRun dry(ranks_of(axes));
  return plan_rank(dry, axes, rank, make, options);
}

Plan plan_step(const std::vector<MeshAxis>& axes,
               const MakeWorkload& make,
               const PlanOptions& options) {
  Plan plan{.axes = axes, .ranks = ranks_of(axes)};
  const DryRun dry(plan.ranks);
  std::vector<int> ranks = options.ranks.empty() ? representatives(axes) : options.ranks;
  if (options.ranks.empty() && plan.ranks <= options.all_ranks) {
    ranks.clear();
    for (int r = 0; r < plan.ranks; ++r) ranks.push_back(r);
  }
  for (const int rank : ranks) plan.plans.push_back(plan_rank(dry, axes, rank, make, options));
  return plan;
}

RankPlan measure_rank(const Mesh& mesh, Workload& workload) {
  constexpr int kSteps = 6;
  RankPlan plan{.rank = mesh.rank()};
  MemoryPool& pool = MemoryPool::of({});
  workload.run(0);
  plan.rest_bytes = pool.stats().live_bytes;
  // Where other work delays a message its memory is held longer: the least of a few steps counts.
  for (int step = 1; step <= kSteps; ++step) {
    pool.reset_peak();
    const CommStats before = parallel::comm_stats();
    workload.run(step);
    plan.sent = parallel::comm_stats();
    for (std::size_t k = 0; k < plan.sent.kinds.size(); ++k) {
      plan.sent.kinds[k].calls -= before.kinds[k].calls;
      plan.sent.kinds[k].messages -= before.kinds[k].messages;
      plan.sent.kinds[k].bytes -= before.kinds[k].bytes;
    }
    const std::int64_t peak = pool.stats().peak_bytes;
    plan.peak_bytes = step == 1 ? peak : std::min(plan.peak_bytes, peak);
  }
  plan.parameter_bytes = parameter_bytes(workload.model());
  return plan;
}

}  // namespace tessera::nn
