// ranks: 1 2 3 4
// What is computed again in backward gives the bits of what was kept.
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/observe.hpp>
#include <tessera/autograd/ops/attention.hpp>
#include <tessera/autograd/ops/conv.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/norm.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/autograd/recompute.hpp>
#include <tessera/core/memory.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

constexpr std::int64_t kChannels = 8;
constexpr std::int64_t kHeads = 2;

Mesh line() { return Mesh::world({{"h", process().count}}); }

Tensor weight(const Shape& shape, std::uint64_t seed, DType dtype = DType::kFloat32) {
  return require_grad(
      to_tensor(random_array(shape, seed), Layout::replicated(line(), shape), dtype));
}

Layout rows(const Shape& shape) {
  std::vector<DimSplit> splits(static_cast<std::size_t>(shape.size()));
  splits[1].axes = {0};
  return Layout::make(line(), shape, splits);
}

/// A convolution with halos, a norm with statistics over all ranks, attention in a ring, dropout.
struct Block {
  std::uint64_t seed;
  DType dtype = DType::kFloat32;
  Tensor kernel = weight({kChannels, 3, 3, kChannels}, seed, dtype);
  Tensor gamma = weight({kChannels}, seed + 1, dtype);
  Tensor beta = weight({kChannels}, seed + 2, dtype);
  Tensor qkv = weight({3 * kChannels, kChannels}, seed + 3, dtype);
  Tensor out = weight({kChannels, kChannels}, seed + 4, dtype);
  Tensor scale = weight({kChannels}, seed + 5, dtype);
  mutable std::uint64_t draws = 0;
  mutable int runs = 0;

  std::vector<Tensor> leaves() const { return {kernel, gamma, beta, qkv, out, scale}; }

  Tensor attend(const Tensor& x) const {
    const Tensor h = layer_norm(x, scale, beta);
    const Tensor all = linear(h, qkv);
    const Shape heads{x.size(0), x.size(1), x.size(2), kHeads, kChannels / kHeads};
    const auto part = [&](std::int64_t i) {
      return reshape(slice(all, -1, i * kChannels, (i + 1) * kChannels), heads);
    };
    const Tensor a = scaled_dot_product_attention(part(0), part(1), part(2));
    return x + linear(gelu(reshape(a, x.shape())), out);
  }
  Tensor convolve(const Tensor& x) const {
    const Tensor y = group_norm(conv(x, kernel, {}, {.pad_lo = {1, 1}}), gamma, beta, 2, 1e-5,
                                Activation::kSilu);
    const RandomKey key = replayed([&] { return RandomKey{seed, draws++}; });
    return x + dropout(y, 0.3, key);
  }
  Tensor operator()(const Tensor& x) const {
    ++runs;
    return attend(convolve(x));
  }
};

enum class Way { kPlain, kBlocks, kNested, kAll, kKeep };

Tensor through(const Block& block, const Tensor& x, Way way) {
  const auto call = [&block](const Tensor& t) { return block(t); };
  switch (way) {
    case Way::kBlocks:
      return recompute(call, x);
    case Way::kKeep:
      return recompute(call, x, {.keep = {"attention", "conv"}});
    case Way::kNested:
      return recompute(
          [&block](const Tensor& t) {
            ++block.runs;
            const Tensor y = recompute([&](const Tensor& u) { return block.convolve(u); }, t);
            return recompute([&](const Tensor& u) { return block.attend(u); }, y * 1.0,
                             {.keep = {"attention"}});
          },
          x);
    default:
      return block(x);
  }
}

struct Result {
  Tensor loss;
  std::vector<Tensor> gradients;
  Traffic traffic;
};

