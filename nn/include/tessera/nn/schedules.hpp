#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

/// Learning rates by step. All but PlateauSchedule are pure functions of the step (from 0), so a
/// resumed training needs no state of theirs: `optimizer.set_lr(schedule(step))`.
namespace tessera::optim {

/// Any of the schedules below, or one's own.
using Schedule = std::function<double(std::int64_t step)>;

/// Options of PlateauSchedule.
struct PlateauOptions {
  double factor = 0.8;
  std::int64_t patience = 50;
  double threshold = 1e-4;    ///< by how much of itself the best loss must fall to count
  std::int64_t cooldown = 0;  ///< calls after a fall that count neither good nor bad
  double min_scale = 0.0;     ///< the factor falls no further
  bool highest = false;       ///< a score that should rise in place of a loss
};

/// A factor of the learning rate that falls when a loss has not improved for more than `patience`
/// calls: what torch calls ReduceLROnPlateau, relative threshold.
class PlateauSchedule {
 public:
  explicit PlateauSchedule(const PlateauOptions& options = {}) : options_(options) {}
  /// Takes the next loss; NaN counts as no improvement.
  void update(double loss);
  double scale() const { return state_.scale; }

  /// For checkpoints.
  struct State {
    double scale = 1.0;
    double best = std::numeric_limits<double>::infinity();  ///< infinite: no loss yet
    std::int64_t bad = 0;      ///< calls since the last improvement or fall
    std::int64_t cooling = 0;  ///< calls left of the cooldown
  };
  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }

 private:
  PlateauOptions options_;
  State state_;
};

/// Learning rate by step: linear from 0 over `warmup` steps to `lr`, then half a cosine to
/// `final_lr` at step `steps` (Loshchilov & Hutter 2017).
struct CosineSchedule {
  double lr = 1e-3;
  std::int64_t steps = 1;
  std::int64_t warmup = 0;
  double final_lr = 0.0;
  /// The rate for step `step` (from 0).
  double operator()(std::int64_t step) const;
};

/// lr, multiplied by `factor` after every `every` steps.
struct StepSchedule {
  double lr = 1e-3;
  std::int64_t every = 1;
  double factor = 0.1;
  double operator()(std::int64_t step) const;
};

/// lr, multiplied by `factor` at each of `milestones` (ascending) steps.
struct MultiStepSchedule {
  double lr = 1e-3;
  std::vector<std::int64_t> milestones = {};
  double factor = 0.1;
  double operator()(std::int64_t step) const;
};

/// lr factor^step.
struct ExponentialSchedule {
  double lr = 1e-3;
  double factor = 0.999;
  double operator()(std::int64_t step) const;
};

/// One cycle (Smith & Topin 2018), as torch's OneCycleLR with two phases: half a cosine from
/// max_lr / initial_division up to max_lr at step rising * steps - 1, then half a cosine down to
/// max_lr / (initial_division final_division) at step steps - 1; later steps keep that.
struct OneCycleSchedule {
  double max_lr = 1e-2;
  std::int64_t steps = 1;
  double rising = 0.3;  ///< share of the steps
  double initial_division = 25.0;
  double final_division = 1e4;
  bool linear = false;  ///< straight lines in place of half cosines
  double operator()(std::int64_t step) const;
};

/// From step `from` on the rate goes in `steps` steps from what `before` gives there to `lr`, along
/// half a cosine, and stays: the constant rate that equal averages (EmaOptions::equal) want
/// (torch's SWALR). Throws UsageError where `before` is empty.
Schedule settled(Schedule before, std::int64_t from, std::int64_t steps, double lr);

/// (step + 1) / warmup of what `then` gives at step 0, for the first `warmup` steps; then `then`,
/// which counts its own steps from 0. Throws UsageError where `then` is empty.
Schedule warmed_up(std::int64_t warmup, Schedule then);

}  // namespace tessera::optim
