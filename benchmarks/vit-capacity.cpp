// How many more tokens one can train on with several ranks: the tallest field whose training step
// (forward, backward, AdamW) of a ViT fits in the same memory for each rank, on one rank and on
// several that split the height, searched to one row of tokens. The limit is what one rank needs
// for `tokens`. The search plans steps (their bytes are those of real ones); what it finds is then
// trained for one step under TESSERA_MEMORY_LIMIT.
// Usage: bench_vit-capacity [ranks] [tokens] [channels] [depth] [plan: do not train]
#include <cstdio>
#include <nlohmann/json.hpp>
#include <tessera/nn/inspect/plan.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/runtime.hpp>
#include <tessera/tessera.hpp>

#include "jobs.hpp"

namespace {

using namespace tessera;

constexpr std::int64_t kPatch = 4;
constexpr std::int64_t kWide = 16;  // tokens in a row

struct Size {
  std::int64_t channels = 64;
  int depth = 6;
};

class Step : public nn::Workload {
 public:
  Step(const Mesh& mesh, const Size& size, std::int64_t rows)
      : model_(options(size), mesh), adam_(model_.parameters(), {.lr = 1e-4}) {
    layout_ = Placement(mesh).domain(0, "h").resolve({1, rows * kPatch, kWide * kPatch, 1},
                                                     {.multiple = model_.total_stride()});
  }
  nn::Module& model() override { return model_; }
  Tensor loss(std::int64_t) override {
    return mse_loss(model_(Tensor::full(layout_, 0.5)), Tensor::full(layout_, 0.25));
  }
  void update() override { adam_.step(); }

 private:
  static models::ViTOptions options(const Size& size) {
    return {.patch = {kPatch},
            .channels = size.channels,
            .depth = size.depth,
            .heads = size.channels / 32};
  }
  models::ViT model_;
  optim::AdamW adam_;
  Layout layout_;
};

/// Bytes that a step takes on the fullest of `ranks`.
std::int64_t planned(int ranks, const Size& size, std::int64_t rows) {
  const nn::Plan plan = nn::plan_step(
      {{"h", ranks}}, [&](const Mesh& mesh) { return std::make_unique<Step>(mesh, size, rows); });
  return plan.largest().peak_bytes;
}

/// The most rows that fit, near `guess`.
std::int64_t tallest(int ranks, const Size& size, std::int64_t guess, std::int64_t limit) {
  const auto fits = [&](std::int64_t rows) { return planned(ranks, size, rows) <= limit; };
  std::int64_t good = 0, bad = 0, step = std::max<std::int64_t>(guess / 32, 1);
  for (std::int64_t at = guess; good == 0 || bad == 0; step *= 2) {
    if (at < ranks) return 0;
    if (fits(at)) {
      good = at;
      at += step;
    } else {
      bad = at;
      at -= step;
    }
  }
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

int work(int argc, char** argv) {
  Runtime runtime(argc, argv);
  const Size size{std::atoll(argv[3]), std::atoi(argv[4])};
  // The report of a job that ran out of memory is no news here.
  if (std::freopen("/dev/null", "w", stderr) == nullptr) return 1;
  return runtime.guard([&] {
    bench::serve(argv[2], runtime.rank(), [&](const std::string& line) {
      const Mesh mesh = Mesh::world({{"h", process().count}});
      Step job(mesh, size, std::stoll(line));
      job.run(0);
      job.run(1);
      std::int64_t peak = MemoryPool::of(Device{}).stats().peak_bytes;
      parallel::all_reduce(parallel::Group::world(), &peak, 1, DType::kInt64, ReduceOp::kMax)
          .wait();
      return std::to_string(peak);
    });
  });
}

/// Whether steps of this size run under the limit.
bool trains(int ranks, const Size& size, std::int64_t rows, std::int64_t limit) {
  bench::Job job(ranks, {std::to_string(size.channels), std::to_string(size.depth)},
                 {"TESSERA_THREADS=1", "TESSERA_MEMORY_LIMIT=" + std::to_string(limit)});
  return !job.run(std::to_string(rows)).empty();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 4 && std::string(argv[1]) == "--worker") return work(argc, argv);
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 8;
  const std::int64_t tokens = argc > 2 ? std::atoll(argv[2]) : 4096;
  Size size;
  if (argc > 3) size.channels = std::atoll(argv[3]);
  if (argc > 4) size.depth = std::atoi(argv[4]);
  const bool train = argc <= 5;
  const std::int64_t one = tokens / kWide;
  const std::int64_t limit = planned(1, size, one);
  std::printf("ViT of %d blocks of %lld channels, %s for each rank\n", size.depth,
              static_cast<long long>(size.channels), format_bytes(limit).c_str());
  const std::int64_t most = tallest(1, size, one, limit);
  const std::int64_t many = tallest(ranks, size, most * ranks * 31 / 32, limit);
  const double ratio = static_cast<double>(many) / static_cast<double>(most);
  std::printf("1 rank:  %lld tokens\n%d ranks: %lld tokens, %.3f times as many, %lld per rank\n",
              static_cast<long long>(most * kWide), ranks, static_cast<long long>(many * kWide),
              ratio, static_cast<long long>(many * kWide / ranks));
  std::fflush(stdout);
  if (train) {
    const bool works = trains(1, size, most, limit) && trains(ranks, size, many, limit);
    const bool ends = !trains(ranks, size, many + many / 32, limit);
    std::printf("trained under the limit: %s; with 3 %% more: %s\n", works ? "yes" : "NO",
                ends ? "out of memory" : "STILL FITS");
    if (!works || !ends) return 1;
  }
  nlohmann::json line = {
      {"benchmark", "vit-capacity"},
      {"value", many * kWide},
      {"unit", "tokens on " + std::to_string(ranks) + " ranks"},
      {"peer", {{"name", "one rank, the same memory limit"}, {"value", most * kWide}}},
      {"ratio", ratio}};
  std::printf("%s\n", line.dump().c_str());
}
