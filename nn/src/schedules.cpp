#include <algorithm>
#include <cmath>
#include <numbers>
#include <tessera/core/error.hpp>
#include <tessera/nn/schedules.hpp>

namespace tessera::optim {
namespace {

/// Half a cosine, or a straight line, from `from` at 0 to `to` at 1 and beyond.
double between(double from, double to, double t, bool linear = false) {
  t = std::clamp(t, 0.0, 1.0);
  if (linear) return from + (to - from) * t;
  return to + 0.5 * (from - to) * (1.0 + std::cos(std::numbers::pi * t));
}

}  // namespace

void PlateauSchedule::update(double loss) {
  const bool first = std::isinf(state_.best);
  const double margin = options_.threshold * std::abs(state_.best);
  const bool better = options_.highest ? loss > state_.best + margin : loss < state_.best - margin;
  if (first ? std::isfinite(loss) : better) {
    state_.best = loss;
    state_.bad = 0;
  } else {
    ++state_.bad;
  }
  if (state_.cooling > 0) {
    --state_.cooling;
    state_.bad = 0;
  }
  if (state_.bad > options_.patience) {
    state_.scale = std::max(state_.scale * options_.factor, options_.min_scale);
    state_.bad = 0;
    state_.cooling = options_.cooldown;
  }
}

double CosineSchedule::operator()(std::int64_t step) const {
  if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double length = static_cast<double>(std::max<std::int64_t>(steps - warmup, 1));
  return between(lr, final_lr, static_cast<double>(step - warmup) / length);
}

double StepSchedule::operator()(std::int64_t step) const {
  return lr * std::pow(factor, static_cast<double>(step / every));
}

double MultiStepSchedule::operator()(std::int64_t step) const {
  const auto passed = std::upper_bound(milestones.begin(), milestones.end(), step);
  return lr * std::pow(factor, static_cast<double>(passed - milestones.begin()));
}

double ExponentialSchedule::operator()(std::int64_t step) const {
  return lr * std::pow(factor, static_cast<double>(step));
}

double OneCycleSchedule::operator()(std::int64_t step) const {
  const double first = max_lr / initial_division;
  const double top = rising * static_cast<double>(steps) - 1.0;
  const double end = static_cast<double>(steps) - 1.0;
  const auto at = static_cast<double>(step);
  if (at <= top) return between(first, max_lr, top > 0.0 ? at / top : 1.0, linear);
  return between(max_lr, first / final_division, end > top ? (at - top) / (end - top) : 1.0,
                 linear);
}

Schedule settled(Schedule before, std::int64_t from, std::int64_t steps, double lr) {
  if (!before) throw UsageError("settled: no schedule before. Give one, e.g. CosineSchedule{}.");
  return [before = std::move(before), from, steps, lr](std::int64_t step) {
    if (step < from) return before(step);
    const double t =
        steps > 0 ? static_cast<double>(step - from) / static_cast<double>(steps) : 1.0;
    return between(before(from), lr, t);
  };
}

Schedule warmed_up(std::int64_t warmup, Schedule then) {
  if (!then) throw UsageError("warmed_up: no schedule to follow. Give one, e.g. StepSchedule{}.");
  return [warmup, then = std::move(then)](std::int64_t step) {
    if (step >= warmup) return then(step - warmup);
    return then(0) * static_cast<double>(step + 1) / static_cast<double>(warmup);
  };
}

}  // namespace tessera::optim
