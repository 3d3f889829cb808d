#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <sstream>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/observe.hpp>
#include <tessera/nn/inspect/compare.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/redistribute.hpp>

#include "dense.hpp"

namespace tessera::nn {
namespace {

/// A value on its way through a step.
struct Value {
  std::string layer;
  std::string what;
  std::string layout;
  Phase phase = Phase::kForward;
  Tensor tensor;  // the global value, on one rank

  bool same_place(const Value& other) const { return layer == other.layer && what == other.what; }
};

/// That of a parameter.
std::string layer_of(const std::string& path) { return path.substr(0, path.rfind('.')); }

/// The values of a step in program order.
class Collector : public OpObserver {
 public:
  using Take = std::function<void(Value)>;
  Collector(bool outputs, Take take) : outputs_(outputs), take_(std::move(take)) {}

  void called(const OpCall& call) override {
    const Scope& scope = current_scope();
    if (!on_ || scope.phase == Phase::kUpdate) return;
    // Sums of gradients are taken in place where layouts allow it, which a mesh may change.
    if (scope.phase == Phase::kBackward && std::string_view(call.op.name) == "add") return;
    for (int j = 0; j < call.outputs.size(); ++j) {
      if (!is_floating(call.outputs[j].dtype())) continue;
      give(scope.layer,
           fmt::format("output{} of {} ({})", j > 0 ? fmt::format(" {}", j) : "", call.op.name,
                       name(scope.phase)),
           scope.phase, call.outputs[j]);
    }
  }

  void run(Workload& workload, std::int64_t step) {
    workload_ = &workload;
    OpObserver* const previous = observe_ops(this);
    try {
      on_ = outputs_;
      backward(workload.loss(step));
      on_ = false;
      const auto parameters = workload.model().named_parameters();
      // From the last layer to the first; a layer's matrices come before its vectors, which are
      // judged beside them.
      for (auto end = parameters.end(); end != parameters.begin();) {
        auto begin = end - 1;
        while (begin != parameters.begin() &&
               layer_of((begin - 1)->first) == layer_of((end - 1)->first))
          --begin;
        for (auto it = begin; it != end; ++it) {
          const auto& [path, p] = *it;
          if (!p.requires_grad()) continue;
          const Tensor g = gradient(p.value());
          if (g.defined()) give(path, "gradient", Phase::kUpdate, g);
        }
        end = begin;
      }
      workload.update();
      for (const auto& [path, p] : parameters)
        give(path, "weight after the step", Phase::kUpdate, p.value());
    } catch (...) {
      observe_ops(previous);
      throw;
    }
    observe_ops(previous);
  }

 private:
  void give(const std::string& layer, std::string what, Phase phase, const Tensor& x) {
    Tensor all = parallel::gather_to(x, 0);
    // A handle on x would change what the engine may do in place.
    if (all.buffer().get() == x.buffer().get()) all = Tensor::from_local(all.local(), all.layout());
    if (x.mesh().rank() == 0) all = workload_->in_order(all, x.layout());
    take_({layer, std::move(what), x.layout().str(), phase, std::move(all)});
  }

  bool outputs_;
  Take take_;
  const Workload* workload_ = nullptr;
  bool on_ = false;
};

double default_tolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 1e-9;
    case DType::kBFloat16:
      return 0.1;
    default:
      return 1e-3;
  }
}

struct Distance {
  double difference = 0.0;
  double magnitude = 0.0;  // of the second
};

Distance distance(const Tensor& a, const Tensor& b) {
  const Tensor left = dense(a);
  const Tensor right = dense(b);
  Distance d;
  const std::int64_t n = right.local_shape().product();
  for (std::int64_t i = 0; i < n; ++i) {
    const double x = load_as_double(left.local().data, left.dtype(), i);
    const double y = load_as_double(right.local().data, right.dtype(), i);
    if (std::isnan(x) && std::isnan(y)) continue;
    const double apart = x == y ? 0.0 : std::abs(x - y);
    d.difference =
        std::isnan(apart) ? std::numeric_limits<double>::infinity() : std::max(d.difference, apart);
    if (std::isfinite(y)) d.magnitude = std::max(d.magnitude, std::abs(y));
  }
  return d;
}

/// Whether at most one dimension has more than one element.
bool is_vector(const Shape& shape) {
  int longer = 0;
  for (const std::int64_t n : shape) longer += n > 1 ? 1 : 0;
  return longer <= 1;
}

/// Rank 0's part: compares what one rank computes with what the mesh has computed.
class Judge {
 public:
  explicit Judge(const CompareOptions& options) : options_(options) {}

  void expect(Value value) { expected_.push_back(std::move(value)); }

