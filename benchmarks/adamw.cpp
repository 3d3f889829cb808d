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

#include "measure.hpp"
#include "peer.hpp"
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
  bench::Server* const peer = script.serve(threads) ? &script.server() : nullptr;
  std::printf("clipping + AdamW, %d parameters, %d thread(s); us of tessera / %s: ratio\n",
              kParameters, threads, peer != nullptr ? script.name().c_str() : "no peer");
  nlohmann::json cases;
  double ours = 0, theirs = 0, log_ratio = 0;
  int measured = 0;
  for (const std::int64_t elements : {16, 256, 4096}) {
    Job job(elements);
    if (peer != nullptr) peer->ask(str("case ", elements));
    std::vector<double> a, b;
    double difference = 0;
    for (int round = 0; round < rounds + 2; ++round) {  // the first two are warm-up
      job.make_gradients();
      const bench::Timing own = bench::timed([&] { return job.step(); });
      if (round > 1) a.push_back(own.seconds * 1e6);
      if (peer == nullptr) continue;
      const bench::Timing other = bench::timed(*peer, "step");
      if (round > 1) b.push_back(other.seconds * 1e6);
      difference = std::max(difference, std::abs(own.loss - other.loss) / other.loss);
    }
    ours = bench::median(a);
    theirs = bench::median(b);
    std::printf("%5lld elements each: %8.0f / %-8.0f %5.2f x    norms within %.0e\n",
                static_cast<long long>(elements), ours, theirs, theirs / ours, difference);
    std::fflush(stdout);
    log_ratio += std::log(theirs / ours);
    ++measured;
    cases[str(elements)] = {ours, theirs};
  }
  nlohmann::json line = {{"benchmark", "adamw"}, {"value", ours},    {"unit", "us per step"},
                         {"peer", nullptr},      {"ratio", nullptr}, {"cases", cases}};
  if (peer != nullptr) {
    line["peer"] = {{"name", script.name()}, {"value", theirs}};
    line["ratio"] = std::exp(log_ratio / measured);
  }
  std::printf("%s\n", line.dump().c_str());
}
