// One training step (forward, backward, AdamW) of a 3-D UNet on the cores of this machine: ranks of
// one thread that split the domain, beside one rank with as many threads. Both sides run in turns;
// the ratio is taken per pair. Usage: bench_ranks [pairs] [size] [base] [ranks] [splits, e.g. dhw]
#include <cstdio>
#include <tessera/parallel/runtime.hpp>
#include <tessera/tessera.hpp>

#include "pairs.hpp"

namespace {

using namespace tessera;

struct Setting {
  int pairs = 15;
  std::int64_t size = 64;
  std::int64_t base = 16;
  int ranks = 2;
  std::string splits = "dhw";
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

  void step(std::size_t split) {
    const Tensor loss = mse_loss(model_(x_[split]), target_[split]);
    backward(loss);
    adam_.step();
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
      const auto split = static_cast<std::size_t>(std::stoi(line));
      return bench::text_of(bench::measure_turn([&] { trainer.step(split); }));
    });
  });
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
      "pairs\n",
      static_cast<long long>(s.base), static_cast<long long>(s.size), s.ranks, s.ranks, s.pairs);
  bench::Pairs::print_header("split");
  nlohmann::json line;
  line["benchmark"] = "ranks";
  for (const char axis : s.splits) {
    const std::string names = "dhw";
    const int split = static_cast<int>(names.find(axis));
    if (split < 0 || split > 2) throw std::runtime_error("splits are some of d, h, w");
    const char* const label =
        std::array{"depth", "height", "width"}[static_cast<std::size_t>(split)];
    const bench::Pairs pairs = bench::run_pairs(many, one, std::to_string(split), s.pairs, 2);
    pairs.print(label);
    line["splits"][label] = pairs.json();
    if (line.contains("ratio")) continue;
    line["value"] = pairs.ranks_seconds;
    line["unit"] = "s per step";
    line["peer"] = {{"name", "one rank, " + std::to_string(s.ranks) + " threads"},
                    {"value", pairs.one_seconds}};
    line["ratio"] = pairs.ratio.median;
  }
  std::printf("%s\n", line.dump().c_str());
}