  void judge(std::int64_t step, Value alone) {
    if (result.first) return;
    const auto here = [&] { return !expected_.empty() && expected_.front().same_place(alone); };
    // Values without an order: of an op that both have, or of one that only a mesh needs. Beside
    // those that copy rows to others stand those that sum them at home.
    while (!expected_.empty() && !expected_.front().tensor.defined()) {
      exchanges_ = true;
      const bool both = here();
      expected_.pop_front();
      if (both) return;
    }
    if (exchanges_ && !here() && expected_.size() > 1 && expected_[1].same_place(alone))
      expected_.pop_front();
    if (!here() || !(expected_.front().tensor.shape() == alone.tensor.shape())) {
      const std::string other =
          expected_.empty() ? "nothing" : expected_.front().what + " of " + expected_.front().layer;
      result.first =
          Difference{step,
                     alone.layer,
                     fmt::format("{} (on the mesh stands {} in its place)", alone.what, other),
                     "",
                     std::numeric_limits<double>::infinity(),
                     0.0};
      return;
    }
    const Value mesh = std::move(expected_.front());
    expected_.pop_front();
    const Distance d = distance(mesh.tensor, alone.tensor);
    double scale = d.magnitude;
    // A bias before a norm, say, has a gradient of zero but for rounding: such vectors count
    // against the other gradients, or weights, of the layer.
    const bool vector = is_vector(alone.tensor.shape());
    if (alone.phase == Phase::kBackward) {
      double& largest = largest_[alone.layer];
      largest = std::max(largest, d.magnitude);
      if (vector) scale = std::max(scale, 1e-3 * largest);
    } else if (alone.phase == Phase::kUpdate) {
      const std::string layer = layer_of(alone.layer);
      double& largest = alone.what == "gradient" ? largest_[layer] : weights_[layer];
      if (!vector) largest = std::max(largest, d.magnitude);
      if (vector) scale = std::max(scale, 1e-3 * largest);
    }
    const double error = d.difference == 0.0 ? 0.0 : d.difference / scale;
    // What is made of coarse values is no better than they, whatever its own type.
    coarsest_ = std::max(coarsest_, default_tolerance(alone.tensor.dtype()));
    const double tolerance = options_.tolerance > 0.0 ? options_.tolerance : coarsest_;
    const Difference found{step, alone.layer, alone.what, mesh.layout, error, tolerance};
    ++result.tensors;
    if (!(error <= tolerance)) {
      result.first = found;
    } else if (error / tolerance >= closest_) {
      closest_ = error / tolerance;
      result.closest = found.str();
    }
  }

  void end_step() {
    expected_.clear();
    largest_.clear();
    weights_.clear();
  }

  Comparison result;

 private:
  CompareOptions options_;
  std::deque<Value> expected_;
  std::map<std::string, double> largest_;  // magnitude in the backward pass of a layer
  std::map<std::string, double> weights_;  // largest of a layer's matrices
  bool exchanges_ = false;
  double coarsest_ = 0.0;
  double closest_ = 0.0;
};

/// `text` of the first rank on all, however long it takes.
std::string shared(const Mesh& mesh, std::string text) {
  const parallel::Group group = parallel::Group::of(mesh, mesh.all_axes());
  const auto send = [&](void* data, std::int64_t bytes) {
    parallel::Request request = parallel::broadcast(group, data, bytes, 0, {"compare", {}, {}});
    while (!request.test()) sched_yield();
  };
  auto size = static_cast<std::int64_t>(text.size());
  send(&size, sizeof size);
  text.resize(static_cast<std::size_t>(size));
  if (size > 0) send(text.data(), size);
  return text;
}

std::string packed(const Comparison& c) {
  std::string text = fmt::format("{}\n{}\n", c.tensors, c.closest);
  if (c.first) {
    text += fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n", c.first->step, c.first->layer, c.first->what,
                        c.first->layout, c.first->error, c.first->tolerance);
  }
  return text;
}

Comparison unpacked(const std::string& text) {
  std::istringstream in(text);
  const auto line = [&] {
    std::string result;
    std::getline(in, result);
    return result;
  };
  Comparison c;
  c.tensors = std::stoll(line());
  c.closest = line();
  if (const std::string step = line(); !step.empty()) {
    Difference d;
    d.step = std::stoll(step);
    d.layer = line();
    d.what = line();
    d.layout = line();
    d.error = std::stod(line());
    d.tolerance = std::stod(line());
    c.first = d;
  }
  return c;
}

}  // namespace

std::string Difference::str() const {
  return fmt::format("step {}: {}{}{}{}{} differs by {:.3g} (tolerance {:.3g})", step, layer,
                     layer.empty() ? "" : ": ", what, layout.empty() ? "" : " ", layout, error,
                     tolerance);
}

Comparison compare_steps(const Mesh& mesh,
                         const MakeWorkload& make,
                         const CompareOptions& options) {
  Judge judge(options);
  const bool first = mesh.rank() == 0;
  const std::unique_ptr<Workload> together = make(mesh);
  const std::unique_ptr<Workload> alone =
      first ? make(Mesh::of({mesh.process_of(0)}, {})) : nullptr;
  for (std::int64_t step = 0; step < options.steps && !judge.result.first; ++step) {
    Collector(options.outputs, [&](Value value) {
      if (first) judge.expect(std::move(value));
    }).run(*together, step);
    if (first) {
      Collector(options.outputs, [&](Value value) {
        judge.judge(step, std::move(value));
      }).run(*alone, step);
      judge.end_step();
    }
    judge.result = unpacked(shared(mesh, packed(judge.result)));
  }
  return judge.result;
}

}  // namespace tessera::nn
