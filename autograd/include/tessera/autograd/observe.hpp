#pragma once

#include <span>
#include <string>
#include <tessera/autograd/op.hpp>
#include <tessera/core/scope.hpp>
#include <vector>

namespace tessera {

/// Elements that a call reads of one input beyond this rank's part, at each end of each dimension:
/// of other ranks, or what an edge rule makes of the domain's ends.
struct WindowWidth {
  int input = 0;
  Dims lo;
  Dims hi;
};

/// A call of an op that has just run.
struct OpCall {
  const OpDef& op;
  std::span<const Tensor> inputs;  ///< as given: before redistribution
  const Outputs& outputs;          ///< not yet on the tape
  std::vector<WindowWidth> windows;
  std::string variant;  ///< see OpDef::variant; mostly empty
  /// Share of this rank's work that is done while halos fly; 0 without windows.
  double interior = 0.0;
};

/// Sees every call of an op, in program order; current_scope() says for which layer.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void called(const OpCall& call) = 0;
  /// Whether called() looks at values of inputs: then no op writes its result over one.
  virtual bool reads_inputs() const { return false; }
};

/// Makes `observer` the one that sees the calls from now on, null: nobody. Returns the one before.
OpObserver* observe_ops(OpObserver* observer);

/// What to say of a call in the current scope whose result is the first that is not finite: "conv:
/// made a NaN or infinity from finite inputs in down.1.conv, forward (...)".
std::string made_not_finite(const OpDef& op, std::span<const Tensor> inputs);

}  // namespace tessera
