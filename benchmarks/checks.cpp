// What TESSERA_CHECKS=collective costs: a training step of a 3-D UNet whose domain is split, with
// the checks and without, in turns. The ratio is taken per pair.
// Usage: scripts/bench -n RANKS checks [pairs] [size] [base]
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <tessera/models/unet.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/stats.hpp>
#include <tessera/tessera.hpp>

#include "measure.hpp"

namespace {

using namespace tessera;

class Training {
 public:
  Training(std::int64_t size, std::int64_t base)
      : mesh_(Mesh::world({{"d", process().count}})),
        model_({.dims = 3, .base = base, .multipliers = {1, 2}}, mesh_),
        adam_(model_.parameters(), {.lr = 1e-3}) {
    const Layout layout = Placement(mesh_).domain(0, "d").resolve(
        {1, size, size, size, 1}, {.multiple = model_.total_stride()});
    x_ = Tensor::from_function(layout, [](const Index& at) {
      return std::sin(0.1 * static_cast<double>(at[1] + 2 * at[2] + 3 * at[3]));
    });
  }
  /// Seconds of one step of all ranks together.
  double step(bool checks) {
    parallel::barrier(parallel::Group::world()).wait();
    parallel::set_collective_checks(checks);
    const auto start = std::chrono::steady_clock::now();
    const Tensor loss = mse_loss(model_(x_), x_);
    backward(loss);
    adam_.step();
    parallel::barrier(parallel::Group::world()).wait();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    parallel::set_collective_checks(false);
    return seconds.count();
  }

 private:
  Mesh mesh_;
  models::UNet model_;
  optim::AdamW adam_;
  Tensor x_;
};

int work(int argc, char** argv) {
  const int pairs = argc > 1 ? std::atoi(argv[1]) : 15;
  const std::int64_t size = argc > 2 ? std::atoll(argv[2]) : 64;
  const std::int64_t base = argc > 3 ? std::atoll(argv[3]) : 16;
  Training training(size, base);
  training.step(true);
  training.step(false);
  std::vector<double> with;
  std::vector<double> without;
  std::vector<double> ratios;
  std::int64_t calls = 0;
  for (int i = 0; i < pairs; ++i) {
    // The first of a pair changes, since the machine's pace drifts.
    const bool first = i % 2 == 0;
    const double a = training.step(first);
    const std::int64_t before = parallel::comm_stats().total().calls;
    const double b = training.step(!first);
    calls = parallel::comm_stats().total().calls - before;
    with.push_back(first ? a : b);
    without.push_back(first ? b : a);
    ratios.push_back(with.back() / without.back());
  }
  if (process().rank != 0) return 0;
  const double ratio = bench::median(ratios);
  std::printf(
      "UNet %lld^3, %lld channels, %d ranks, %lld calls per step: %.1f ms with checks, %.1f ms "
      "without, ratio of %d pairs %.3f\n",
      static_cast<long long>(size), static_cast<long long>(base), process().count,
      static_cast<long long>(calls), 1e3 * bench::median(with), 1e3 * bench::median(without), pairs,
      ratio);
  const nlohmann::json line{{"benchmark", "checks"},   {"value", 1e3 * bench::median(with)},
                            {"unit", "ms per step"},   {"peer", 1e3 * bench::median(without)},
                            {"ratio", ratio},          {"calls", calls},
                            {"ranks", process().count}};
  std::printf("%s\n", line.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Runtime runtime(argc, argv);
  return runtime.guard([&] { return work(argc, argv); });
}
