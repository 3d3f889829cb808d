// Full attention on the CPU, forward and backward, 12 heads of 64, fp32: 16 samples of 256 tokens,
// 4,096 and 16,384 tokens. PyTorch's fused attention takes turns with it on as many threads.
// Usage: bench_attention [threads]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <tessera/core/tensor.hpp>
#include <tessera/core/threads.hpp>
#include <tessera/kernels/attention.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/random.hpp>
#include <vector>

#include "measure.hpp"
#include "peer.hpp"

namespace {

using namespace tessera;

constexpr std::int64_t kHeads = 12, kDepth = 64;

/// Zeros in memory of the pool, where tensors lie.
Piece tokens(const Shape& shape, Ref<Buffer>& memory) {
  memory = MemoryPool::of({}).allocate(static_cast<std::size_t>(shape.product()) * sizeof(float));
  const View view = View::dense(memory->data(), DType::kFloat32, shape);
  kernels::fill(view, 0.0);
  return {view, Box::whole(shape), shape};
}

struct Times {
  std::vector<double> forward, backward;
};

/// The tensors of one case.
class Case {
 public:
  Case(std::int64_t tokens_per_sample, std::int64_t samples) {
    const Shape shape{samples, tokens_per_sample, kHeads, kDepth};
    for (std::size_t i = 0; i < 8; ++i) x_.push_back(tokens(shape, memory_[i]));
    lse_ = tokens({samples, tokens_per_sample, kHeads}, memory_[8]);
    for (std::uint64_t i = 0; i < 4; ++i) kernels::random_normal({i, 0}, 0.0, 1.0, x_[i]);
  }

  void run(Times& times) const {
    const kernels::AttentionOperands operands{x_[0], x_[1], x_[2], {}, {}};
    const kernels::AttentionOptions options{.scale = 0.125};
    const kernels::AttentionSaved saved{x_[4].view, lse_.view, x_[3].view};
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    kernels::attention_forward(operands, options, {}, x_[4].view, lse_.view);
    const auto middle = Clock::now();
    for (std::size_t i = 5; i < 8; ++i) kernels::fill(x_[i].view, 0.0);
    kernels::attention_grad(operands, options, saved, x_[5].view, x_[6].view, x_[7].view);
    times.forward.push_back(std::chrono::duration<double>(middle - start).count());
    times.backward.push_back(std::chrono::duration<double>(Clock::now() - middle).count());
  }

 private:
  Ref<Buffer> memory_[9];
  std::vector<Piece> x_;
  Piece lse_;
};

void run_peer(bench::Server& peer, std::int64_t count, std::int64_t samples, Times& times) {
  std::istringstream words(peer.ask(str(count, " ", samples)));
  std::string name;
  double forward = 0, backward = 0;
  if (!(words >> name >> forward >> name >> backward))
    throw Error("bench_attention: the peer did not answer.");
  times.forward.push_back(forward);
  times.backward.push_back(backward);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  set_thread_count(threads);
  bench::Peer script("attention_torch.py");
  bench::Server* const peer = script.serve(threads);
  nlohmann::json line = {{"benchmark", "attention"},
                         {"unit", "GFLOP/s"},
                         {"threads", threads},
                         {"peer", nullptr},
                         {"ratio", nullptr}};
  if (peer != nullptr) line["peer_name"] = script.name();
  std::printf("12 heads of 64, fp32, %d threads; medians           Tessera        %s\n", threads,
              peer != nullptr ? script.name().c_str() : "");
  Times warm;
  Case(1024, 1).run(warm);
  struct Size {
    std::int64_t tokens, samples;
    int rounds;
  };
  for (const Size size : {Size{256, 16, 7}, Size{4096, 1, 5}, Size{16384, 1, 2}}) {
    const Case own(size.tokens, size.samples);
    Times ours, theirs;
    for (int round = 0; round < size.rounds; ++round) {
      own.run(ours);
      if (peer != nullptr) run_peer(*peer, size.tokens, size.samples, theirs);
    }
    const double products =
        4.0 * static_cast<double>(size.samples * size.tokens * size.tokens * kHeads * kDepth);
    const auto row = [&](const char* name, double own_time, double peer_time, double factor) {
      const std::string key = str(name, "_", size.tokens);
      const double rate = factor * products / own_time * 1e-9;
      std::printf("%-9s %3lld x %6lld tokens %8.4f s %5.0f GFLOP/s", name,
                  static_cast<long long>(size.samples), static_cast<long long>(size.tokens),
                  own_time, rate);
      line[key] = rate;
      if (peer != nullptr) {
        std::printf(" %8.4f s %6.2fx", peer_time, peer_time / own_time);
        line["ratio_" + key] = peer_time / own_time;
      }
      std::printf("\n");
      std::fflush(stdout);
      if (key != "forward_16384") return;
      line["value"] = rate;
      if (peer == nullptr) return;
      line["peer"] = factor * products / peer_time * 1e-9;
      line["ratio"] = peer_time / own_time;
    };
    row("forward", bench::median(ours.forward), bench::median(theirs.forward), 1.0);
    row("backward", bench::median(ours.backward), bench::median(theirs.backward), 2.5);
  }
  std::printf("%s\n", line.dump().c_str());
}
