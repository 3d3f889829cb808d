#include <algorithm>
#include <cmath>
#include <numbers>
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
                     std::vector<const char*> slot_names,
                     double lr,
                     double weight_decay,
                     bool decay_vectors,
                     const std::vector<Group>& groups)
    : slot_names_(std::move(slot_names)), lr_(lr) {
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
    Item item{.parameter = p};
    if (decay_vectors || p.shape().size() > 1) item.weight_decay = weight_decay;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!nn::glob_match(groups[g].pattern, p.path())) continue;
      matched[g] = true;
      item.lr_scale = groups[g].lr_scale;
      if (groups[g].weight_decay >= 0.0) item.weight_decay = groups[g].weight_decay;
    }
    parameters_.push_back(p);
    if (p.here()) items_.push_back(std::move(item));
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

void Optimizer::make_slots(Item& item) const {
  if (item.slots.size() == slot_names_.size()) return;
  for (std::size_t s = 0; s < slot_names_.size(); ++s) {
    item.slots.push_back(Tensor::zeros(item.parameter.optimizer_layout(), item.parameter.dtype()));
  }
}

void Optimizer::step() {
  const NoGrad no_grad;
  const PhaseScope phase(Phase::kUpdate);
  finish_gradients();
  ++steps_;
  std::vector<Tensor> gradients;  // keeps dense copies alive
  std::vector<std::pair<Tensor, Tensor>> shares;
  std::vector<kernels::OptimSegment> segments;
  for (Item& item : items_) {
    const Tensor& value = item.parameter.value();
    const Tensor g = gradient(value);
    if (!g.defined()) continue;
    make_slots(item);
    const Layout& layout = item.parameter.optimizer_layout();
    const Tensor share = redistribute(value.detach(), layout);
    if (!(layout == value.layout())) shares.emplace_back(value, share);
    gradients.push_back(dense(redistribute(g, layout)));
    kernels::OptimSegment segment;
    segment.parameter = share.mutable_local();
    segment.gradient = gradients.back().local();
    if (!item.slots.empty()) segment.first = item.slots[0].mutable_local();
    if (item.slots.size() > 1) segment.second = item.slots[1].mutable_local();
    if (item.slots.size() > 2) segment.third = item.slots[2].mutable_local();
    segment.rate = lr_ * item.lr_scale;
    segment.weight_decay = item.weight_decay;
    segments.push_back(segment);
    clear_gradient(value);
  }
  update(segments);
  gather_shares(shares);
}

void Optimizer::zero_grad() {
  finish_gradients();
  for (const Item& item : items_) clear_gradient(item.parameter.value());
}

std::vector<std::pair<std::string, Tensor>> Optimizer::state() {
  std::vector<std::pair<std::string, Tensor>> tensors;
  auto item = items_.begin();
  for (const nn::Parameter& p : parameters_) {
    if (p.here()) make_slots(*item);
    for (std::size_t s = 0; s < slot_names_.size(); ++s) {
      tensors.emplace_back(p.path() + "/" + slot_names_[s],
                           p.here()
                               ? item->slots[s]
                               : Tensor::empty(p.in_its_stage(p.optimizer_layout()), p.dtype()));
    }
    if (p.here()) ++item;
  }
  return tensors;
}

Sgd::Sgd(const std::vector<nn::Parameter>& parameters, const SgdOptions& options)
    : Optimizer(parameters,
                options.momentum != 0.0 ? std::vector<const char*>{"momentum"}
                                        : std::vector<const char*>{},
                options.lr,
                options.weight_decay,
                options.decay_vectors,
                options.groups),
      options_(options) {}

void Sgd::update(const std::vector<kernels::OptimSegment>& segments) {
  kernels::sgd_step(segments, options_.momentum, options_.nesterov);
}

AdamW::AdamW(const std::vector<nn::Parameter>& parameters, const AdamWOptions& options)
    : Optimizer(parameters,
                options.amsgrad
                    ? std::vector<const char*>{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
                    : std::vector<const char*>{"exp_avg", "exp_avg_sq"},
                options.lr,
                options.weight_decay,
                options.decay_vectors,
                options.groups),
      options_(options) {}

void AdamW::update(const std::vector<kernels::OptimSegment>& segments) {
  kernels::adamw_step(segments, {.beta1 = options_.beta1,
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

Ema::Ema(const std::vector<nn::Parameter>& parameters, const EmaOptions& options)
    : options_(options) {
  for (const nn::Parameter& p : parameters) {
    if (!p.requires_grad()) continue;
    parameters_.push_back(p);
    averages_.push_back(p.here() ? Tensor::from_local(p.value().local(), p.rest()) : p.stored());
  }
}

void Ema::update() {
  const PhaseScope phase(Phase::kUpdate);
  const auto t = static_cast<double>(++updates_);
  const double decay =
      options_.warm_up ? std::min(options_.decay, (1.0 + t) / (10.0 + t)) : options_.decay;
  std::vector<kernels::OptimSegment> segments;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].here()) continue;
    kernels::OptimSegment segment;
    segment.parameter = averages_[i].mutable_local();
    segment.gradient = parameters_[i].value().local();
    segments.push_back(segment);
  }
  kernels::ema_step(segments, decay);
}

void Ema::swap() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].here()) continue;
    const View a = averages_[i].mutable_local();
    const View p = parameters_[i].value().mutable_local();
    const auto bytes = static_cast<std::size_t>(averages_[i].local_bytes());
    if (dry_run()) continue;
    std::swap_ranges(a.as<std::byte>(), a.as<std::byte>() + bytes, p.as<std::byte>());
  }
}

std::vector<std::pair<std::string, Tensor>> Ema::state() const {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    tensors.emplace_back(parameters_[i].path(), averages_[i]);
  }
  return tensors;
}

void PlateauSchedule::update(double loss) {
  if (loss < state_.best * (1.0 - options_.threshold)) {
    state_.best = loss;
    state_.bad = 0;
  } else if (++state_.bad > options_.patience) {
    state_.scale *= options_.factor;
    state_.bad = 0;
  }
}

double CosineSchedule::operator()(std::int64_t step) const {
  if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double length = static_cast<double>(std::max<std::int64_t>(steps - warmup, 1));
  const double t = std::min(1.0, static_cast<double>(step - warmup) / length);
  return final_lr + 0.5 * (lr - final_lr) * (1.0 + std::cos(std::numbers::pi * t));
}

}  // namespace tessera::optim
