// ranks: 1 2 4
// Models that compute parts of themselves again: marks by path, draws, memory, plans.
#include <catch2/catch.hpp>
#include <cstring>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/attention.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/norm.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/inspect/plan.hpp>
#include <tessera/nn/layers.hpp>
#include <tessera/nn/optim.hpp>
#include <tessera/parallel/stats.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

constexpr std::int64_t kChannels = 16;

/// x + proj(attention(x)), then x + mlp(x), with dropout.
struct Block : nn::Layer {
  nn::Linear qkv, proj, fc1, fc2;
  nn::Dropout drop{0.25};
  explicit Block(const Mesh& mesh)
      : qkv({.in = kChannels, .out = 3 * kChannels}, mesh),
        proj({.in = kChannels, .out = kChannels}, mesh),
        fc1({.in = kChannels, .out = 4 * kChannels}, mesh),
        fc2({.in = 4 * kChannels, .out = kChannels}, mesh) {}
  void fields(nn::Fields& f) override {
    f("qkv", qkv);
    f("proj", proj);
    f("fc1", fc1);
    f("fc2", fc2);
    f("drop", drop);
  }
  Tensor forward(const Tensor& x) const override {
    const Tensor all = qkv(x);
    const auto part = [&](std::int64_t i) {
      return reshape(slice(all, -1, i * kChannels, (i + 1) * kChannels),
                     {x.size(0), x.size(1), x.size(2), 4, kChannels / 4});
    };
    const Tensor a = scaled_dot_product_attention(part(0), part(1), part(2));
    const Tensor y = x + drop(proj(reshape(a, x.shape())));
    return y + drop(fc2(gelu(fc1(y))));
  }
};

/// Two outputs: not a Layer.
struct Gate : nn::Module {
  nn::Linear linear;
  explicit Gate(const Mesh& mesh) : linear({.in = kChannels, .out = kChannels}, mesh) {}
  void fields(nn::Fields& f) override { f("linear", linear); }
  bool can_recompute() const override { return true; }
  std::vector<Tensor> operator()(const Tensor& x, const Tensor& y) const {
    return run(
        [this](std::span<const Tensor> in) {
          const Tensor g = sigmoid(linear(in[0]));
          return std::vector<Tensor>{g * in[1], in[0] - g};
        },
        {x, y});
  }
};

struct Net : nn::Module {
  std::vector<Block> blocks;
  Gate gate;
  explicit Net(const Mesh& mesh) : gate(mesh) {
    for (int i = 0; i < 4; ++i) blocks.emplace_back(mesh);
    nn::initialize(*this, 5);
  }
  void fields(nn::Fields& f) override {
    f("blocks", blocks);
    f("gate", gate);
  }
  Tensor operator()(const Tensor& x) const {
    Tensor y = x;
    for (const Block& b : blocks) y = b(y);
    const std::vector<Tensor> z = gate(y, x);
    return z[0] * z[1];
  }
};

enum class Marks { kNone, kBlocks, kKeep, kNested, kGate };
void mark(nn::Module& net, Marks marks) {
  if (marks == Marks::kBlocks) nn::recompute(net, "blocks.*");
  if (marks == Marks::kKeep) nn::recompute(net, "blocks.?", {.keep = {"attention"}});
  if (marks == Marks::kNested) {
    nn::recompute(net, "blocks.*");
    nn::recompute(net, "*.fc?");
  }
  if (marks == Marks::kGate) nn::recompute(net, "gate");
}

