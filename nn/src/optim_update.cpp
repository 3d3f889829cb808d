#include <algorithm>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/optim.hpp>
#include <tessera/nn/optim.hpp>
#include <utility>

namespace tessera::optim {

void Sgd::update(Item& item, const View& gradient) {
  const View velocity = item.slots.empty() ? View{} : item.slots[0].mutable_local();
  const kernels::OptimSegment segment{item.parameter.value().mutable_local(),
                                      gradient,
                                      velocity,
                                      {},
                                      lr() * item.lr_scale,
                                      item.weight_decay};
  kernels::sgd_step({&segment, 1}, options_.momentum, options_.nesterov);
}

void AdamW::update(Item& item, const View& gradient) {
  const kernels::OptimSegment segment{item.parameter.value().mutable_local(),
                                      gradient,
                                      item.slots[0].mutable_local(),
                                      item.slots[1].mutable_local(),
                                      lr() * item.lr_scale,
                                      item.weight_decay};
  kernels::adamw_step({&segment, 1}, {options_.beta1, options_.beta2, options_.eps, steps()});
}

void Ema::update() {
  const double t = double(updates_);
  const double decay =
      options_.warm_up ? std::min(options_.decay, (1 + t) / (10 + t)) : options_.decay;
  ++updates_;
  std::vector<kernels::OptimSegment> segments;
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    segments.push_back(
        {averages_[k].mutable_local(), parameters_[k].value().local(), {}, {}, 0.0, 0.0});
  }
  kernels::ema_step(segments, decay);
}

void Ema::swap() {
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    const View a = averages_[k].mutable_local(), p = parameters_[k].value().mutable_local();
    const Tensor kept = Tensor::from_local(a, averages_[k].layout());
    kernels::copy(p, a);
    kernels::copy(kept.local(), p);
  }
}

}  // namespace tessera::optim