Result train(const std::vector<Block>& blocks, Way way, bool second, DType dtype) {
  for (const Block& b : blocks) {
    b.draws = 0;
    for (const Tensor& leaf : b.leaves()) clear_gradient(leaf);
  }
  const Shape shape{2, 7, 5, kChannels};
  const Tensor x = require_grad(to_tensor(random_array(shape, 99), rows(shape), dtype));
  Result result;
  result.traffic = traffic_of([&] {
    Tensor y = x;
    if (way == Way::kAll) {
      y = recompute(
          [&](const Tensor& t) {
            Tensor u = t;
            for (const Block& b : blocks) u = recompute([&](const Tensor& v) { return b(v); }, u);
            return u;
          },
          y);
    } else {
      for (const Block& b : blocks) y = through(b, y, way);
    }
    Tensor loss = reduced(mean(square(y)));
    if (second) {
      const Tensor force = grad({loss}, {x}, {.create_graph = true})[0];
      loss = loss + reduced(sum(square(force)));
    }
    backward(loss);
    finish_gradients();
    result.loss = loss.detach();
  });
  result.gradients.push_back(gradient(x));
  for (const Block& b : blocks)
    for (const Tensor& leaf : b.leaves()) result.gradients.push_back(gradient(leaf));
  return result;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (!(a.layout() == b.layout()) || a.dtype() != b.dtype()) return false;
  const Tensor p = Tensor::from_local(a.local(), a.layout());
  const Tensor q = Tensor::from_local(b.local(), b.layout());
  return p.local_bytes() == 0 || std::memcmp(p.local().data, q.local().data,
                                             static_cast<std::size_t>(p.local_bytes())) == 0;
}

void check_same(const Result& a, const Result& b) {
  CHECK(same_bits(a.loss, b.loss));
  REQUIRE(a.gradients.size() == b.gradients.size());
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    INFO("gradient " << i);
    REQUIRE(b.gradients[i].defined());
    CHECK(same_bits(a.gradients[i], b.gradients[i]));
  }
}

class Calls : public OpObserver {
 public:
  Calls() : before_(observe_ops(this)) {}
  ~Calls() override { observe_ops(before_); }
  void called(const OpCall& call) override { counts[call.op.name] += 1; }
  std::map<std::string, int> counts;

 private:
  OpObserver* before_;
};

std::int64_t live_bytes() { return MemoryPool::of(Device{}).stats().live_bytes; }

/// The most bytes in use while f runs, beyond those before.
std::int64_t peak_of(const std::function<void()>& f) {
  MemoryPool& pool = MemoryPool::of(Device{});
  const std::int64_t before = pool.stats().live_bytes;
  pool.reset_peak();
  f();
  return pool.stats().peak_bytes - before;
}

}  // namespace

TEST_CASE("losses, gradients and draws are those of a plain run, to the bit") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const std::vector<Block> blocks = {{10, dtype}, {20, dtype}, {30, dtype}};
    const Result plain = train(blocks, Way::kPlain, false, dtype);
    const std::uint64_t draws = blocks[0].draws;
    for (const Way way : {Way::kBlocks, Way::kNested, Way::kKeep, Way::kAll}) {
      INFO("way " << static_cast<int>(way));
      const Result again = train(blocks, way, false, dtype);
      check_same(plain, again);
      CHECK(blocks[0].draws == draws);
    }
  }
}

TEST_CASE("second derivatives") {
  const std::vector<Block> blocks = {{10, DType::kFloat64}, {20, DType::kFloat64}};
  const Result plain = train(blocks, Way::kPlain, true, DType::kFloat64);
  for (const Way way : {Way::kBlocks, Way::kNested, Way::kKeep, Way::kAll})
    check_same(plain, train(blocks, way, true, DType::kFloat64));
}

