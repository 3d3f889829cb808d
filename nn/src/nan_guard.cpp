#include <algorithm>
#include <array>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/observe.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/core/scope.hpp>
#include <tessera/kernels/optim.hpp>
#include <tessera/nn/nan_guard.hpp>
#include <tessera/parallel/communicator.hpp>

#include "dense.hpp"
#include "random_draws.hpp"

namespace tessera::nn {
namespace {

/// Of this rank's part. In double the squares of any fp32 number add up to a finite sum.
bool is_finite(const Tensor& t) {
  const Tensor held = dense(t);
  const View view = held.local();
  return std::isfinite(kernels::sum_of_squares(std::span(&view, 1)));
}

/// Notes the first call on this rank that is given a NaN or infinity.
class FirstTrace : public OpObserver {
 public:
  FirstTrace() : previous_(observe_ops(this)) {}
  ~FirstTrace() override { observe_ops(previous_); }
  FirstTrace(const FirstTrace&) = delete;

  void called(const OpCall& call) override {
    calls_.push_back({call.op.name, current_scope()});
    if (first_ >= 0) return;
    for (const Tensor& x : call.inputs) {
      if (x.defined() && is_floating(x.dtype()) && !is_finite(x)) first_ = std::ssize(calls_) - 1;
    }
  }
  /// The first of all ranks, which make the same calls; empty: there is none. Every rank must call.
  std::string str(const Mesh& mesh) const;

 private:
  struct Place {
    const char* op;
    Scope scope;
  };
  OpObserver* previous_;
  std::vector<Place> calls_;
  std::int64_t first_ = -1;
};

template <std::size_t n>
void agree(const Mesh& mesh, std::array<std::int32_t, n>& flags) {
  if (mesh.size() == 1) return;
  parallel::all_reduce(parallel::Group::of(mesh, mesh.all_axes()), flags.data(), n, DType::kInt32,
                       ReduceOp::kMax, {.op = "NaN guard"})
      .wait();
}

std::string FirstTrace::str(const Mesh& mesh) const {
  const auto count = static_cast<std::int32_t>(calls_.size());
  std::array<std::int32_t, 1> place{first_ < 0 ? 0 : count - static_cast<std::int32_t>(first_)};
  agree(mesh, place);
  if (place[0] == 0) return "";
  const Place& found = calls_[static_cast<std::size_t>(count - place[0])];
  return tessera::str("; the first op to read it is ", found.op,
                      *found.scope.layer != '\0' ? " in " : "", found.scope.layer, ", ",
                      name(found.scope.phase));
}

}  // namespace

struct NanGuard::Finding {
  // The same on every rank.
  enum Loss : std::int32_t { kFinite, kInfinite, kNan } loss = kFinite;
  std::string gradient;  // path of the first parameter whose gradient is not finite

  bool bad() const { return loss != kFinite || !gradient.empty(); }
  std::string str() const {
    if (loss != kFinite) return loss == kNan ? "the loss is NaN" : "the loss is infinite";
    return "the gradient of " + gradient + " is NaN or infinite";
  }
};

NanGuard::NanGuard(const Mesh& mesh,
                   Module& model,
                   optim::Optimizer& optimizer,
                   const NanGuardOptions& options)
    : mesh_(mesh), model_(model), optimizer_(optimizer), options_(options) {}

NanGuard::Finding NanGuard::look(double loss) const {
  Finding finding;
  finish_gradients();
  const auto& parameters = optimizer_.parameters();
  const auto count = static_cast<std::int32_t>(parameters.size());
  std::int32_t first = count;
  for (std::int32_t i = 0; i < first; ++i) {
    const Parameter& p = parameters[static_cast<std::size_t>(i)];
    if (!p.here()) continue;
    const Tensor g = gradient(p.value());
    if (g.defined() && !is_finite(g)) first = i;
  }
  const std::int32_t kind = std::isfinite(loss) ? Finding::kFinite
                            : std::isnan(loss)  ? Finding::kNan
                                                : Finding::kInfinite;
  std::array<std::int32_t, 2> flags{kind, count - first};
  agree(mesh_, flags);
  finding.loss = static_cast<Finding::Loss>(flags[0]);
  if (flags[1] != 0) {
    finding.gradient = parameters[static_cast<std::size_t>(count - flags[1])].path();
  }
  return finding;
}

bool NanGuard::passes(std::int64_t step, double loss, const std::function<Tensor()>& forward) {
  if (dry_run()) return true;
  const Finding finding = look(loss);
  if (!finding.bad()) {
    in_row_ = 0;
    return true;
  }
  optimizer_.zero_grad();
  if (options_.on_nan == OnNan::kSkip && in_row_ < options_.most_skips) {
    ++in_row_;
    ++skipped_;
    return false;
  }
  std::string text = str("train: ", finding.str(), " in step ", step + 1);
  if (options_.on_nan == OnNan::kSkip) {
    text += str(", and ", in_row_, " steps before it were left out");
  }
  throw Error(str(text, " (", cause(forward),
                  "). Parameters are as before the step. Look there, lower the learning rate, or "
                  "leave such steps out (--on-nan skip)."));
}

std::string NanGuard::cause(const std::function<Tensor()>& forward) {
  for (const Parameter& p : optimizer_.parameters()) {
    std::array<std::int32_t, 1> bad{!p.here() || is_finite(p.value()) ? 0 : 1};
    agree(mesh_, bad);
    if (bad[0] != 0) return str("the parameter ", p.path(), " holds a NaN or infinity already");
  }
  for (const auto& [path, module] : model_.named_modules()) RandomDraws::set(*module, 0);
  std::string found;
  {
    const AnomalyMode watched;
    const FirstTrace trace;
    try {
      const Tensor again = forward();
      backward(again);
      const Finding finding = look(reduced(again.detach()).item());
      if (finding.loss != Finding::kFinite) {
        found =
            "no op makes it from finite values: the batch holds it, or a sum over the ranks "
            "went wrong" +
            trace.str(mesh_);
      } else if (!finding.gradient.empty()) {
        found =
            str("no op makes it from finite values: it arises when the gradients of the ranks "
                "are added, for ",
                finding.gradient);
      } else {
        found =
            "the same step, taken once more, is finite: a fault that comes and goes, of memory or "
            "of a transfer";
      }
    } catch (const CommError&) {
      throw;
    } catch (const Error& error) {
      found = error.what();
      found = found.substr(0, found.rfind(". Look at"));  // the advice for programs
    }
  }
  optimizer_.zero_grad();
  return found;
}

}  // namespace tessera::nn
