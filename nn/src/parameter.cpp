#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/gathered.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/scope.hpp>
#include <tessera/nn/parameter.hpp>
#include <tessera/parallel/redistribute.hpp>

#include "dense.hpp"

namespace tessera::nn {

/// A value on its way from rest to use.
struct Parameter::Ahead {
  parallel::Redistribution flight;
  std::uint32_t version;  // of what it moves
};

Parameter::Parameter(const Shape& shape, const Init& init, const Mesh& mesh, DType dtype)
    : state_(std::make_shared<State>()) {
  if (!is_floating(dtype)) {
    throw DTypeError(str("parameter: element type ", name(dtype),
                         " cannot be trained (it is not a floating type). Use f32, f64 or bf16."));
  }
  state_->rest = Layout::replicated(mesh, shape);
  state_->use = state_->rest;
  state_->dtype = state_->compute = dtype;
  state_->init = init;
}

Tensor Parameter::operator()() const {
  if (!defined()) return {};
  const Tensor& stored = value();
  if (grad_enabled()) state_->read = true;
  const Tensor x = state_->compute == state_->dtype ? stored : cast_again(stored, state_->compute);
  if (state_->use == state_->rest) return x;
  if (!state_->keep) return redistribute_again(x, state_->use, moved(x));
  if (!has_kept()) {
    state_->kept = {};
    const Tensor ready = moved(x);
    state_->kept = ready.defined() ? ready : parallel::redistribute(x.detach(), state_->use);
    state_->kept_version = stored.version();
  }
  return redistributed(x, state_->kept);
}

bool Parameter::has_kept() const {
  return state_->kept.defined() && state_->kept_version == state_->value.version() &&
         state_->kept.dtype() == state_->compute;
}

std::weak_ptr<Parameter::State>& Parameter::last_read() {
  static auto* last = new std::weak_ptr<State>;
  return *last;
}

/// `x` in its use layout if that is on its way; undefined: it is not. Starts what comes next.
Tensor Parameter::moved(const Tensor& x) const {
  Tensor y;
  if (const std::shared_ptr<Ahead> ahead = std::move(state_->ahead)) {
    y = ahead->flight.wait();
    if (ahead->version != state_->value.version() || !(y.layout() == state_->use) ||
        y.dtype() != x.dtype()) {
      y = {};
    }
  }
  // Values that are read while backward computes something again have another order.
  if (current_scope().phase == Phase::kBackward) return y;
  state_->read_version = state_->value.version();
  const std::shared_ptr<State> last = last_read().lock();
  // A step between the two: this one begins a new pass.
  if (last && last != state_ && last->value.defined() &&
      last->read_version == last->value.version()) {
    last->next = state_;
  }
  last_read() = state_;
  if (const std::shared_ptr<State> next = state_->next.lock(); next && next != state_) {
    Parameter p;
    p.state_ = next;
    p.start_ahead();
  }
  return y;
}

void Parameter::start_ahead() const {
  if (state_->ahead || state_->use == state_->rest || !state_->value.defined()) return;
  if (state_->keep && has_kept()) return;
  const NoGrad no_grad;
  const Tensor x = cast(state_->value.detach(), state_->compute);
  state_->ahead = std::make_shared<Ahead>(
      Ahead{parallel::start_redistribute(x, state_->use, "parameter"), state_->value.version()});
}

void Parameter::keep_use(bool on) {
  state_->keep = on;
  state_->kept = {};
}

void Parameter::compute_in(DType dtype) {
  if (!is_floating(dtype)) {
    throw DTypeError(str("parameter: ", path(), " cannot be read as ", name(dtype),
                         " (it is not a floating type). Use f32, f64 or bf16."));
  }
  if (!state_->exact) state_->compute = dtype;
}

const Tensor& Parameter::value() const {
  if (!state_->value.defined()) {
    if (!here()) {
      throw UsageError(str("parameter: ", path(), " lies in stage ", state_->stage,
                           " of a pipeline, this process in stage ", state_->stages.rank(),
                           ". Read it there, and name the module in the block that reads it."));
    }
    if (!state_->initialized) {
      throw UsageError(str("parameter: one of shape ", shape(),
                           " has no values yet (its model was not initialised). Call "
                           "nn::initialize(*this, seed) at the end of the model's constructor."));
    }
    set_value(state_->init(state_->rest, state_->key, state_->dtype));
  }
  return state_->value;
}

void Parameter::set_value(const Tensor& value) const {
  // Optimisers walk through the memory without strides.
  const Tensor held = dense(value);
  state_->value = state_->trainable ? require_grad(held) : held;
  state_->kept = {};
  state_->ahead = nullptr;
}

void Parameter::set_requires_grad(bool on) {
  state_->trainable = on;
  if (state_->value.defined()) set_value(state_->value.detach());
}

void Parameter::initialize(const std::string& path, RandomKey key) {
  state_->path = path;
  state_->key = key;
  state_->initialized = true;
  state_->value = {};
  state_->kept = {};
  state_->ahead = nullptr;
}

void Parameter::set_stage(const Mesh& whole, int axis, int stage) {
  state_->whole = whole;
  state_->axis = axis;
  state_->stages = parallel::Group::of(whole, AxisMask{1} << axis);
  state_->stage = stage;
  if (!here()) state_->value = {};
}

Layout Parameter::in_its_stage(const Layout& layout) const {
  if (here()) return layout;
  std::vector<DimSplit> splits;
  for (int d = 0; d < layout.dims(); ++d) splits.push_back(layout.split(d));
  const Mesh& whole = state_->whole;
  return Layout::make(whole.slice(whole.axis_name(state_->axis), state_->stage), layout.shape(),
                      std::move(splits));
}

Tensor Parameter::stored() const {
  return here() ? value() : Tensor::empty(in_its_stage(rest()), dtype());
}

void Parameter::place(const Layout& rest, const Layout& use) {
  if (state_->read) {
    throw UsageError(str("place: parameter ", path(),
                         " is in use (a recorded computation has read it in its old layout). Place "
                         "parameters before the first forward pass."));
  }
  if (rest.partial_axes() != 0 || use.partial_axes() != 0) {
    throw LayoutError(str("place: parameter ", path(),
                          " cannot be Partial (values at rest are whole). Split or replicate it."));
  }
  if (state_->value.defined()) {
    const NoGrad no_grad;
    set_value(redistribute(state_->value.detach(), rest));
  }
  state_->rest = rest;
  state_->use = use;
  state_->shares = {};
}

void Parameter::to(DType dtype) {
  if (dtype == state_->dtype) return;
  if (!is_floating(dtype)) {
    throw DTypeError(str("parameter: ", path(), " cannot become ", name(dtype),
                         " (it is not a floating type). Use f32, f64 or bf16."));
  }
  if (state_->value.defined()) {
    const NoGrad no_grad;
    set_value(cast(state_->value.detach(), dtype));
  }
  state_->dtype = state_->compute = dtype;
}

}  // namespace tessera::nn
