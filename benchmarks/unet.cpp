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
#include "peer.hpp"
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
  std::int64_t parameters() {
    std::int64_t count = 0;
    for (const nn::Parameter& p : model_.parameters()) count += p.value().numel();
    return count;
  }

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
  Server* const peer = script.serve(threads) ? &script.server() : nullptr;
  const std::string& version = script.name();

  std::printf("%d thread(s); ms and MB of tessera / %s (memory format of the faster): ratio\n",
              threads, peer != nullptr ? version.c_str() : "no peer");
  std::printf("%-11s%29s%29s%29s\n", "", "forward", "training step", "memory of a step");
  double log_speed = 0, log_memory = 0, ours_total = 0, peer_total = 0;
  int measured = 0;
  nlohmann::json cases;
  for (std::size_t i = 0; i < std::size(kCases); ++i) {
    const Case& c = kCases[i];
    if (std::string(c.name).find(wanted) == std::string::npos) continue;
    Row forward, train, memory;
    std::string format[2] = {"-", "-"};
    double loss_difference = 0;
    {
      Job job(c);
      if (peer) {
        const std::string answer = peer->ask("case " + c.words());
        if (answer != str("parameters ", job.parameters(), "\n"))
          throw Error(str("bench_unet: the peer's model differs: ", answer, " for ",
                          job.parameters(), " parameters."));
      }
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
        std::vector<double> a, b;
        for (int round = 0; round < rounds; ++round) {
          const Timing own = timed(run);
          a.push_back(own.seconds);
          if (!peer) continue;
          const Timing other = timed(*peer, str(commands[k], " ", format[k]));
          b.push_back(other.seconds);
          loss_difference = std::max(loss_difference, std::abs(own.loss - other.loss) / other.loss);
        }
        Row& row = k == 0 ? forward : train;
        row.ours = bench::median(a) * 1e3;
        row.peer = bench::median(b) * 1e3;
      }
    }
    {
      Server own({"/proc/self/exe", "memory", str(threads), str(i)});
      memory.ours = std::atof(own.read().c_str()) * 1e-6;
      if (peer) {
        Server other(script.command(str("memory ", threads, " ", c.words(), " ", format[1])));
        memory.peer = std::atof(other.read().c_str()) * 1e-6;
      }
    }
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
    log_speed += std::log(train.peer / train.ours);
    log_memory += std::log(memory.ours / memory.peer);
    ours_total += train.ours;
    peer_total += train.peer;
    ++measured;
    cases[c.name] = {{"forward_ms", {forward.ours, forward.peer}},
                     {"train_ms", {train.ours, train.peer}},
                     {"memory_mb", {memory.ours, memory.peer}}};
  }
  if (measured == 0) return 1;
  omp_set_num_threads(threads);
  const bench::ConvSummary convolutions = bench::print_rates(kConvolutions, "");
  nlohmann::json line;
  line["benchmark"] = "unet";
  line["value"] = ours_total / measured;
  line["unit"] = "ms per training step, mean";
  line["peer"] = nullptr;
  line["ratio"] = nullptr;
  line["cases"] = cases;
  line["convolutions_to_onednn"] = convolutions.ratio;
  line["peer"] = nullptr;
  line["ratio"] = nullptr;
  if (peer) {
    line["peer"] = {{"name", version}, {"value", peer_total / measured}};
    line["ratio"] = std::exp(log_speed / measured);
    line["memory_ratio"] = std::exp(log_memory / measured);
  }
  std::printf("%s\n", line.dump().c_str());
}
