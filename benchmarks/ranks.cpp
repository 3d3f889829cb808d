// One training step (forward, backward, AdamW) of a 3-D UNet on the cores of this machine: ranks of
// one thread that split the domain, beside one rank with as many threads. Both sides run in turns;
// the ratio is taken per pair. Usage: bench_ranks [pairs] [size] [base] [ranks] [splits, e.g. dhw]
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/runtime.hpp>
#include <tessera/parallel/stats.hpp>
#include <tessera/tessera.hpp>

#include "jobs.hpp"

namespace {

using namespace tessera;

struct Setting {
  int pairs = 15;
  std::int64_t size = 64;
  std::int64_t base = 16;
  int ranks = 2;
  std::string splits = "dhw";
};

/// What one process reports of a turn.
struct Turn {
  double seconds = 0;
  double waited = 0;      ///< for halos
  double overlapped = 0;  ///< halos in flight under computation
  double reduced = 0;     ///< waited for sums and gathers
  double bytes = 0;       ///< of halos, sent
};

class Trainer {
 public:
  Trainer(std::int64_t size, std::int64_t base)
      : mesh_(Mesh::world({{"part", process().count}})),
        model_({.dims = 3, .base = base}, mesh_),
        adam_(model_.parameters(), {.lr = 1e-4}) {
    for (int d = 0; d < 3; ++d) {
      const Layout layout = Placement(mesh_).domain(d, "part").resolve(
          {1, size, size, size, 1}, {.multiple = model_.total_stride()});
      x_.push_back(Tensor::from_function(layout, [](const Index& i) {
        return std::sin(0.3 * static_cast<double>(i[1] + 2 * i[2]) +
                        0.1 * static_cast<double>(i[3]));
      }));
      target_.push_back(x_.back() * 0.5);
    }
  }

  Turn turn(std::size_t split) {
    using Clock = std::chrono::steady_clock;
    const parallel::Group all = parallel::Group::world();
    parallel::barrier(all).wait();
    parallel::reset_comm_stats();
    const auto start = Clock::now();
    const Tensor loss = mse_loss(model_(x_[split]), target_[split]);
    backward(loss);
    adam_.step();
    Turn t;
    t.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const parallel::CommStats stats = parallel::comm_stats();
    const parallel::CommCounters halos = stats.point_to_point();
    t.waited = halos.wait_seconds;
    t.overlapped = halos.overlapped_seconds;
    t.reduced = stats.total().wait_seconds - halos.wait_seconds;
    t.bytes = static_cast<double>(halos.bytes);
    parallel::all_reduce(all, &t.seconds, 5, DType::kFloat64, ReduceOp::kMax).wait();
    return t;
  }

 private:
  Mesh mesh_;
  models::UNet model_;
  optim::AdamW adam_;
  std::vector<Tensor> x_, target_;
};

int work(int argc, char** argv) {
  Runtime runtime(argc, argv);
  return runtime.guard([&] {
    Trainer trainer(std::atoll(argv[3]), std::atoll(argv[4]));
    bench::serve(argv[2], runtime.rank(), [&](const std::string& line) {
      const Turn t = trainer.turn(static_cast<std::size_t>(std::stoi(line)));
      std::ostringstream answer;
      answer << t.seconds << ' ' << t.waited << ' ' << t.overlapped << ' ' << t.reduced << ' '
             << t.bytes;
      return answer.str();
    });
  });
}

Turn take_turn(bench::Job& job, int split) {
  std::istringstream answer(job.run(std::to_string(split)));
  Turn t;
  if (!(answer >> t.seconds >> t.waited >> t.overlapped >> t.reduced >> t.bytes))
    throw std::runtime_error("a job ended early");
  return t;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 4 && std::string(argv[1]) == "--worker") return work(argc, argv);
  Setting s;
  if (argc > 1) s.pairs = std::atoi(argv[1]);
  if (argc > 2) s.size = std::atoll(argv[2]);
  if (argc > 3) s.base = std::atoll(argv[3]);
  if (argc > 4) s.ranks = std::atoi(argv[4]);
  if (argc > 5) s.splits = argv[5];
  const std::vector<std::string> arguments = {std::to_string(s.size), std::to_string(s.base)};
  bench::Job one(1, arguments, {"TESSERA_THREADS=" + std::to_string(s.ranks)});
  bench::Job many(s.ranks, arguments, {"TESSERA_THREADS=1"});

  std::printf(
      "3-D UNet, base %lld, 4 levels, %lld^3: %d ranks of 1 thread / 1 rank of %d threads, %d "
      "pairs\n%-8s%12s%12s%9s%18s%12s%12s%10s%14s\n",
      static_cast<long long>(s.base), static_cast<long long>(s.size), s.ranks, s.ranks, s.pairs,
      "split", "ranks ms", "one ms", "ratio", "95 % interval", "wait ms", "hidden", "sums ms",
      "halo KiB/rank");
  nlohmann::json line;
  line["benchmark"] = "ranks";
  for (const char axis : s.splits) {
    const std::string names = "dhw";
    const int split = static_cast<int>(names.find(axis));
    if (split < 0 || split > 2) throw std::runtime_error("splits are some of d, h, w");
    const char* const label =
        std::array{"depth", "height", "width"}[static_cast<std::size_t>(split)];
    std::vector<double> ours, theirs, ratios, waited, hidden, reduced, bytes;
    for (int warm = 0; warm < 2; ++warm) {
      take_turn(one, split);
      take_turn(many, split);
    }
    for (int pair = 0; pair < s.pairs; ++pair) {
      // The order alternates, so a drift of the machine favours neither side.
      Turn a, b;
      if (pair % 2 == 0) a = take_turn(many, split);
      b = take_turn(one, split);
      if (pair % 2 == 1) a = take_turn(many, split);
      ours.push_back(a.seconds);
      theirs.push_back(b.seconds);
      ratios.push_back(a.seconds / b.seconds);
      waited.push_back(a.waited);
      hidden.push_back(a.overlapped / std::max(a.overlapped + a.waited, 1e-9));
      reduced.push_back(a.reduced);
      bytes.push_back(a.bytes);
    }
    const bench::Interval95 ratio(ratios);
    std::printf("%-8s%12.1f%12.1f%9.3f%9.3f -%7.3f%12.2f%11.0f%%%10.2f%14.0f\n", label,
                1e3 * bench::median(ours), 1e3 * bench::median(theirs), ratio.median, ratio.low,
                ratio.high, 1e3 * bench::median(waited), 100 * bench::median(hidden),
                1e3 * bench::median(reduced), bench::median(bytes) / 1024);
    std::fflush(stdout);
    line["splits"][label] = {{"ratio", ratio.median},
                             {"interval", {ratio.low, ratio.high}},
                             {"wait_seconds", bench::median(waited)},
                             {"overlapped_share", bench::median(hidden)}};
    if (line.contains("ratio")) continue;
    line["value"] = bench::median(ours);
    line["unit"] = "s per step";
    line["peer"] = {{"name", "one rank, " + std::to_string(s.ranks) + " threads"},
                    {"value", bench::median(theirs)}};
    line["ratio"] = ratio.median;
  }
  std::printf("%s\n", line.dump().c_str());
}
