// Clipping and a step of AdamW over 1,000 parameters beside PyTorch's fused optimiser (gradients
// clipped with its for-each kernels), in turns; gradients are made outside of the time.
// Usage: bench_adamw [threads] [rounds]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/core/threads.hpp>
#include <tessera/nn/module.hpp>
#include <tessera/nn/optim.hpp>
#include <vector>

#include "turns.hpp"
#include "waves.hpp"

namespace {

using namespace tessera;

constexpr int kParameters = 1000;
constexpr double kMaxNorm = 1.0;

struct Many : nn::Module {
  std::vector<nn::Parameter> list;
  explicit Many(std::int64_t elements) {
    for (int i = 0; i < kParameters; ++i)
      list.emplace_back(Shape{elements}, nn::init::constant(0.5), Mesh::self());
    nn::initialize(*this, 1);
  }
  void fields(nn::Fields& f) override { f("list", list); }
};

class Job {
 public:
  explicit Job(std::int64_t elements)
      : model_(elements),
        adam_(model_.parameters(), {.weight_decay = 0.01, .decay_vectors = true}),
        slope_(Tensor::empty(Layout::replicated(Mesh::self(), {elements}))) {
    bench::fill_with_wave(slope_, 0.0);
  }
  void make_gradients() {
    for (const nn::Parameter& p : model_.list) backward(sum(p() * slope_));
  }
  double step() {
    const double norm = optim::clip_grad_norm(adam_.parameters(), kMaxNorm);
    adam_.step();
    return norm;
  }

 private:
  Many model_;
  optim::AdamW adam_;
  Tensor slope_;
};

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 31;
  tessera::set_thread_count(threads);
  bench::Peer script("adamw_torch.py");
  bench::Server* const peer = script.serve(threads);
  std::printf("clipping + AdamW, %d parameters, %d thread(s); us of tessera / %s: ratio\n",
              kParameters, threads, script.name().c_str());
  nlohmann::json cases;
  bench::Turns turns;
  double log_ratio = 0;
  for (const std::int64_t elements : {16, 256, 4096}) {
    Job job(elements);
    if (peer != nullptr) peer->ask(str("case ", elements));
    const auto step = [&] {
      job.make_gradients();
      return bench::timed([&] { return job.step(); });
    };
    turns = bench::take_turns(step, peer, "step", rounds, 2);
    const double ratio = turns.peer / turns.ours;
    std::printf("%5lld elements each: %8.0f / %-8.0f %5.2f x    norms within %.0e\n",
                static_cast<long long>(elements), 1e6 * turns.ours, 1e6 * turns.peer, ratio,
                turns.difference);
    std::fflush(stdout);
    log_ratio += std::log(ratio);
    cases[str(elements)] = {1e6 * turns.ours, 1e6 * turns.peer};
  }
  const nlohmann::json line =
      bench::last_line("adamw", 1e6 * turns.ours, "us per step", cases, script, 1e6 * turns.peer,
                       std::exp(log_ratio / static_cast<double>(cases.size())));
  std::printf("%s\n", line.dump().c_str());
}
