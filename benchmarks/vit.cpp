// Training step (AdamW) and memory of a ViT-B with patches of 16 beside PyTorch's on as many
// threads, in turns: a field of 512^2 (1,024 tokens) and of 1024^2 (4,096). Memory is what one
// training step adds to a process that holds parameters and the optimiser's state.
// Usage: bench_vit [threads] [case substring] [rounds] [f32|bf16] [recompute]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/core/threads.hpp>
#include <tessera/models/vit.hpp>
#include <tessera/nn/optim.hpp>
#include <vector>

#include "turns.hpp"
#include "waves.hpp"

namespace {

using namespace tessera;

struct Case {
  const char* name;
  std::int64_t size;
};

const Case kCases[] = {{"512^2", 512}, {"1024^2", 1024}};
constexpr std::int64_t kPatch = 16;
/// A run that diverges makes denormal gradients, which slow the peer down (and not this code).
constexpr double kRate = 1e-5;

/// How ours computes; the peer computes in fp32.
struct Way {
  bool narrow = false;
  bool again = false;
};

models::ViTOptions options_of(const Case& c) {
  models::ViTOptions o = models::ViTOptions::preset("base");
  o.in_channels = 3;
  o.positions = models::ViTOptions::Positions::kLearned;
  o.grid = {c.size / kPatch, c.size / kPatch};
  return o;
}

class Job {
 public:
  Job(const Case& c, const Way& way)
      : model_(options_of(c), Mesh::self()),
        adam_(model_.parameters(), {.lr = kRate, .weight_decay = 0.0}) {
    if (way.narrow) nn::compute_in(model_, DType::kBFloat16);
    if (way.again) nn::recompute(model_, "blocks.*", {.keep = {"attention"}});
    bench::set_waves(model_);
    const auto field = [&](std::int64_t channels, double phase) {
      const Tensor t =
          Tensor::empty(Layout::replicated(Mesh::self(), {1, c.size, c.size, channels}));
      bench::fill_with_wave(t, phase);
      return t;
    };
    x_ = field(3, 0.0);
    target_ = field(1, 1.0);
    (void)adam_.state();
  }

  double train() {
    const Tensor loss = mse_loss(model_(x_), target_);
    backward(loss);
    adam_.step();
    return loss.item();
  }
  std::int64_t parameters() { return model_.parameter_count(); }

 private:
  models::ViT model_;
  optim::AdamW adam_;
  Tensor x_, target_;
};

}  // namespace

int main(int argc, char** argv) {
  const bool memory_only = argc > 4 && std::strcmp(argv[1], "memory") == 0;
  const int threads = argc > 1 ? std::atoi(argv[memory_only ? 2 : 1]) : 2;
  tessera::set_thread_count(threads);
  Way way;
  for (int i = 1; i < argc; ++i) {
    way.narrow |= std::strcmp(argv[i], "bf16") == 0;
    way.again |= std::strcmp(argv[i], "recompute") == 0;
  }
  if (memory_only) {
    Job job(kCases[std::atoi(argv[3])], way);
    std::printf("%lld\n", static_cast<long long>(bench::added_memory([&] { job.train(); })));
    return 0;
  }
  const std::string wanted = argc > 2 ? argv[2] : "";
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 3;
  bench::Peer script("vit_torch.py");
  bench::Server* const peer = script.serve(threads);

  std::printf("ViT-B, patch 16, %s%s, %d thread(s); ms and MB of tessera / %s: ratio\n",
              way.narrow ? "bf16" : "fp32", way.again ? ", blocks recomputed" : "", threads,
              script.name().c_str());
  bench::TrainingMeans means;
  nlohmann::json cases;
  for (std::size_t i = 0; i < std::size(kCases); ++i) {
    const Case& c = kCases[i];
    if (std::string(c.name).find(wanted) == std::string::npos) continue;
    bench::Turns turns;
    {
      Job job(c, way);
      if (peer != nullptr) bench::set_case(*peer, str(c.size), job.parameters());
      const auto step = [&] { return bench::timed([&] { return job.train(); }); };
      turns = bench::take_turns(step, peer, "train", rounds, 1);
    }
    const double ours = turns.ours * 1e3, theirs = turns.peer * 1e3;
    const double own_memory =
        1e-6 * bench::number_from({"/proc/self/exe", "memory", str(threads), str(i),
                                   way.narrow ? "bf16" : "f32", way.again ? "recompute" : "keep"});
    double peer_memory = 0;
    if (peer != nullptr)
      peer_memory = 1e-6 * bench::number_from(script.command(str("memory ", threads, " ", c.size)));
    std::printf("%-8s step %8.0f / %-8.0f %5.2f x    memory %7.0f / %-7.0f %5.2f x", c.name, ours,
                theirs, theirs / ours, own_memory, peer_memory,
                own_memory / std::max(peer_memory, 1e-9));
    std::printf("    first losses within %.0e\n", turns.first_difference);
    std::fflush(stdout);
    means.add(ours, theirs, own_memory, peer_memory);
    cases[c.name] = {{"train_ms", {ours, theirs}}, {"memory_mb", {own_memory, peer_memory}}};
  }
  if (means.cases == 0) return 1;
  std::printf("%s\n", means.last_line("vit", cases, script).dump().c_str());
}
