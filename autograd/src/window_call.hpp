#pragma once

#include <memory>
#include <tessera/autograd/observe.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/parallel/exchange.hpp>
#include <vector>

namespace tessera {

/// One call of `op.local`; in a dry run only where it takes scratch memory.
inline void run_local(const OpDef& op, const LocalCall& call) {
  if (dry_run() && !op.takes_scratch) [[unlikely]]
    return;
  op.local(call);
}

/// How one rank computes its part of an op that reads windows: the exchange of each input, the work
/// box cut into what can be computed before ghosts arrive and the few boxes around it, and the
/// virtual boxes of folded outputs. Made once per decision, a pure function of global metadata.
class WindowCall {
 public:
  /// `problem.in` are the layouts that the inputs are brought to.
  WindowCall(const OpDef& op, const Problem& problem, std::span<const Layout> outputs);

  /// Exchanges and computes. Pieces are this rank's parts (null data where absent).
  void run(const OpDef& op,
           const ArgsRef& args,
           std::span<const Piece> in,
           std::span<const Piece> out) const;

  /// Bytes and messages that this rank sends for halos.
  std::int64_t send_bytes() const { return send_bytes_; }
  int send_messages() const { return send_messages_; }
  /// What this rank reads beyond its parts.
  std::vector<WindowWidth> widths() const;
  /// Share of the work that waits for no halo.
  double interior_share() const;

 private:
  struct Input {
    int index = 0;
    std::vector<Window> windows;  // per dimension; need is null where there is none
    std::shared_ptr<const parallel::ExchangePlan> plan;
  };
  class Runner;

  Box needed(const Input& input, const Box& work, const Layout& layout) const;

  Mesh mesh_;
  int work_ = OpDef::kOutput;
  Layout work_layout_;
  std::vector<Layout> in_layouts_;
  std::vector<Layout> out_layouts_;
  std::vector<Input> inputs_;
  parallel::WorkSplit split_;
  std::shared_ptr<const parallel::ExchangePlan> fold_;  // of output 0; null when nothing folds
  bool local_only_ = false;                             // everything needed is owned
  std::int64_t send_bytes_ = 0;
  int send_messages_ = 0;
};

/// Below this many bytes of windowed input on this rank, cutting off the interior costs more than
/// it hides (the README has the measurement).
inline constexpr std::int64_t kOverlapThreshold = 256 << 10;
/// Tests set it to 0 or a huge value to take either way.
void set_overlap_threshold(std::int64_t bytes);

}  // namespace tessera
