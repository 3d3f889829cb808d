#include <algorithm>
#include <cstddef>
#include <tessera/core/dry_run.hpp>
#include <tessera/core/scope.hpp>
#include <tessera/kernels/optim.hpp>
#include <tessera/nn/averages.hpp>

namespace tessera::optim {

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
  double decay = options_.decay;
  if (options_.warm_up) decay = std::min(decay, (1.0 + t) / (10.0 + t));
  if (options_.equal) decay = 1.0 - 1.0 / t;
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

}  // namespace tessera::optim
