#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
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

/// Of this rank's part. In double the squares of fp32 numbers add up to a finite sum, those of
/// large fp64 ones may not.
bool is_finite(const Tensor& t) {
  const Tensor held = dense(t);
  const View view = held.local();
  if (std::isfinite(kernels::sum_of_squares(std::span(&view, 1)))) return true;
  if (t.dtype() != DType::kFloat64) return false;
  const std::span values(view.as<const double>(), static_cast<std::size_t>(view.shape.product()));
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
}

/// The largest of all ranks for each.
void agree(const Mesh& mesh, std::span<std::int32_t> flags) {
  if (mesh.size() == 1) return;
  parallel::all_reduce(parallel::Group::of(mesh, mesh.all_axes()), flags.data(), std::ssize(flags),
                       DType::kInt32, ReduceOp::kMax, {.op = "NaN guard"})
      .wait();
}

/// How many parameters there are from the first on whose tensor is not finite on this rank; 0: all
/// are. The most of all ranks says which is the first anywhere.
template <class TensorOf>
std::int32_t from_first_bad(const std::vector<Parameter>& parameters, const TensorOf& tensor_of) {
  const auto bad = [&](const Parameter& p) {
    if (!p.here()) return false;
    const Tensor t = tensor_of(p);
    return t.defined() && !is_finite(t);
  };
  return static_cast<std::int32_t>(parameters.end() -
                                   std::find_if(parameters.begin(), parameters.end(), bad));
}

/// Notes what each call on this rank is given and makes, but communicates nothing: stages of a
/// pipeline make calls of their own.
class Trace : public OpObserver {
 public:
  /// `parameters` of a model on `mesh`.
  Trace(const Mesh& mesh, const std::vector<Parameter>& parameters)
      : mesh_(mesh), one_(parameters.front()), previous_(observe_ops(this)) {}
  ~Trace() override { observe_ops(previous_); }
  Trace(const Trace&) = delete;

  void called(const OpCall& call) override {
    const auto bad = [](const Tensor& t) {
      return t.defined() && is_floating(t.dtype()) && !is_finite(t);
    };
    had_.push_back(std::any_of(call.inputs.begin(), call.inputs.end(), bad) ? 1 : 0);
    made_.push_back(0);
    for (int j = 0; j < call.outputs.size(); ++j)
      if (bad(call.outputs[j])) made_.back() = 1;
    const Scope& scope = current_scope();
    phases_.push_back(scope.phase);
    readers_.push_back(tessera::str(call.op.name, *scope.layer != '\0' ? " in " : "", scope.layer,
                                    ", ", name(scope.phase)));
    makers_.push_back(made_not_finite(call.op, call.inputs));
  }
  bool reads_inputs() const override { return true; }

  /// What is to be said of the first call that made a NaN or infinity of finite inputs, and of the
  /// first that was given one; empty: there is none. The same on all ranks, which all must call.
  struct Found {
    std::string maker;
    std::string reader;
  };
  Found found();

 private:
  std::string first(const std::vector<std::int32_t>& is, const std::vector<std::string>& texts);

  Mesh mesh_;
  Parameter one_;
  OpObserver* previous_;
  std::vector<std::int32_t> had_;
  std::vector<std::int32_t> made_;
  std::vector<Phase> phases_;
  std::vector<std::string> readers_;
  std::vector<std::string> makers_;
};

Trace::Found Trace::found() {
  // The ranks of a stage make the same calls.
  agree(one_.mesh(), had_);
  agree(one_.mesh(), made_);
  std::vector<std::int32_t> makes(had_.size());
  for (std::size_t i = 0; i < makes.size(); ++i) makes[i] = made_[i] != 0 && had_[i] == 0 ? 1 : 0;
  Found found;
  found.maker = first(makes, makers_);
  found.reader = first(had_, readers_);
  return found;
}

/// The text of the first call that `is` so: forward before backward, and of stages the one whose
/// turn is first.
std::string Trace::first(const std::vector<std::int32_t>& is,
                         const std::vector<std::string>& texts) {
  const auto call = static_cast<std::size_t>(std::find(is.begin(), is.end(), 1) - is.begin());
  const std::int32_t stages = one_.stages().size();
  const std::int32_t stage = one_.stages().rank();
  std::int32_t urgency = 0;
  std::string text;
  if (call < is.size()) {
    urgency = phases_[call] == Phase::kForward ? 2 * stages - stage : stage + 1;
    text = texts[call];
  }
  std::array<std::int32_t, 1> most{urgency};
  agree(mesh_, most);
  if (most[0] == 0) return "";
  if (most[0] != urgency) text.clear();
  const parallel::Group all = parallel::Group::of(mesh_, mesh_.all_axes());
  const std::vector<std::int64_t> sizes = parallel::all_gather_counts(all, std::ssize(text));
  std::string told(
      static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})), ' ');
  parallel::all_gather(all, text.data(), told.data(), sizes, {.op = "NaN guard"}).wait();
  return told.substr(0, static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end())));
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
  const std::int32_t kind = std::isfinite(loss) ? Finding::kFinite
                            : std::isnan(loss)  ? Finding::kNan
                                                : Finding::kInfinite;
  std::array<std::int32_t, 2> flags{
      kind, from_first_bad(parameters, [](const Parameter& p) { return gradient(p.value()); })};
  agree(mesh_, flags);
  finding.loss = static_cast<Finding::Loss>(flags[0]);
  if (flags[1] != 0) finding.gradient = (parameters.end() - flags[1])->path();
  return finding;
}

bool NanGuard::passes(std::int64_t step, double loss, const std::function<Tensor()>& forward) {
  return passes(step, loss, [&forward] {
    const Tensor again = forward();
    backward(again);
    return reduced(again.detach()).item();
  });
}

bool NanGuard::passes(std::int64_t step, double loss, const std::function<double()>& again) {
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
  throw Error(str(text, " (", cause(again),
                  "). Parameters are as before the step. Look there, lower the learning rate, or "
                  "leave such steps out (--on-nan skip)."));
}

std::string NanGuard::cause(const std::function<double()>& again) {
  const auto& parameters = optimizer_.parameters();
  std::array<std::int32_t, 1> bad{
      from_first_bad(parameters, [](const Parameter& p) { return p.value(); })};
  agree(mesh_, bad);
  if (bad[0] != 0) {
    return str("the parameter ", (parameters.end() - bad[0])->path(),
               " holds a NaN or infinity already");
  }
  for (const auto& [path, module] : model_.named_modules()) RandomDraws::set(*module, 0);
  Trace::Found found;
  Finding finding;
  {
    Trace trace(mesh_, parameters);
    finding = look(again());
    found = trace.found();
  }
  optimizer_.zero_grad();
  if (!found.maker.empty()) return found.maker;
  if (finding.loss != Finding::kFinite) {
    return str(
        "no op makes it from finite values: the batch holds it, or a sum over the ranks went wrong",
        found.reader.empty() ? "" : "; the first op to read it is ", found.reader);
  }
  if (!finding.gradient.empty()) {
    return str(
        "no op makes it from finite values: it arises when the gradients of the ranks are added, "
        "for ",
        finding.gradient);
  }
  return "the same step, taken once more, is finite: a fault that comes and goes, of memory or of "
         "a "
         "transfer";
}

}  // namespace tessera::nn