class Fit : public nn::Workload {
 public:
  Fit(const Mesh& mesh, Marks marks) : net_(mesh), adam_(net_.parameters(), {.lr = 0.01}) {
    mark(net_, marks);
    layout_ = Placement(mesh).shard(1, {"h"}).resolve({2, 16 * mesh.size(), 12, kChannels});
  }
  nn::Module& model() override { return net_; }
  Tensor loss(std::int64_t step) override {
    net_.random().step = static_cast<std::uint64_t>(step);
    const auto noise = [step](std::int64_t salt) {
      return [=](const Index& i) {
        std::int64_t n = salt + 7 * step;
        for (int d = 0; d < i.size(); ++d) n = (n * 31 + i[d] * 17 + 5) % 1009;
        return static_cast<double>(n) / 1009.0;
      };
    };
    const Tensor x = Tensor::from_function(layout_, noise(1));
    return mse_loss(net_(x), Tensor::from_function(layout_, noise(2)));
  }
  void update() override { adam_.step(); }
  std::vector<double> train(int steps) {
    std::vector<double> losses;
    for (int s = 0; s < steps; ++s) {
      const Tensor value = loss(s);
      losses.push_back(value.item());
      backward(value);
      update();
    }
    return losses;
  }

 private:
  Net net_;
  optim::AdamW adam_;
  Layout layout_;
};

Mesh line() { return Mesh::world({{"h", process().count}}); }

}  // namespace

TEST_CASE("training is the same to the bit, dropout included") {
  const std::vector<double> plain = Fit(line(), Marks::kNone).train(4);
  CHECK(plain[3] != plain[0]);
  for (const Marks marks : {Marks::kBlocks, Marks::kKeep, Marks::kNested, Marks::kGate})
    CHECK(Fit(line(), marks).train(4) == plain);
}

TEST_CASE("forward passes of other micro-batches in between change no draw") {
  std::vector<double> sums[2];
  for (const Marks marks : {Marks::kNone, Marks::kBlocks}) {
    Fit fit(line(), marks);
    fit.model().random().micro_batch = 0;
    const Tensor first = fit.loss(0);
    fit.model().random().micro_batch = 1;
    const Tensor second = fit.loss(0);
    backward(first, {.reduce = false});
    backward(second);
    const auto again = fit.loss(0).item();
    sums[marks == Marks::kBlocks] = {first.item(), second.item(), again,
                                     optim::grad_norm(fit.model().parameters())};
  }
  CHECK(sums[0] == sums[1]);
}

TEST_CASE("a plan counts what a real step does, memory too") {
  std::int64_t peaks[3];
  for (const Marks marks : {Marks::kNone, Marks::kBlocks, Marks::kKeep}) {
    const nn::MakeWorkload make = [&](const Mesh& m) { return std::make_unique<Fit>(m, marks); };
    const Mesh mesh = line();
    const nn::RankPlan plan = nn::plan_rank({{"h", mesh.size()}}, mesh.rank(), make);
    Fit fit(mesh, marks);
    const nn::RankPlan real = nn::measure_rank(mesh, fit);
    CHECK(plan.sent.total().messages == real.sent.total().messages);
    CHECK(plan.sent.total().bytes == real.sent.total().bytes);
    CHECK(plan.peak_bytes == real.peak_bytes);
    CHECK(plan.rest_bytes == real.rest_bytes);
    peaks[static_cast<int>(marks)] = plan.peak_bytes - plan.rest_bytes;
  }
  CHECK(peaks[1] < peaks[0] / 2);
  CHECK(peaks[1] < peaks[2]);
  CHECK(peaks[2] < peaks[0] * 2 / 3);
}

TEST_CASE("marks") {
  Net net(line());
  nn::recompute(net, "blocks.*");
  CHECK(net.blocks[1].recomputes() != nullptr);
  CHECK(net.blocks[1].fc1.recomputes() == nullptr);  // inside one that matches
  CHECK(net.gate.recomputes() == nullptr);
  nn::recompute(net, "*fc1", {.keep = {"linear"}});
  CHECK(net.blocks[1].fc1.recomputes()->keep.size() == 1);
  CHECK_THROWS_WITH(nn::recompute(net, "stage*"), Catch::Contains("blocks.0"));
  CHECK_THROWS_WITH(nn::recompute(net, ""), Catch::Contains("Layer::operator()"));
}

}  // namespace tessera::test