TEST_CASE("a function runs twice, nested ones once more per level, and kept ops once") {
  const std::vector<Block> blocks = {{10}, {20}};
  const auto runs = [&](Way way) {
    for (const Block& b : blocks) b.runs = 0;
    train(blocks, way, false, DType::kFloat32);
    return blocks[0].runs;
  };
  CHECK(runs(Way::kPlain) == 1);
  CHECK(runs(Way::kBlocks) == 2);
  CHECK(runs(Way::kNested) == 2);
  CHECK(runs(Way::kAll) == 3);
  const auto calls = [&](Way way) {
    Calls seen;
    train(blocks, way, false, DType::kFloat32);
    return seen.counts;
  };
  CHECK(calls(Way::kPlain)["attention"] == 2);
  CHECK(calls(Way::kBlocks)["attention"] == 4);
  CHECK(calls(Way::kBlocks)["conv"] == 4);
  CHECK(calls(Way::kNested)["attention"] == 2);
  CHECK(calls(Way::kNested)["conv"] == 6);
  CHECK(calls(Way::kKeep)["attention"] == 2);
  CHECK(calls(Way::kKeep)["conv"] == 2);
  CHECK(calls(Way::kKeep)["linear"] > calls(Way::kPlain)["linear"]);
}

TEST_CASE("what is sent again is one forward pass, and nothing of what is kept") {
  const std::vector<Block> blocks = {{10}, {20}};
  const auto forward = [&](bool attention) {
    const NoGrad guard;
    const Shape shape{2, 7, 5, kChannels};
    const Tensor x = to_tensor(random_array(shape, 99), rows(shape), DType::kFloat32);
    return traffic_of([&] {
      for (const Block& b : blocks) attention ? b(x) : b.convolve(x);
    });
  };
  const Result plain = train(blocks, Way::kPlain, false, DType::kFloat32);
  const Result again = train(blocks, Way::kBlocks, false, DType::kFloat32);
  CHECK(again.traffic.bytes == plain.traffic.bytes + forward(true).bytes);
  CHECK(again.traffic.messages == plain.traffic.messages + forward(true).messages);
  const Result kept = train(blocks, Way::kKeep, false, DType::kFloat32);
  CHECK(kept.traffic.bytes < again.traffic.bytes + (line().size() == 1 ? 1 : 0));
}

TEST_CASE("forward keeps the inputs alone, and the peak is that of one part") {
  const Mesh mesh = line();
  const Layout layout = Layout::make(mesh, {64 * mesh.size(), 64}, {{{0}, {}}, {}});
  const Tensor x = require_grad(Tensor::full(layout, 0.5));
  const std::int64_t bytes = x.local_bytes();
  constexpr int kDepth = 8;
  const auto block = [](const Tensor& t) {
    Tensor y = t;
    for (int i = 0; i < 6; ++i) y = sin(y) * cos(y);  // keeps four values each
    return y;
  };
  const auto peak = [&](bool again) {
    clear_gradient(x);
    return peak_of([&] {
      Tensor y = x;
      const std::int64_t before = live_bytes();
      for (int i = 0; i < kDepth; ++i) y = again ? recompute(block, y) : block(y);
      const std::int64_t kept = live_bytes() - before;
      if (again) CHECK(kept == kDepth * bytes);  // x was there, the result is
      if (!again) CHECK(kept >= 6 * 2 * kDepth * bytes);
      backward(reduced(sum(y)));
    });
  };
  const std::int64_t plain = peak(false);
  const std::int64_t again = peak(true);
  CHECK(again < plain / 3);
  CHECK(gradient(x).defined());
}

TEST_CASE("several inputs and outputs, some without gradient, some unused, some not touched") {
  const Mesh mesh = line();
  const Layout layout = Layout::make(mesh, {12, 4}, {{{0}, {}}, {}});
  const auto value = [&](std::uint64_t seed) {
    return to_tensor(random_array({12, 4}, seed), layout, DType::kFloat64);
  };
  const Tensor a = require_grad(value(1)), b = require_grad(value(2)), c = value(3);
  Tensor outer;  // taken from outside, not an input
  const RecomputedFunction f = [&](std::span<const Tensor> in) {
    const Tensor unused = sin(in[0]) * in[1];
    const Tensor constant = cos(in[2]);
    const Tensor dead = recompute([](const Tensor& t) { return exp(t); }, in[2]);
    const Tensor lost = recompute([](const Tensor& t) { return exp(t) * t; }, in[0]);
    return std::vector<Tensor>{in[0] * in[1] * outer + dead, constant * in[2], in[1], sin(in[0]),
                               layer_norm(in[0], {}, {})};
  };
  for (const int use : {0, 1, 2, 3}) {
    std::vector<Tensor> results[2];
    for (const bool again : {false, true}) {
      clear_gradient(a);
      clear_gradient(b);
      outer = exp(a);
      const std::vector<Tensor> in = {a, b, c};
      const std::vector<Tensor> out = again ? recompute(f, in) : f(in);
      CHECK_FALSE(requires_grad(out[1]));
      Tensor y = out[0] * out[1];
      if (use == 1) y = y + square(out[2]);
      if (use == 2) y = out[3] * out[2];
      if (use == 3) y = square(out[4]) * out[4];  // an output that its producer can compute again
      backward(reduced(sum(y)));
      results[again] = {gradient(a)};
      if (use != 3) results[again].push_back(gradient(b));
    }
    for (std::size_t i = 0; i < results[0].size(); ++i)
      CHECK(same_bits(results[0][i], results[1][i]));
  }
}

