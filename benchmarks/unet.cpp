// Forward, training step (AdamW) and memory of the UNet beside PyTorch's on as many threads, in
// turns; of the peer's two memory formats the faster counts. Then the rates of its convolutions
// beside oneDNN's. Memory is what one training step adds
// to the peak of a fresh process that has trained a small model before.
// Usage: bench_unet [threads] [case substring] [rounds]
#include <omp.h>

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
#include <tessera/models/unet.hpp>
#include <tessera/nn/optim.hpp>
#include <vector>

#include "onednn_conv.hpp"
#include "turns.hpp"
#include "waves.hpp"

namespace {

using namespace tessera;
using bench::Server;
using bench::timed;
using bench::Timing;

struct Case {
  const char* name;
  int dims;
  std::int64_t size;
  std::int64_t base;

  std::string words() const { return str(dims, " ", size, " ", base); }
};

const Case kCases[] = {{"3-D 64^3", 3, 64, 16}, {"3-D 96^3", 3, 96, 16}, {"2-D 512^2", 2, 512, 16}};

/// The convolutions of the 3-D model at 64^3.
const bench::ConvCase kConvolutions[] = {
    {"1->16 64^3", {64, 64, 64}, 1, 1, 16, 3, 1, 1},
    {"16->16 64^3", {64, 64, 64}, 1, 16, 16, 3, 1, 1},
    {"32->16 64^3", {64, 64, 64}, 1, 32, 16, 3, 1, 1},
    {"16->1 64^3", {64, 64, 64}, 1, 16, 1, 3, 1, 1},
    {"16->32 64^3, stride 2", {64, 64, 64}, 1, 16, 32, 3, 2, 1},
    {"32->32 32^3", {32, 32, 32}, 1, 32, 32, 3, 1, 1},
    {"64->64 16^3", {16, 16, 16}, 1, 64, 64, 3, 1, 1},
    {"128->128 8^3", {8, 8, 8}, 1, 128, 128, 3, 1, 1},
};

class Job {
 public:
  explicit Job(const Case& c)
      : model_({.dims = c.dims, .base = c.base}, Mesh::self()),
        adam_(model_.parameters(), {.weight_decay = 0.0}) {
    bench::set_waves(model_);
    Shape shape{1};
    for (int d = 0; d < c.dims; ++d) shape.push_back(c.size);
    shape.push_back(1);
    const auto field = [&](double phase) {
      const Tensor t = Tensor::empty(Layout::replicated(Mesh::self(), shape));
      bench::fill_with_wave(t, phase);
      return t;
    };
    x_ = field(0.0);
    target_ = field(1.0);
  }

  double forward() {
    const NoGrad guard;
    return mse_loss(model_(x_), target_).item();
  }
  double train() {
    const Tensor loss = mse_loss(model_(x_), target_);
    backward(loss);
    adam_.step();
    return loss.item();
  }
  std::int64_t parameters() { return model_.parameter_count(); }

 private:
  models::UNet model_;
  optim::AdamW adam_;
  Tensor x_, target_;
};

std::int64_t memory_of(const Case& c) {
  Job({"", c.dims, 16, c.base}).train();
  Job job(c);
  return bench::added_memory([&] { job.train(); });
}

struct Row {
  double ours = 0, peer = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const bool memory_only = argc > 3 && std::strcmp(argv[1], "memory") == 0;
  const int threads = argc > 1 ? std::atoi(argv[memory_only ? 2 : 1]) : 2;
  tessera::set_thread_count(threads);
  if (memory_only) {
    std::printf("%lld\n", static_cast<long long>(memory_of(kCases[std::atoi(argv[3])])));
    return 0;
  }
  const std::string wanted = argc > 2 ? argv[2] : "";
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 7;
  bench::Peer script("unet_torch.py");
  Server* const peer = script.serve(threads);

  std::printf("%d thread(s); ms and MB of tessera / %s (memory format of the faster): ratio\n",
              threads, script.name().c_str());
  std::printf("%-11s%29s%29s%29s\n", "", "forward", "training step", "memory of a step");
  bench::TrainingMeans means;
  nlohmann::json cases;
  for (std::size_t i = 0; i < std::size(kCases); ++i) {
    const Case& c = kCases[i];
    if (std::string(c.name).find(wanted) == std::string::npos) continue;
    Row forward, train, memory;
    std::string format[2] = {"-", "-"};
    double loss_difference = 0;
    {
      Job job(c);
      if (peer) bench::set_case(*peer, c.words(), job.parameters());
      const char* const commands[] = {"forward", "train"};
      for (int k = 0; k < 2; ++k) {
        const auto run = [&] { return k == 0 ? job.forward() : job.train(); };
        const Timing start = timed(run);
        if (peer) {
          double best = 1e30;
          for (const std::string name : {"first", "last"}) {
            const Timing cold = timed(*peer, str(commands[k], " ", name));
            loss_difference =
                std::max(loss_difference, std::abs(start.loss - cold.loss) / cold.loss);
            const double t = timed(*peer, str(commands[k], " ", name)).seconds;
            if (t < best) format[k] = name;
            best = std::min(best, t);
          }
          timed(run);  // both formats have taken two steps
        }
        const bench::Turns turns = bench::take_turns([&] { return timed(run); }, peer,
                                                     str(commands[k], " ", format[k]), rounds, 0);
        loss_difference = std::max(loss_difference, turns.difference);
        (k == 0 ? forward : train) = {turns.ours * 1e3, turns.peer * 1e3};
      }
    }
    memory.ours = 1e-6 * bench::number_from({"/proc/self/exe", "memory", str(threads), str(i)});
    if (peer)
      memory.peer = 1e-6 * bench::number_from(script.command(
                               str("memory ", threads, " ", c.words(), " ", format[1])));
    const auto print = [&](const Row& r, double ratio) {
      if (peer) {
        std::printf("%10.0f / %-6.0f: %4.2f x", r.ours, r.peer, ratio);
      } else {
        std::printf("%10.0f%17s", r.ours, "");
      }
    };
    std::printf("%-11s", c.name);
    print(forward, forward.peer / forward.ours);
    print(train, train.peer / train.ours);
    print(memory, memory.ours / std::max(memory.peer, 1e-9));
    std::printf("  channels %s, losses within %.0e\n", format[1].c_str(), loss_difference);
    std::fflush(stdout);
    means.add(train.ours, train.peer, memory.ours, memory.peer);
    cases[c.name] = {{"forward_ms", {forward.ours, forward.peer}},
                     {"train_ms", {train.ours, train.peer}},
                     {"memory_mb", {memory.ours, memory.peer}}};
  }
  if (means.cases == 0) return 1;
  omp_set_num_threads(threads);
  const bench::ConvSummary convolutions = bench::print_rates(kConvolutions, "");
  nlohmann::json line = means.last_line("unet", cases, script);
  line["convolutions_to_onednn"] = convolutions.ratio;
  std::printf("%s\n", line.dump().c_str());
}
