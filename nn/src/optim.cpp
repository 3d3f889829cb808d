#include <cmath>
#include <optional>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/optim.hpp>
#include <tessera/nn/module.hpp>
#include <tessera/nn/optim.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/redistribute.hpp>

#include "dense.hpp"
#include "optim_support.hpp"

namespace tessera::optim {
namespace {

/// Brings what each rank has changed, its share of a value, to all; one is on its way while the
/// one before it is put in its place.
void gather_shares(const std::vector<std::pair<Tensor, Tensor>>& shares) {
  std::optional<parallel::Redistribution> flight;
  for (std::size_t i = 0; i <= shares.size(); ++i) {
    std::optional<parallel::Redistribution> next;
    if (i < shares.size()) {
      const auto& [value, share] = shares[i];
      next.emplace(parallel::start_redistribute(share, value.layout(), "parameter"));
    }
    if (flight) kernels::copy(flight->wait().local(), shares[i - 1].first.mutable_local());
    flight = std::move(next);
  }
}

}  // namespace

Optimizer::Optimizer(const std::vector<nn::Parameter>& parameters,
                     const SlotNames& slot_names,
                     double lr,
                     double weight_decay,
                     bool decay_vectors,
                     const std::vector<Group>& groups)
    : lr_(lr) {
  std::vector<bool> matched(groups.size(), false);
  for (const nn::Parameter& p : parameters) {
    if (!p.requires_grad()) continue;
    for (const nn::Parameter& other : parameters_) {
      if (other.path() == p.path()) {
        throw UsageError(str("optim: two parameters have the path \"", p.path(),
                             "\" (state is kept by path). Give model.parameters() of one "
                             "initialised model."));
      }
    }
    Item item{.parameter = p, .slot_names = slot_names(p)};
    if (decay_vectors || p.shape().size() > 1) item.weight_decay = weight_decay;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!nn::glob_match(groups[g].pattern, p.path())) continue;
      matched[g] = true;
      item.lr_scale = groups[g].lr_scale;
      if (groups[g].weight_decay >= 0.0) item.weight_decay = groups[g].weight_decay;
    }
    parameters_.push_back(p);
    items_.push_back(std::move(item));
  }
  if (parameters_.empty()) {
    throw UsageError("optim: no trainable parameter was given. Pass model.parameters().");
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!matched[g]) {
      throw UsageError(str("optim: group \"", groups[g].pattern,
                           "\" matches no parameter. Print model.summary() for their names."));
    }
  }
}

void Optimizer::make_slots(Item& item) {
  while (item.slots.size() < item.slot_names.size()) {
    item.slots.push_back(Tensor::zeros(item.parameter.optimizer_layout(), item.parameter.dtype()));
  }
}

std::vector<Optimizer::Change> Optimizer::take_changes(bool all) {
  finish_gradients();
  std::vector<Change> changes;
  changes.reserve(items_.size());
  for (std::size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    if (!item.parameter.here()) continue;
    const Tensor& value = item.parameter.value();
    const Layout& layout = item.parameter.optimizer_layout();
    Tensor g = gradient(value);
    if (!g.defined()) {
      if (!all) continue;
      g = Tensor::zeros(layout, value.dtype());
    }
    make_slots(item);
    changes.push_back({.parameter = &item.parameter,
                       .index = i,
                       .value = redistribute(value.detach(), layout),
                       .gradient = dense(redistribute(g, layout)),
                       .slots = item.slots,
                       .rate = lr_ * item.lr_scale,
                       .weight_decay = item.weight_decay});
    clear_gradient(value);
  }
  return changes;
}

void Optimizer::give_back(const std::vector<Change>& changes) {
  std::vector<std::pair<Tensor, Tensor>> shares;
  for (const Change& change : changes) {
    const Tensor& value = change.parameter->value();
    if (!(change.value.layout() == value.layout())) shares.emplace_back(value, change.value);
  }
  gather_shares(shares);
}

void Optimizer::step() {
  const NoGrad no_grad;
  const PhaseScope phase(Phase::kUpdate);
  count_step();
  const std::vector<Change> changes = take_changes();
  update(changes);
  give_back(changes);
}

void Optimizer::zero_grad() {
  finish_gradients();
  for (const Item& item : items_)
    if (item.parameter.here()) clear_gradient(item.parameter.value());
}

std::vector<std::pair<std::string, Tensor>> Optimizer::state() {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (Item& item : items_) {
    const nn::Parameter& p = item.parameter;
    if (p.here()) make_slots(item);
    for (std::size_t s = 0; s < item.slot_names.size(); ++s) {
      tensors.emplace_back(p.path() + "/" + item.slot_names[s],
                           p.here()
                               ? item.slots[s]
                               : Tensor::empty(p.in_its_stage(p.optimizer_layout()), p.dtype()));
    }
  }
  return tensors;
}

Sgd::Sgd(const std::vector<nn::Parameter>& parameters, const SgdOptions& options)
    : Optimizer(parameters,
                always(options.momentum != 0.0 ? Names{"momentum"} : Names{}),
                options.lr,
                options.weight_decay,
                options.decay_vectors,
                options.groups),
      options_(options) {}

void Sgd::update(const std::vector<Change>& changes) {
  kernels::sgd_step(segments_of(changes), options_.momentum, options_.nesterov);
}

AdamW::AdamW(const std::vector<nn::Parameter>& parameters, const AdamWOptions& options)
    : Optimizer(parameters,
                always(options.amsgrad ? Names{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
                                       : Names{"exp_avg", "exp_avg_sq"}),
                options.lr,
                options.weight_decay,
                options.decay_vectors,
                options.groups),
      options_(options) {}

void AdamW::update(const std::vector<Change>& changes) {
  kernels::adamw_step(segments_of(changes), {.beta1 = options_.beta1,
                                             .beta2 = options_.beta2,
                                             .eps = options_.eps,
                                             .step = steps(),
                                             .coupled = options_.coupled});
}

double grad_norm(const std::vector<nn::Parameter>& parameters) {
  const NoGrad no_grad;
  const PhaseScope phase(Phase::kUpdate);
  finish_gradients();
  Tensor total;
  parallel::Group stages;
  for (const nn::Parameter& p : parameters) {
    if (!p.requires_grad()) continue;
    if (p.stages().size() > 1) stages = p.stages();
    if (!p.here()) continue;
    const Tensor g = gradient(p.value());
    if (!g.defined()) continue;
    // Where a gradient is split its sum is Partial; adding takes a replicated sum once.
    const Tensor part = sum(square(g));
    // Part by part: a cast would take each sum for itself.
    const Tensor squares = Tensor::empty(part.layout(), DType::kFloat64);
    kernels::copy(part.local(), squares.mutable_local());
    total = total.defined() ? total + squares : squares;
  }
  double all = total.defined() ? reduced(total).item() : 0.0;
  if (stages.size() > 1) {
    parallel::all_reduce(stages, &all, 1, DType::kFloat64, ReduceOp::kSum, {.op = "grad_norm"})
        .wait();
  }
  return std::sqrt(all);
}

double clip_grad_norm(const std::vector<nn::Parameter>& parameters, double max_norm) {
  const PhaseScope phase(Phase::kUpdate);
  const double norm = grad_norm(parameters);
  if (norm > max_norm || dry_run()) {  // a plan has room for it
    const NoGrad no_grad;
    for (const nn::Parameter& p : parameters) {
      if (!p.requires_grad() || !p.here()) continue;
      const Tensor g = gradient(p.value());
      if (g.defined()) set_gradient(p.value(), g * (max_norm / norm));
    }
  }
  return norm;
}

}  // namespace tessera::optim