TEST_CASE("without recording it is a plain call; graphs that are dropped leave nothing") {
  const std::int64_t before = live_bytes();
  {
    const Mesh mesh = line();
    const Tensor x = require_grad(Tensor::full(Layout::replicated(mesh, {4}), 2.0));
    int runs = 0;
    const auto f = [&](const Tensor& t) {
      ++runs;
      return square(t);
    };
    {
      const NoGrad guard;
      CHECK_FALSE(requires_grad(recompute(f, x)));
    }
    CHECK(runs == 1);
    const Tensor constant = x.detach();
    CHECK_FALSE(requires_grad(recompute(f, constant)));
    for (int i = 0; i < 3; ++i) {
      const Tensor y = recompute([&](const Tensor& t) { return exp(recompute(f, t)); }, x);
      CHECK(requires_grad(y));
    }
    const Tensor y = recompute(f, x);
    backward(reduced(sum(y)), {.retain_graph = true});
    backward(reduced(sum(y)));
    CHECK(gradient(x).at({0}) == 8.0);
    CHECK_THROWS_AS(backward(reduced(sum(y))), UsageError);
  }
  CHECK(live_bytes() == before);
}

TEST_CASE("what would make the second run another one is an error") {
  const Mesh mesh = line();
  const auto fresh = [&] { return require_grad(Tensor::full(Layout::replicated(mesh, {4}), 2.0)); };
  const Tensor x = fresh();
  int runs = 0;
  const auto messages = [&](const std::function<Tensor(const Tensor&)>& f) {
    runs = 0;
    const Tensor y = recompute(f, x);
    CHECK_THROWS_WITH(backward(reduced(sum(y))), Catch::Contains("recompute: the second run"));
  };
  messages([&](const Tensor& t) { return ++runs == 1 ? exp(t) : sin(t); });
  messages([&](const Tensor& t) { return ++runs == 1 ? exp(t) : exp(t) * t; });
  messages([&](const Tensor& t) { return ++runs == 1 ? exp(t) * t : exp(t); });
  messages([&](const Tensor& t) {
    return ++runs == 1 ? exp(t) : recompute([](const Tensor& u) { return exp(u); }, t);
  });
  const Tensor w = fresh();
  const Tensor y = recompute([&](const Tensor& t) { return t * w; }, x);
  w.mutable_local();
  CHECK_THROWS_WITH(backward(reduced(sum(y))), Catch::Contains("changed in place"));
  CHECK_THROWS_WITH(recompute(
                        [](const Tensor& t) {
                          const Tensor e = sum(square(t));
                          return grad({reduced(e)}, {t}, {.create_graph = true})[0];
                        },
                        x),
                    Catch::Contains("inside of the function"));
  // An exception leaves no trace.
  CHECK_THROWS_AS(recompute([](const Tensor&) -> Tensor { throw ShapeError("no"); }, x),
                  ShapeError);
  clear_gradient(x);
  backward(reduced(sum(square(x))));
  CHECK(gradient(x).at({0}) == 4.0);
}

}  // namespace tessera::test
