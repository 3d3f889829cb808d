#include "profile_op.hpp"

#include <tessera/core/hash.hpp>
#include <tessera/core/scope.hpp>

#include "piece_of.hpp"

namespace tessera {

namespace {

std::string describe(std::span<const Tensor> inputs, const Outputs& outputs) {
  std::string text;
  for (const Tensor& x : inputs) {
    if (!text.empty()) text += ", ";
    text += x.defined() ? str(name(x.dtype()), " ", x.layout()) : std::string("-");
  }
  text += " ->";
  for (int j = 0; j < outputs.size(); ++j)
    text += str(j > 0 ? ", " : " ", name(outputs[j].dtype()), " ", outputs[j].layout());
  return text;
}

bool is_view(std::span<const Tensor> inputs, const Outputs& outputs) {
  return !inputs.empty() && inputs[0].defined() && outputs.size() == 1 &&
         inputs[0].buffer().get() == outputs[0].buffer().get();
}

}  // namespace

void profile_op(const OpDef& op,
                Profile::Clock::time_point start,
                std::span<const Tensor> inputs,
                const ArgsRef& args,
                const Outputs& outputs) {
  Profile* const p = profile();
  if (p == nullptr) return;
  const double seconds = p->seconds(Profile::Clock::now()) - p->seconds(start);
  std::array<Piece, kMaxInputs> in;
  std::array<Piece, kMaxOutputs> out;
  std::int64_t bytes = 0;
  Hasher key;
  key.add(reinterpret_cast<std::uintptr_t>(&op));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    in[i] = piece_of(inputs[i]);
    if (!inputs[i].defined()) continue;
    bytes += inputs[i].local_bytes();
    key.add(inputs[i].layout().id() * 8 + static_cast<std::uint64_t>(inputs[i].dtype()));
  }
  for (int j = 0; j < outputs.size(); ++j) {
    out[static_cast<std::size_t>(j)] = piece_of(outputs[j]);
    bytes += outputs[j].local_bytes();
    key.add(outputs[j].layout().id() * 8 + static_cast<std::uint64_t>(outputs[j].dtype()));
  }
  const bool view = is_view(inputs, outputs);
  const LocalCall call{args.data, args.dynamic, std::span(in.data(), inputs.size()),
                       std::span(out.data(), static_cast<std::size_t>(outputs.size()))};
  p->add({.kind = ProfileKind::kOp,
          .name = op.name,
          .start = p->seconds(start),
          .seconds = seconds,
          .flops = op.cost != nullptr ? op.cost(call) : 0.0,
          .bytes = view ? 0 : bytes,
          .live_bytes = MemoryPool::of(outputs[0].device()).stats().live_bytes,
          .layer = p->text(current_scope().layer),
          .detail = p->text(key.value(), [&] { return describe(inputs, outputs); })});
}

}  // namespace tessera
