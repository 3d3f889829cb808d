// ranks: 1
#include <catch2/catch.hpp>
#include <cmath>
#include <numbers>
#include <tessera/core/error.hpp>
#include <tessera/nn/schedules.hpp>

namespace tessera::test {

TEST_CASE("cosine schedule") {
  const optim::CosineSchedule lr = {.lr = 2.0, .steps = 110, .warmup = 10, .final_lr = 0.5};
  CHECK(lr(0) == Approx(0.2));
  CHECK(lr(9) == Approx(2.0));
  CHECK(lr(10) == Approx(2.0));
  CHECK(lr(60) == Approx(1.25));
  CHECK(lr(110) == Approx(0.5));
  CHECK(lr(200) == Approx(0.5));
  for (int s = 10; s < 110; ++s) CHECK(lr(s + 1) < lr(s));
}

TEST_CASE("the rate falls when a loss does not") {
  optim::PlateauSchedule schedule({.factor = 0.5, .patience = 2});
  const double losses[] = {1.0, 0.9, 0.9, 0.89999, std::nan(""), 0.95, 0.5, 0.6, 0.6, 0.6, 0.6};
  const double scales[] = {1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25};
  for (std::size_t i = 0; i < std::size(losses); ++i) {
    // A copy that goes on from the state is the same.
    optim::PlateauSchedule copy({.factor = 0.5, .patience = 2});
    copy.set_state(schedule.state());
    schedule = copy;
    schedule.update(losses[i]);
    CHECK(schedule.scale() == scales[i]);
  }
}

TEST_CASE("plateaus with a cooldown, a floor, and scores that should rise") {
  optim::PlateauSchedule schedule({.factor = 0.5,
                                   .patience = 1,
                                   .threshold = 0.1,
                                   .cooldown = 2,
                                   .min_scale = 0.3,
                                   .highest = true});
  // -4 is better than -5 by more than a tenth, -3.9 than -4 is not.
  const double scores[] = {-5, -4, -3.9, -3.9, -9, -9, -9, -9, -3, -3, -3, -3, -3};
  const double scales[] = {1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3};
  for (std::size_t i = 0; i < std::size(scores); ++i) {
    const optim::PlateauSchedule::State kept = schedule.state();
    schedule.update(std::nan(""));
    schedule.set_state(kept);
    schedule.update(scores[i]);
    INFO("call " << i);
    CHECK(schedule.scale() == scales[i]);
  }
  CHECK(schedule.state().best == -3);
}

TEST_CASE("rates that fall in steps") {
  const optim::StepSchedule steps = {.lr = 2.0, .every = 3, .factor = 0.5};
  const optim::MultiStepSchedule milestones = {.lr = 2.0, .milestones = {2, 3, 7}, .factor = 0.1};
  const optim::ExponentialSchedule exponential = {.lr = 2.0, .factor = 0.9};
  double power = 2.0;
  for (int s = 0; s < 12; ++s) {
    CHECK(steps(s) == Approx(2.0 * std::pow(0.5, s / 3)));
    const int passed = (s >= 2 ? 1 : 0) + (s >= 3 ? 1 : 0) + (s >= 7 ? 1 : 0);
    CHECK(milestones(s) == Approx(2.0 * std::pow(0.1, passed)));
    CHECK(exponential(s) == Approx(power));
    power *= 0.9;
  }
}

TEST_CASE("one cycle") {
  const optim::OneCycleSchedule cycle = {
      .max_lr = 1.0, .steps = 10, .rising = 0.3, .initial_division = 4, .final_division = 5};
  // torch: the top is at step 0.3 * 10 - 1, the end at step 9.
  CHECK(cycle(0) == Approx(0.25));
  CHECK(cycle(1) == Approx(0.625));
  CHECK(cycle(2) == Approx(1.0));
  for (int s = 3; s < 9; ++s)
    CHECK(cycle(s) == Approx(0.05 + 0.95 / 2 * (1 + std::cos(std::numbers::pi * (s - 2) / 7.0))));
  CHECK(cycle(9) == Approx(0.05));
  CHECK(cycle(20) == Approx(0.05));
  optim::OneCycleSchedule lines = cycle;
  lines.linear = true;
  CHECK(lines(1) == Approx(0.625));
  CHECK(lines(4) == Approx(1.0 - 0.95 * 2 / 7));
  CHECK(std::isfinite(optim::OneCycleSchedule{}(0)));
}

TEST_CASE("warm-up in front of any schedule, a constant rate behind one") {
  const optim::Schedule falling = optim::StepSchedule{.lr = 4.0, .every = 2, .factor = 0.5};
  const optim::Schedule warm = optim::warmed_up(4, falling);
  const double rates[] = {1, 2, 3, 4, 4, 4, 2, 2, 1};
  for (int s = 0; s < 9; ++s) CHECK(warm(s) == Approx(rates[s]));
  const optim::Schedule settled = optim::settled(warm, 6, 2, 1.0);
  CHECK(settled(5) == Approx(4.0));
  CHECK(settled(6) == Approx(2.0));
  CHECK(settled(7) == Approx(1.5));
  CHECK(settled(8) == Approx(1.0));
  CHECK(settled(80) == Approx(1.0));
  CHECK_THROWS_AS(optim::warmed_up(4, {}), UsageError);
  CHECK_THROWS_AS(optim::settled({}, 4, 4, 1.0), UsageError);
}

}  // namespace tessera::test
