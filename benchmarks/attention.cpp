// Full attention on the CPU, forward and backward: 4,096 and 16,384 tokens, 12 heads of 64, fp32.
// Beside it PyTorch's fused attention on as many threads, in the same run.
// Usage: bench_attention [threads]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tessera/core/tensor.hpp>
#include <tessera/core/threads.hpp>
#include <tessera/kernels/attention.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/random.hpp>
#include <vector>

#include "measure.hpp"

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
  double forward, backward;
};

Times measure(std::int64_t count, int rounds) {
  const Shape shape{1, count, kHeads, kDepth}, rows{1, count, kHeads};
  Ref<Buffer> memory[9];
  std::vector<Piece> x;
  for (int i = 0; i < 8; ++i) x.push_back(tokens(shape, memory[i]));
  const Piece lse = tokens(rows, memory[8]);
  for (std::uint64_t i = 0; i < 4; ++i) kernels::random_normal({i, 0}, 0.0, 1.0, x[i]);
  const kernels::AttentionOperands operands{x[0], x[1], x[2], {}, {}};
  const kernels::AttentionOptions options{.scale = 0.125};
  const kernels::AttentionSaved saved{x[4].view, lse.view, x[3].view};
  std::vector<double> forward, backward;
  for (int round = 0; round < rounds; ++round) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    kernels::attention_forward(operands, options, {}, x[4].view, lse.view);
    const auto middle = Clock::now();
    for (int i = 5; i < 8; ++i) kernels::fill(x[static_cast<std::size_t>(i)].view, 0.0);
    kernels::attention_grad(operands, options, saved, x[5].view, x[6].view, x[7].view);
    forward.push_back(std::chrono::duration<double>(middle - start).count());
    backward.push_back(std::chrono::duration<double>(Clock::now() - middle).count());
  }
  return {bench::median(forward), bench::median(backward)};
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  set_thread_count(threads);
  const std::map<std::string, std::string> peer = bench::peer_results();
  const auto theirs = [&](const std::string& key) {
    const auto it = peer.find(key);
    return it == peer.end() ? 0.0 : std::stod(it->second);
  };
  nlohmann::json line = {{"benchmark", "attention"},
                         {"unit", "GFLOP/s"},
                         {"threads", threads},
                         {"peer", nullptr},
                         {"ratio", nullptr}};
  if (peer.count("version") > 0) line["peer_name"] = "PyTorch " + peer.at("version");
  std::printf("12 heads of 64, fp32, %d threads     Tessera        PyTorch     ratio\n", threads);
  measure(1024, 2);
  for (const std::int64_t count : {4096, 16384}) {
    const Times ours = measure(count, count < 10000 ? 3 : 1);
    const double products = 4.0 * static_cast<double>(count * count * kHeads * kDepth);
    const auto row = [&](const char* name, double seconds, double factor) {
      const std::string key = std::string(name) + "_" + std::to_string(count);
      const double rate = factor * products / seconds * 1e-9;
      std::printf("%-9s %6lld tokens %8.3f s %5.0f GFLOP/s", name, static_cast<long long>(count),
                  seconds, rate);
      line[key] = rate;
      if (const double t = theirs(key); t > 0) {
        std::printf(" %8.3f s %6.2fx", t, t / seconds);
        line["ratio_" + key] = t / seconds;
        if (key == "forward_16384") {
          line["peer"] = factor * products / t * 1e-9;
          line["ratio"] = t / seconds;
        }
      }
      std::printf("\n");
      if (key == "forward_16384") line["value"] = rate;
    };
    row("forward", ours.forward, 1.0);
    row("backward", ours.backward, 2.5);
  }
  std::printf("%s\n", line.dump().c_str());
}
