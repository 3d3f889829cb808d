// ranks: 1
// Schedules of pipelines, carried out by simulated stages; cuts of lists.
#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <numeric>
#include <tessera/core/error.hpp>
#include <tessera/parallel/pipeline_schedule.hpp>

#include "support/dense.hpp"

namespace tessera::test {
namespace {

using parallel::balanced_runs;
using parallel::pipeline_schedule;
using parallel::PipelineAction;
using parallel::PipelineSchedule;
using parallel::PipelineShape;
using Kind = PipelineAction::Kind;

struct Run {
  std::int64_t makespan = -1;  // -1: the stages wait for each other for ever
  std::vector<int> peak;       // of each stage: forwards whose backward is to come
};

/// Stages that work through their lists as soon as what they need has come; a forward pass of a
/// chunk takes 2, a backward pass 3, messages nothing.
Run simulate(PipelineSchedule schedule, const PipelineShape& p) {
  const auto stages = static_cast<std::size_t>(p.stages);
  const auto parts = static_cast<std::size_t>(p.stages * p.chunks);
  const auto batches = static_cast<std::size_t>(p.micro_batches);
  std::vector<std::vector<PipelineAction>> lists;
  for (int s = 0; s < p.stages; ++s) lists.push_back(pipeline_schedule(schedule, p, s));
  // Time at which part x micro-batch is done, -1: not yet.
  std::vector<std::int64_t> done[2];
  for (auto& d : done) d.assign(parts * batches, -1);
  std::vector<std::size_t> next(stages, 0);
  std::vector<std::int64_t> clock(stages, 0);
  Run run;
  run.peak.assign(stages, 0);
  std::vector<int> in_flight(stages, 0);
  std::deque<std::size_t> ready;
  for (std::size_t s = 0; s < stages; ++s) ready.push_back(s);
  while (!ready.empty()) {
    const std::size_t s = ready.front();
    ready.pop_front();
    for (; next[s] < lists[s].size(); ++next[s]) {
      const PipelineAction& a = lists[s][next[s]];
      const std::size_t part = static_cast<std::size_t>(a.chunk) * stages + s;
      const auto m = static_cast<std::size_t>(a.micro_batch);
      const bool forward = a.kind == Kind::kForward;
      std::int64_t needs = 0;  // when its input is there
      if (forward && part > 0) needs = done[0][(part - 1) * batches + m];
      if (!forward)
        needs = done[part + 1 < parts][(part + 1 < parts ? part + 1 : part) * batches + m];
      if (needs < 0) break;
      if (!forward && done[0][part * batches + m] < 0) break;  // before its own forward: never
      clock[s] = std::max(clock[s], needs) + (forward ? 2 : 3);
      std::int64_t& mine = done[forward ? 0 : 1][part * batches + m];
      if (mine >= 0) return run;  // twice
      mine = clock[s];
      in_flight[s] += forward ? 1 : -1;
      run.peak[s] = std::max(run.peak[s], in_flight[s]);
      const std::size_t to = forward ? part + 1 : part - 1;
      if (to < parts) ready.push_back(to % stages);
    }
  }
  for (std::size_t s = 0; s < stages; ++s)
    if (next[s] < lists[s].size()) return run;
  for (const std::int64_t t : done[0])
    if (t < 0) return run;
  if (schedule != PipelineSchedule::kForward) {
    for (const std::int64_t t : done[1])
      if (t < 0) return run;
  }
  run.makespan = *std::max_element(clock.begin(), clock.end());
  return run;
}

void check_1f1b(int stages, int batches) {
  INFO(stages << " stages, " << batches << " micro-batches");
  const Run run = simulate(PipelineSchedule::kOneForwardOneBackward,
                           {.stages = stages, .micro_batches = batches});
  CHECK(run.makespan == 5LL * (batches + stages - 1));
  for (int s = 0; s < stages; ++s)
    REQUIRE(run.peak[static_cast<std::size_t>(s)] == std::min(batches, stages - s));
}

void check_interleaved(int stages, int rounds, int chunks) {
  const int batches = stages * rounds;
  INFO(stages << " stages of " << chunks << " chunks, " << batches << " micro-batches");
  const Run run = simulate(PipelineSchedule::kInterleaved,
                           {.stages = stages, .chunks = chunks, .micro_batches = batches});
  CHECK(run.makespan == 5LL * (batches * chunks + stages - 1));
  for (int s = 0; s < stages; ++s) {
    const int ahead = (stages - s - 1) * (chunks > 1 ? 2 : 1) + (chunks - 1) * stages;
    REQUIRE(run.peak[static_cast<std::size_t>(s)] == std::min(batches * chunks, ahead + 1));
  }
}

/// The smallest largest sum, by trying every cut.
double best_cut(const std::vector<double>& costs, std::size_t from, int parts) {
  if (parts == 1)
    return std::accumulate(costs.begin() + static_cast<std::ptrdiff_t>(from), costs.end(), 0.0);
  double best = 1e300;
  double first = 0.0;
  for (std::size_t end = from + 1; end + static_cast<std::size_t>(parts) - 1 <= costs.size();
       ++end) {
    first += costs[end - 1];
    best = std::min(best, std::max(first, best_cut(costs, end, parts - 1)));
  }
  return best;
}

}  // namespace

TEST_CASE(
    "pipeline schedule: one forward, one backward has the idle time and memory of the paper") {
  for (const int stages : {1, 2, 3, 4, 7, 16})
    for (const int batches : {1, 2, 3, 4, 8, 33}) check_1f1b(stages, batches);
  check_1f1b(4096, 64);
  check_1f1b(1000, 1500);
}

TEST_CASE("pipeline schedule: interleaved has the idle time and memory of the paper") {
  for (const int stages : {1, 2, 3, 4, 7, 16})
    for (const int rounds : {1, 2, 5})
      for (const int chunks : {1, 2, 3, 6}) check_interleaved(stages, rounds, chunks);
  check_interleaved(1024, 1, 2);
  check_interleaved(256, 2, 4);
}

TEST_CASE("pipeline schedule: forward passes alone take any number of micro-batches") {
  for (const int stages : {1, 2, 5}) {
    for (const int batches : {1, 2, 3, 7}) {
      for (const int chunks : {1, 3}) {
        const Run run = simulate(PipelineSchedule::kForward,
                                 {.stages = stages, .chunks = chunks, .micro_batches = batches});
        CHECK(run.makespan > 0);
        if (batches % stages == 0) CHECK(run.makespan == 2LL * (batches * chunks + stages - 1));
      }
    }
  }
}

TEST_CASE("pipeline schedule: micro-batches of a chunk come in rising order on every stage") {
  for (int stage = 0; stage < 4; ++stage) {
    std::vector<int> seen[2];
    for (auto& s : seen) s.assign(3, -1);
    for (const PipelineAction& a :
         pipeline_schedule(PipelineSchedule::kInterleaved,
                           {.stages = 4, .chunks = 3, .micro_batches = 12}, stage)) {
      int& last = seen[a.kind == Kind::kBackward][static_cast<std::size_t>(a.chunk)];
      CHECK(a.micro_batch == last + 1);
      last = a.micro_batch;
    }
  }
}

TEST_CASE("pipeline schedule: sizes that do not fit are errors with advice") {
  const auto message = [](PipelineSchedule schedule, const PipelineShape& shape) {
    try {
      pipeline_schedule(schedule, shape, 0);
    } catch (const UsageError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK_THAT(
      message(PipelineSchedule::kInterleaved, {.stages = 4, .chunks = 2, .micro_batches = 6}),
      Catch::Contains("Choose a multiple of 4"));
  CHECK_THAT(message(PipelineSchedule::kOneForwardOneBackward, {.stages = 4, .chunks = 2}),
             Catch::Contains("kInterleaved"));
  CHECK_THAT(message(PipelineSchedule::kForward, {.micro_batches = 0}),
             Catch::Contains("at least 1"));
}

TEST_CASE("pipeline cut: the largest run is the smallest possible") {
  CHECK(balanced_runs(std::vector<double>{1, 1, 1, 1}, 2) == std::vector<int>{0, 2, 4});
  CHECK(balanced_runs(std::vector<double>{5, 1, 1, 1}, 2) == std::vector<int>{0, 1, 4});
  CHECK(balanced_runs(std::vector<double>{0, 0, 9}, 3) == std::vector<int>{0, 1, 2, 3});
  Rng rng(11);
  for (int draw = 0; draw < 300; ++draw) {
    const auto n = static_cast<std::size_t>(rng.integer(1, 10));
    std::vector<double> costs(n);
    for (double& c : costs) c = static_cast<double>(rng.integer(0, 8));
    const int parts = static_cast<int>(rng.integer(1, static_cast<std::int64_t>(n)));
    const std::vector<int> bounds = balanced_runs(costs, parts);
    REQUIRE(bounds.size() == static_cast<std::size_t>(parts) + 1);
    CHECK(bounds.front() == 0);
    CHECK(bounds.back() == static_cast<int>(n));
    double largest = 0.0;
    for (int p = 0; p < parts; ++p) {
      const auto at = static_cast<std::size_t>(p);
      REQUIRE(bounds[at] < bounds[at + 1]);
      largest = std::max(largest, std::accumulate(costs.begin() + bounds[at],
                                                  costs.begin() + bounds[at + 1], 0.0));
    }
    CHECK(largest == best_cut(costs, 0, parts));
  }
  const std::vector<double> many(20'000, 1.0);
  const std::vector<int> bounds = balanced_runs(many, 300);
  for (std::size_t p = 0; p < 300; ++p) CHECK(bounds[p + 1] - bounds[p] <= 67);
  CHECK_THROWS_AS(balanced_runs(std::vector<double>{1, 2}, 3), UsageError);
  CHECK_THROWS_AS(balanced_runs(std::vector<double>{1, -2}, 1), UsageError);
}

}  // namespace tessera::test
