#include <cmath>
#include <tessera/nn/optim.hpp>
namespace tessera::optim {
void Sgd::update(Item& item, const View& gradient) {
  const View pv = item.parameter.value().mutable_local();
  visit_floating("sgd", pv.dtype, [&]<class T>() {
    T* p = pv.as<T>();
    const T* g = gradient.as<T>();
    T* v = item.slots.empty() ? nullptr : item.slots[0].mutable_local().as<T>();
    using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const C rate = C(lr() * item.lr_scale), wd = C(item.weight_decay), mu = C(options_.momentum);
    for (std::int64_t i = 0; i < pv.size(); ++i) {
      C d = C(g[i]) + wd * C(p[i]);
      if (v) {
        const C nv = mu * C(v[i]) + d;
        v[i] = T(nv);
        d = options_.nesterov ? d + mu * nv : nv;
      }
      p[i] = T(C(p[i]) - rate * d);
    }
  });
}
void AdamW::update(Item& item, const View& gradient) {
  const View pv = item.parameter.value().mutable_local();
  visit_floating("adamw", pv.dtype, [&]<class T>() {
    T* p = pv.as<T>();
    const T* g = gradient.as<T>();
    T* m = item.slots[0].mutable_local().as<T>();
    T* v = item.slots[1].mutable_local().as<T>();
    using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const C rate = C(lr() * item.lr_scale), keep = C(1 - lr() * item.lr_scale * item.weight_decay);
    const C b1 = C(options_.beta1), b2 = C(options_.beta2), eps = C(options_.eps);
    const C c1 = C(1 / (1 - std::pow(options_.beta1, steps()))),
            c2 = C(1 / (1 - std::pow(options_.beta2, steps())));
    for (std::int64_t i = 0; i < pv.size(); ++i) {
      const C gi = C(g[i]);
      const C mi = b1 * C(m[i]) + (1 - b1) * gi, vi = b2 * C(v[i]) + (1 - b2) * gi * gi;
      m[i] = T(mi);
      v[i] = T(vi);
      p[i] = T(C(p[i]) * keep - rate * (mi * c1) / (std::sqrt(vi * c2) + eps));
    }
  });
}
void Ema::update() {
  const double t = double(updates_);
  const double decay =
      options_.warm_up ? std::min(options_.decay, (1 + t) / (10 + t)) : options_.decay;
  ++updates_;
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    const View a = averages_[k].mutable_local(), p = parameters_[k].value().local();
    visit_floating("ema", a.dtype, [&]<class T>() {
      using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
      for (std::int64_t i = 0; i < a.size(); ++i)
        a.as<T>()[i] = T(C(decay) * C(a.as<T>()[i]) + C(1 - decay) * C(p.as<T>()[i]));
    });
  }
}
void Ema::swap() {
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    const View a = averages_[k].mutable_local(), p = parameters_[k].value().mutable_local();
    visit_floating("ema", a.dtype, [&]<class T>() {
      std::swap_ranges(a.as<T>(), a.as<T>() + a.size(), p.as<T>());
    });
  }
}
}  // namespace tessera::optim
