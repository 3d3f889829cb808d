// How much of the reduction of gradients hides under backward: training steps of a 2-D UNet on two
// data-parallel ranks of one thread (`scripts/bench -n 2 overlap [rounds] [size] [base] [stage]`,
// stage 0: all-reduce, 2 or 3: reduce-scatter). What a step waits for its reductions is set beside
// the same reductions alone, in turns. Reductions progress in `poll()`, which kernels call between
// tiles and the dispatcher in each exchange: there is no progress thread.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <tessera/nn/shard.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/runtime.hpp>
#include <tessera/parallel/stats.hpp>
#include <tessera/tessera.hpp>

#include "measure.hpp"

namespace {

using namespace tessera;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The gradients of a step in buckets as a step sends them, with nothing else to do.
double alone(const parallel::Group& group, std::vector<float>& data) {
  parallel::barrier(group).wait();
  const auto start = Clock::now();
  constexpr std::size_t kBucket = (1 << 20) / sizeof(float);
  std::vector<parallel::Request> requests;
  for (std::size_t at = 0; at < data.size(); at += kBucket) {
    const auto count = static_cast<std::int64_t>(std::min(kBucket, data.size() - at));
    requests.push_back(parallel::all_reduce(group, data.data() + at, count, DType::kFloat32));
  }
  parallel::wait_all(requests);
  return seconds_since(start);
}

void run(int rounds, std::int64_t size, std::int64_t base, int stage) {
  const Mesh mesh = Mesh::world({{"data", process().count}});
  models::UNet model({.dims = 2, .base = base}, mesh);
  if (stage > 0) nn::shard(model, {.stage = stage});
  optim::Sgd sgd(model.parameters(), {.lr = 1e-6});
  const Layout layout = Placement(mesh).batch("data").resolve({mesh.size(), size, size, 1});
  const Tensor x = Tensor::from_function(
      layout, [](const Index& i) { return std::sin(0.3 * static_cast<double>(i[1] + 2 * i[2])); });
  const Tensor target = x * 0.5;
  std::vector<float> gradients(static_cast<std::size_t>(model.parameter_count()), 1.0f);
  const parallel::Group group = parallel::Group::of(mesh, mesh.all_axes());
  const auto kind = stage == 2 || stage == 3 ? parallel::CallKind::kReduceScatter
                                             : parallel::CallKind::kAllReduce;

  std::vector<double> steps, waits, reductions, flights;
  for (int round = -2; round < rounds; ++round) {
    const double reduction = alone(group, gradients);
    parallel::barrier(group).wait();
    const auto start = Clock::now();
    const Tensor loss = mse_loss(model(x), target);
    parallel::reset_comm_stats();
    backward(loss);
    finish_gradients();
    const parallel::CommCounters counters = parallel::comm_stats()[kind];
    sgd.step();
    const double step = seconds_since(start);
    if (round < 0) continue;
    steps.push_back(step);
    waits.push_back(counters.wait_seconds);
    flights.push_back(counters.overlapped_seconds);
    reductions.push_back(reduction);
  }
  if (process().rank != 0) return;
  const double wait = bench::median(waits);
  const double reduction = bench::median(reductions);
  const double hidden = bench::median(flights) / (bench::median(flights) + wait);
  std::printf("2-D UNet, base %lld, %lld^2 per rank, %.1f MB of gradients, %d ranks, stage %d\n",
              static_cast<long long>(base), static_cast<long long>(size),
              static_cast<double>(gradients.size()) * 4e-6, process().count, stage);
  std::printf("step                          %8.2f ms\n", 1e3 * bench::median(steps));
  std::printf("its reductions alone          %8.2f ms\n", 1e3 * reduction);
  std::printf("waited for in the step        %8.2f ms\n", 1e3 * wait);
  std::printf("in flight under other work    %8.1f %% of the time in flight\n", 100 * hidden);
  std::printf(
      "{\"benchmark\": \"overlap\", \"value\": %.4f, \"unit\": \"s\", \"peer\": \"the reductions "
      "alone\", \"ratio\": %.4f}\n",
      wait, wait / reduction);
}

}  // namespace

int main(int argc, char** argv) {
  Runtime runtime(argc, argv);
  const auto argument = [&](int i, int fallback) {
    return argc > i ? std::atoi(argv[i]) : fallback;
  };
  return runtime.guard(
      [&] { run(argument(1, 15), argument(2, 96), argument(3, 32), argument(4, 0)); });
}
