#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/parameter.hpp>

namespace tessera::nn {

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
  return state_->use == state_->rest ? x : redistribute(x, state_->use);
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
  const Tensor dense =
      value.local().is_dense() ? value : Tensor::from_local(value.local(), value.layout());
  state_->value = state_->trainable ? require_grad(dense) : dense;
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
}

void Parameter::set_stage(const parallel::Group& stages, int stage) {
  state_->stages = stages;
  state_->stage = stage;
  if (!here()) state_->value = {};
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
