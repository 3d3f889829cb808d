#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <tessera/core/hash.hpp>
#include <tessera/core/scope.hpp>
#include <tessera/core/threads.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/redistribute.hpp>
#include <utility>

#include "piece_of.hpp"
#include "placement.hpp"
#include "profile_op.hpp"
#include "segment.hpp"
#include "tape.hpp"
#include "verbose.hpp"
#include "watched.hpp"
#include "window_call.hpp"

namespace tessera {

namespace {

/// What the decision depends on, and nothing else. Layout ids are never reused, and the decision
/// owns the layouts.
struct Key {
  const OpDef* op = nullptr;
  std::uint64_t like = 0;
  std::array<std::uint64_t, kMaxInputs> layouts{};
  std::array<DType, kMaxInputs> dtypes{};
  std::uint16_t inputs = 0;
  bool backward = false;
  std::uint32_t arg_bytes = 0;

  friend bool operator==(const Key&, const Key&) = default;
};

/// All that one call needs to know beside its tensors; the same for every call with the same key.
struct Decision : RefCounted {
  Key key;
  ArgBlob args;
  std::vector<Layout> in;  // as given: keeps their ids alive
  Layout like;
  std::vector<OutputMeta> metas;
  Placed placed;
  bool moves = false;  // whether any input is redistributed first
  std::unique_ptr<const WindowCall> windows;
};

/// Decisions by hash, direct-mapped: bounded, and one comparison per call. A colliding key takes
/// the place.
constexpr std::size_t kTableSize = 4096;

std::array<Ref<Decision>, kTableSize>& table() {
  static auto* instance = new std::array<Ref<Decision>, kTableSize>;
  return *instance;
}

OpObserver* observer = nullptr;

bool anomaly_mode = [] {
  const char* text = std::getenv("TESSERA_ANOMALY");
  return text != nullptr && text[0] != '\0' && text[0] != '0';
}();

Ref<Decision> decide(const OpDef& op,
                     std::span<const Tensor> inputs,
                     const ArgsRef& args,
                     const Layout& like,
                     const Key& key) {
  Ref<Decision> decision(new Decision);
  decision->key = key;
  decision->args.assign(args.data, args.bytes);
  decision->like = like;
  std::vector<DType> dtypes;
  Mesh mesh = like.defined() ? like.mesh() : Mesh();
  for (const Tensor& x : inputs) {
    decision->in.push_back(x.defined() ? x.layout() : Layout());
    dtypes.push_back(x.defined() ? x.dtype() : DType::kFloat32);
    if (!x.defined()) continue;
    if (!mesh.defined()) mesh = x.mesh();
    if (!(x.mesh() == mesh)) {
      throw LayoutError(str(op.name, ": tensors live on different meshes (", mesh.str(), " and ",
                            x.mesh().str(), "). Create them on one mesh."));
    }
  }
  Problem problem{decision->args.data(), decision->in, dtypes, like, {}};
  op.infer(problem, decision->metas);
  problem.out = decision->metas;
  decision->placed = choose_placement(op, problem, key.backward);
  for (std::size_t i = 0; i < decision->in.size(); ++i)
    decision->moves |= !(decision->in[i] == decision->placed.in[i]);
  if (op.windows != nullptr && decision->placed.run == nullptr && mesh.rank() >= 0) {
    problem.in = decision->placed.in;
    decision->windows = std::make_unique<WindowCall>(op, problem, decision->placed.out);
  }
  return decision;
}

const Ref<Decision>& find_decision(const OpDef& op,
                                   std::span<const Tensor> inputs,
                                   const ArgsRef& args,
                                   const Layout& like) {
  if (inputs.size() > kMaxInputs) {
    throw UsageError(str(op.name, ": ", inputs.size(), " inputs (at most ", kMaxInputs,
                         "). Call it on fewer at a time."));
  }
  Key key;
  key.op = &op;
  key.like = like.id();
  key.inputs = static_cast<std::uint16_t>(inputs.size());
  key.arg_bytes = static_cast<std::uint32_t>(args.bytes);
  key.backward = current_scope().phase == Phase::kBackward;
  Hasher hasher;
  // By name, not by address: ranks then lose the same decisions at the same calls.
  hasher.add(op.name_hash ^ (key.like << 32) ^ (key.backward ? 1u : 0u));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    key.layouts[i] = inputs[i].layout().id();
    key.dtypes[i] = inputs[i].dtype();
    hasher.add(key.layouts[i] * 8 + static_cast<std::uint64_t>(key.dtypes[i]));
  }
  hasher.add_bytes(args.data, args.bytes);
  Ref<Decision>& slot = table()[hasher.value() % kTableSize];
  if (!slot || !(slot->key == key) || std::memcmp(slot->args.data(), args.data, args.bytes) != 0) {
    slot = decide(op, inputs, args, like, key);
  }
  return slot;
}

bool all_finite(const View& view) {
  bool finite = true;
  for_each_index(Box::whole(view.shape), [&](const Index& index) {
    std::int64_t offset = 0;
    for (int d = 0; d < index.size(); ++d) offset += index[d] * view.strides[d];
    finite = finite && std::isfinite(load_as_double(view.data, view.dtype, offset));
  });
  return finite;
}

/// Agrees over the mesh whether this op is the first to make a non-finite value.
void check_anomaly(const OpDef& op, std::span<const Tensor> inputs, const Outputs& outputs) {
  std::int32_t made = 0;
  std::int32_t had = 0;
  for (const Tensor& x : inputs)
    if (x.defined() && is_floating(x.dtype()) && !all_finite(x.local())) had = 1;
  for (int j = 0; j < outputs.size(); ++j)
    if (is_floating(outputs[j].dtype()) && !all_finite(outputs[j].local())) made = 1;
  std::array<std::int32_t, 2> flags{made, had};
  const Mesh& mesh = outputs[0].mesh();
  if (mesh.size() > 1) {
    parallel::all_reduce(parallel::Group::of(mesh, mesh.all_axes()), flags.data(), 2, DType::kInt32,
                         ReduceOp::kMax, {"anomaly check", {}, {}})
        .wait();
  }
  if (flags[0] != 0 && flags[1] == 0) {
    throw Error(str(made_not_finite(op, inputs),
                    ". Look at the values that enter this op; a smaller learning rate or gradient "
                    "clipping may help."));
  }
}

/// Whether output 0 may take the memory of `op.overwrites`: its last reader is this call.
bool overwrites_input(const OpDef& op, const Decision& decision, std::span<const Tensor> inputs) {
  if (op.overwrites < 0 || op.vjp != nullptr || anomaly_mode) return false;
  if (observer != nullptr && observer->reads_inputs()) return false;
  const Tensor& x = inputs[static_cast<std::size_t>(op.overwrites)];
  return x.is_unshared() && x.layout() == decision.placed.out[0] &&
         x.dtype() == decision.metas[0].dtype && x.local().is_dense();
}

/// Computes the outputs of a decided call.
Outputs execute(const OpDef& op,
                const Decision& decision,
                std::span<const Tensor> inputs,
                const ArgsRef& args) {
  const AllocationScope scope(op.name);
  const std::size_t outputs_count = decision.metas.size();
  Outputs outputs;
  InlineVector<Piece, kMaxInputs> in;
  for (const Tensor& x : inputs) in.append([&] { return piece_of(x); });
  const std::span<const Piece> in_pieces(in.data(), inputs.size());

  if (op.alias != nullptr) {
    const Layout& layout = decision.placed.out[0];
    const Piece out{{nullptr, decision.metas[0].dtype, layout.local_shape(), {}},
                    layout.local_box(),
                    layout.shape()};
    const View view = op.alias({args.data, args.dynamic, in_pieces, std::span(&out, 1), false});
    if (view.data != nullptr) {
      outputs.push_back(Tensor::alias(inputs[0], layout, view));
      return outputs;
    }
  }
  if (overwrites_input(op, decision, inputs)) {
    const Tensor& x = inputs[static_cast<std::size_t>(op.overwrites)];
    outputs.push_back(Tensor::alias(x, x.layout(), x.local()));
  }
  for (auto j = static_cast<std::size_t>(outputs.size()); j < outputs_count; ++j) {
    outputs.push_back(Tensor::empty(decision.placed.out[j], decision.metas[j].dtype));
  }
  if (outputs[0].mesh().rank() < 0) return outputs;

  if (decision.placed.run != nullptr) {
    std::array<Tensor, kMaxOutputs> out;
    for (std::size_t j = 0; j < outputs_count; ++j) out[j] = outputs[static_cast<int>(j)];
    RunContext context{args.data, args.dynamic, inputs, std::span(out.data(), outputs_count),
                       decision.placed.run_axes};
    decision.placed.run(context);
    return outputs;
  }
  InlineVector<Piece, kMaxOutputs> out;
  for (std::size_t j = 0; j < outputs_count; ++j)
    out.append([&] { return piece_of(outputs[static_cast<int>(j)]); });
  const std::span<const Piece> out_pieces(out.data(), outputs_count);
  if (decision.windows) {
    decision.windows->run(op, args, in_pieces, out_pieces);
  } else {
    run_local(op, {args.data, args.dynamic, in_pieces, out_pieces, false});
  }
  return outputs;
}

Outputs compute(const OpDef& op,
                std::span<const Tensor> inputs,
                const ArgsRef& args,
                const Layout& like) {
  // Held: a call inside `local` or `run` may take the same place in the table.
  const Ref<Decision> decision = find_decision(op, inputs, args, like);
  Outputs outputs;
  if (decision->moves) {
    std::array<Tensor, kMaxInputs> moved;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined()) continue;
      const Layout& to = decision->placed.in[i];
      if (!(inputs[i].layout() == to)) verbose_redistribution(op.name, inputs[i].layout(), to);
      moved[i] =
          inputs[i].layout() == to ? inputs[i] : parallel::redistribute(inputs[i], to, op.name);
    }
    outputs = execute(op, *decision, std::span(moved.data(), inputs.size()), args);
  } else {
    outputs = execute(op, *decision, inputs, args);
  }
  if (verbose()) {
    verbose_op(op, inputs, outputs, decision->windows ? decision->windows->send_bytes() : 0,
               decision->windows ? decision->windows->send_messages() : 0);
  }
  if (observer != nullptr) [[unlikely]] {
    const Placed& placed = decision->placed;
    observer->called({op, inputs, outputs,
                      decision->windows ? decision->windows->widths() : std::vector<WindowWidth>{},
                      placed.run != nullptr && op.variant != nullptr
                          ? op.variant(args.data, placed.in, placed.run_axes)
                          : std::string(),
                      decision->windows ? decision->windows->interior_share() : 0.0});
  }
  if (anomaly_mode && !dry_run()) check_anomaly(op, inputs, outputs);
  return outputs;
}

