// How much more one can train on several ranks: the deepest 3-D UNet problem (one step: forward,
// backward, AdamW) that fits in the same TESSERA_MEMORY_LIMIT for each rank, on one rank and on
// several that split the depth, both searched to the plane. The limit is what one rank needs for a
// depth of `depth`. Usage: bench_capacity [ranks] [cross-section] [depth] [base]
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/runtime.hpp>
#include <tessera/tessera.hpp>

#include "jobs.hpp"

namespace {

using namespace tessera;

/// Most bytes that any rank had in use in one step with the state of the optimiser there.
std::int64_t train(std::int64_t cross, std::int64_t base, std::int64_t depth) {
  const Mesh mesh = Mesh::world({{"d", process().count}});
  models::UNet model({.dims = 3, .base = base}, mesh);
  optim::AdamW adam(model.parameters(), {.lr = 1e-4});
  (void)adam.state();
  const Layout layout = Placement(mesh).domain(0, "d").resolve({1, depth, cross, cross, 1},
                                                               {.multiple = model.total_stride()});
  const Tensor x = Tensor::full(layout, 0.5);
  const Tensor target = Tensor::full(layout, 0.25);
  backward(mse_loss(model(x), target));
  adam.step();
  std::int64_t peak = MemoryPool::of(Device{}).stats().peak_bytes;
  parallel::all_reduce(parallel::Group::world(), &peak, 1, DType::kInt64, ReduceOp::kMax).wait();
  return peak;
}

int work(int argc, char** argv) {
  Runtime runtime(argc, argv);
  // The report of a job that ran out of memory is no news here.
  if (std::freopen("/dev/null", "w", stderr) == nullptr) return 1;
  return runtime.guard([&] {
    bench::serve(argv[2], runtime.rank(), [&](const std::string& line) {
      return std::to_string(train(std::atoll(argv[3]), std::atoll(argv[4]), std::stoll(line)));
    });
  });
}

struct Search {
  std::int64_t cross, base;
  int trials = 0;

  /// Peak bytes of the fullest rank; 0 where it does not fit.
  std::int64_t peak(int ranks, std::int64_t depth, std::int64_t limit) {
    ++trials;
    std::vector<std::string> environment = {"TESSERA_THREADS=1"};
    if (limit > 0) environment.push_back("TESSERA_MEMORY_LIMIT=" + std::to_string(limit));
    bench::Job job(ranks, {std::to_string(cross), std::to_string(base)}, environment);
    const std::string answer = job.run(std::to_string(depth));
    return answer.empty() ? 0 : std::stoll(answer);
  }

  /// The largest depth that fits, near `guess`. What fits at one depth fits at a smaller one.
  std::int64_t deepest(int ranks, std::int64_t guess, std::int64_t limit) {
    std::int64_t good = 0, bad = 0, step = std::max<std::int64_t>(guess / 32, 1);
    for (std::int64_t at = guess; good == 0 || bad == 0; step *= 2) {
      if (peak(ranks, at, limit) > 0) {
        good = at;
        at += step;
      } else {
        bad = at;
        at = std::max<std::int64_t>(at - step, 1);
        if (bad == 1) return 0;
      }
    }
    while (bad - good > 1) {
      const std::int64_t middle = good + (bad - good) / 2;
      (peak(ranks, middle, limit) > 0 ? good : bad) = middle;
    }
    return good;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc > 4 && std::string(argv[1]) == "--worker") return work(argc, argv);
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 8;
  Search search{.cross = argc > 2 ? std::atoll(argv[2]) : 32,
                .base = argc > 4 ? std::atoll(argv[4]) : 16};
  const std::int64_t depth = argc > 3 ? std::atoll(argv[3]) : 256;
  const std::int64_t limit = search.peak(1, depth, 0);
  std::printf("3-D UNet, base %lld, 4 levels, %lldx%lldxdepth, %s for each rank\n",
              static_cast<long long>(search.base), static_cast<long long>(search.cross),
              static_cast<long long>(search.cross), format_bytes(limit).c_str());
  std::fflush(stdout);
  const std::int64_t one = search.deepest(1, depth, limit);
  std::printf("1 rank:  %lld planes\n", static_cast<long long>(one));
  std::fflush(stdout);
  const std::int64_t many = search.deepest(ranks, one * ranks * 31 / 32, limit);
  const double ratio = static_cast<double>(many) / static_cast<double>(one);
  std::printf("%d ranks: %lld planes, %.3f times as many; %lld voxels per rank; %d trials\n", ranks,
              static_cast<long long>(many), ratio,
              static_cast<long long>(many * search.cross * search.cross / ranks), search.trials);
  nlohmann::json line;
  line["benchmark"] = "capacity";
  line["value"] = many * search.cross * search.cross;
  line["unit"] = "voxels on " + std::to_string(ranks) + " ranks";
  line["peer"] = {{"name", "one rank, the same memory limit"},
                  {"value", one * search.cross * search.cross}};
  line["ratio"] = ratio;
  std::printf("%s\n", line.dump().c_str());
}
