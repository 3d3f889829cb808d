// Attention over split tokens, forward and backward: ranks of one thread beside one rank with as
// many threads. Keys and values walk in a ring (or heads are exchanged, where asked for). Both
// sides run in turns; the ratio is taken per pair. Usage: bench_ring [pairs] [tokens] [heads]
// [ranks]
#include <cstdio>
#include <tessera/parallel/runtime.hpp>
#include <tessera/tessera.hpp>

#include "pairs.hpp"

namespace {

using namespace tessera;

constexpr std::int64_t kDepth = 64;
struct Case {
  const char* label;
  AttentionParameters parameters;
};
std::vector<Case> cases() {
  using Names = std::vector<std::string>;
  return {{"ring", {.exchange = Names{}}},
          {"ring, causal", {.causal = true, .exchange = Names{}}},
          {"heads", {.exchange = Names{"part"}}}};
}

class Layer {
 public:
  Layer(std::int64_t tokens, std::int64_t heads) : mesh_(Mesh::world({{"part", process().count}})) {
    const Layout layout = Placement(mesh_).domain(0, "part").resolve({1, tokens, heads, kDepth});
    for (int i = 0; i < 4; ++i) {
      x_.push_back(Tensor::from_function(layout, [&](const Index& at) {
        return std::sin(0.37 * static_cast<double>(at[1] + 3 * at[2]) +
                        0.11 * static_cast<double>(at[3] * (i + 1)));
      }));
      if (i < 3) require_grad(x_.back());
    }
  }
  void step(std::size_t index) {
    const Tensor y = scaled_dot_product_attention(x_[0], x_[1], x_[2], cases()[index].parameters);
    grad({y}, {x_[0], x_[1], x_[2]}, {}, {x_[3]});
  }

 private:
  Mesh mesh_;
  std::vector<Tensor> x_;
};

int work(int argc, char** argv) {
  Runtime runtime(argc, argv);
  return runtime.guard([&] {
    Layer layer(std::atoll(argv[3]), std::atoll(argv[4]));
    bench::serve(argv[2], runtime.rank(), [&](const std::string& line) {
      const auto index = static_cast<std::size_t>(std::stoi(line));
      return bench::text_of(bench::measure_turn([&] { layer.step(index); }));
    });
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 4 && std::string(argv[1]) == "--worker") return work(argc, argv);
  const int pairs = argc > 1 ? std::atoi(argv[1]) : 15;
  const std::string tokens = argc > 2 ? argv[2] : "16384";
  const std::string heads = argc > 3 ? argv[3] : "4";
  const int ranks = argc > 4 ? std::atoi(argv[4]) : 2;
  bench::Job one(1, {tokens, heads}, {"TESSERA_THREADS=" + std::to_string(ranks)});
  bench::Job many(ranks, {tokens, heads}, {"TESSERA_THREADS=1"});
  std::printf(
      "attention, %s tokens, %s heads of %d, fp32, forward and backward: %d ranks of 1 thread / 1 "
      "rank of %d threads, %d pairs\n",
      tokens.c_str(), heads.c_str(), static_cast<int>(kDepth), ranks, ranks, pairs);
  bench::Pairs::print_header("way");
  nlohmann::json line{{"benchmark", "ring"}};
  for (std::size_t i = 0; i < cases().size(); ++i) {
    const bench::Pairs p = bench::run_pairs(many, one, std::to_string(i), pairs, 1);
    p.print(cases()[i].label);
    line["ways"][cases()[i].label] = p.json();
    if (i > 0) continue;
    line["value"] = p.ranks_seconds;
    line["unit"] = "s";
    line["peer"] = {{"name", "one rank, " + std::to_string(ranks) + " threads"},
                    {"value", p.one_seconds}};
    line["ratio"] = p.ratio.median;
  }
  std::printf("%s\n", line.dump().c_str());
}