/// A call inside of a recompute() that keeps the outputs of this op.
Outputs computed_once(const OpDef& op,
                      std::span<const Tensor> inputs,
                      const ArgsRef& args,
                      const Layout& like) {
  Outputs outputs = segment_run->kept_outputs();
  if (outputs.size() > 0) return outputs;
  {
    const SegmentPause pause;
    outputs = compute(op, inputs, args, like);
  }
  segment_run->keep_outputs(outputs);
  return outputs;
}

Outputs run_op(const OpDef& op,
               std::span<const Tensor> inputs,
               const ArgsRef& args,
               const Layout& like) {
  Outputs outputs = segment_run != nullptr && segment_run->keeps(op)
                        ? computed_once(op, inputs, args, like)
                        : compute(op, inputs, args, like);
  record(op, inputs, args, outputs);
  return outputs;
}

}  // namespace

bool calls_are_watched() { return observer != nullptr || anomaly_mode; }

OpObserver* observe_ops(OpObserver* next) { return std::exchange(observer, next); }

std::string made_not_finite(const OpDef& op, std::span<const Tensor> inputs) {
  const Scope& scope = current_scope();
  std::string text =
      str(op.name, ": made a NaN or infinity from finite inputs",
          *scope.layer != '\0' ? " in " : "", scope.layer, ", ", name(scope.phase), " (");
  for (int i = 0; const Tensor& x : inputs)
    text += (i++ > 0 ? ", " : "") + (x.defined() ? x.str() : std::string("-"));
  return text + ")";
}

AnomalyMode::AnomalyMode() : previous_(anomaly_mode) { anomaly_mode = true; }
AnomalyMode::~AnomalyMode() { anomaly_mode = previous_; }

Outputs dispatch(const OpDef& op,
                 std::span<const Tensor> inputs,
                 const ArgsRef& args,
                 const Layout& like) {
  const Profile* const recording = profile();
  if (recording == nullptr || !recording->records_ops()) [[likely]]
    return run_op(op, inputs, args, like);
  const auto start = Profile::Clock::now();
  Outputs outputs = run_op(op, inputs, args, like);
  profile_op(op, start, inputs, args, outputs);
  return outputs;
}

}  // namespace tessera
