// ranks: 1 2 3 4
// Fully sharded parameters, gradients and optimiser states: the numbers of one rank, the traffic
// and the memory of the method, and uneven batches.
#include <catch2/catch.hpp>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/nn/averages.hpp>
#include <tessera/nn/layers.hpp>
#include <tessera/nn/norms.hpp>
#include <tessera/nn/optim.hpp>
#include <tessera/nn/shard.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

Mesh line() { return Mesh::world({{"x", process().count}}); }

/// Sizes that no number of ranks divides, and parameters smaller than the group.
struct Net : nn::Module {
  nn::Linear a, b, c;
  nn::LayerNorm norm;
  nn::Dropout dropout{0.25};
  nn::Parameter scale;
  explicit Net(const Mesh& mesh, DType dtype = DType::kFloat64)
      : a({.in = 5, .out = 9}, mesh, dtype),
        b({.in = 9, .out = 3}, mesh, dtype),
        c({.in = 3, .out = 1}, mesh, dtype),
        norm({.channels = 9}, mesh, dtype),
        scale(Shape{}, nn::init::constant(0.5), mesh, dtype) {
    nn::initialize(*this, 3);
  }
  void fields(nn::Fields& f) override {
    f("a", a);
    f("norm", norm);
    f("dropout", dropout);
    f("b", b);
    f("c", c);
    f("scale", scale);
  }
  Tensor operator()(const Tensor& x) const {
    const Tensor h = dropout(tanh(norm(a(x))));
    return c(tanh(b(h) * scale()));
  }
};

struct Result {
  std::vector<double> losses;
  std::vector<DenseArray> weights;
};

/// 20 steps of AdamW with clipping, each of `micro` micro-batches of 6 samples.
Result train(Net& net, const Mesh& mesh, int micro) {
  optim::AdamW adam(net.parameters(), {.lr = 1e-2, .decay_vectors = true});
  optim::Ema ema(net.parameters());
  Result result;
  for (std::uint64_t step = 0; step < 20; ++step) {
    double total = 0.0;
    for (int m = 0; m < micro; ++m) {
      net.random().step = step;
      net.random().micro_batch = static_cast<std::uint64_t>(m);
      const std::uint64_t draw = 10 * step + static_cast<std::uint64_t>(m);
      const Placement rows = mesh.size() > 1 ? Placement(mesh).batch("x") : Placement(mesh);
      const Tensor x = to_tensor(random_array({6, 5}, 100 + draw), rows.resolve({6, 5}));
      const Tensor t = to_tensor(random_array({6, 1}, 900 + draw), rows.resolve({6, 1}));
      const Tensor loss = mse_loss(net(x), t) * (1.0 / micro);
      backward(loss, {.reduce = m + 1 == micro});
      total += reduced(loss).item();
    }
    optim::clip_grad_norm(net.parameters(), 0.3);
    adam.step();
    ema.update();
    result.losses.push_back(total);
  }
  const optim::EmaScope averages(ema);
  for (const nn::Parameter& p : net.parameters()) result.weights.push_back(to_dense(p.value()));
  net.eval();
  const NoGrad no_grad;
  const Tensor x = to_tensor(random_array({6, 5}, 7), Layout::replicated(mesh, {6, 5}));
  result.weights.push_back(to_dense(net(x)));  // with the averages
  return result;
}

/// A stack of square layers without biases: each weight `width`^2 elements.
struct Stack : nn::Module {
  std::vector<nn::Linear> layers;
  Stack(int depth, std::int64_t width, const Mesh& mesh) {
    for (int i = 0; i < depth; ++i)
      layers.emplace_back(nn::LinearOptions{.in = width, .out = width, .bias = false}, mesh,
                          DType::kFloat64);
    nn::initialize(*this, 1);
  }
  void fields(nn::Fields& f) override { f("layers", layers); }
  Tensor operator()(const Tensor& x) const {
    Tensor y = x;
    for (const nn::Linear& layer : layers) y = layer(y);
    return y;
  }
};

constexpr int kDepth = 6;
constexpr std::int64_t kWidth = 192;
constexpr std::int64_t kWeight = kWidth * kWidth * 8;

std::int64_t live() { return MemoryPool::of({}).stats().live_bytes; }
std::int64_t peak() { return MemoryPool::of({}).stats().peak_bytes; }

Tensor input(const Mesh& mesh) {
  const Shape shape = {4, kWidth};
  return to_tensor(random_array(shape, 5), Placement(mesh).batch("x").resolve(shape));
}

}  // namespace

TEST_CASE("20 steps of training: any stage gives what one rank gives") {
  const int stage = GENERATE(0, 1, 2, 3);
  const int micro = GENERATE(1, 2);
  Net one(Mesh::self());
  const Result expected = train(one, Mesh::self(), micro);
  CHECK(expected.losses.back() != expected.losses.front());
  const Mesh mesh = line();
  Net many(mesh);
  if (stage > 0) nn::shard(many, {.stage = stage});
  const Result actual = train(many, mesh, micro);
  INFO("stage " << stage << ", " << micro << " micro-batches");
  for (std::size_t i = 0; i < actual.losses.size(); ++i)
    CHECK(actual.losses[i] == Approx(expected.losses[i]).epsilon(1e-10));
  for (std::size_t i = 0; i < actual.weights.size(); ++i)
    CHECK(compare(str("weights ", i), actual.weights[i], expected.weights[i], 1e-10) == "");
}

TEST_CASE("what is split in each stage") {
  const Mesh mesh = line();
  const bool cut = mesh.size() > 1;
  for (const int stage : {1, 2, 3}) {
    Net net(mesh);
    nn::shard(net, {.stage = stage});
    const nn::Parameter& w = net.a.weight;
    CHECK(w.use().is_replicated());
    CHECK(w.optimizer_layout().is_split(0) == cut);
    CHECK(w.rest().is_split(0) == (cut && stage > 1));
    CHECK(net.b.weight.optimizer_layout().is_split(1) == (mesh.size() == 2));
    optim::AdamW adam(net.parameters());
    for (const auto& [name, t] : adam.state())
      if (name.starts_with("a.weight")) CHECK(t.layout() == w.optimizer_layout());
    backward(sum(net(to_tensor(random_array({6, 5}, 1), Layout::replicated(mesh, {6, 5})))));
    CHECK(gradient(w.value()).layout() == w.rest());
  }
  Net net(mesh);
  nn::shard(net, {.min_elements = 28});
  CHECK(net.a.weight.rest().is_split(0) == cut);
  CHECK(net.b.weight.rest().is_replicated());
  CHECK_THROWS_AS(nn::shard(net, {.stage = 4}), UsageError);
  CHECK_THROWS_AS(nn::shard(net, {.axes = {"y"}}), UsageError);
}

TEST_CASE("traffic per step is that of the method") {
  const Mesh mesh = line();
  const std::int64_t once = (mesh.size() - 1) * kDepth * kWeight;  // of all ranks together
  const std::int64_t backward_reads = (mesh.size() - 1) * (kDepth - 1) * kWeight;
  // The scalar loss: everybody to everybody.
  const std::int64_t scalar = mesh.size() * (mesh.size() - 1) * 8;
  for (const int stage : {0, 1, 2, 3}) {
    Stack net(kDepth, kWidth, mesh);
    if (stage > 0) nn::shard(net, {.stage = stage});
    optim::Sgd sgd(net.parameters(), {.lr = 1e-9, .momentum = 0.5});
    const Tensor x = input(mesh);
    const auto step = [&](int micro) {
      for (int m = 0; m < micro; ++m) backward(reduced(sum(net(x))), {.reduce = m + 1 == micro});
      sgd.step();
    };
    const std::int64_t gradients = stage < 2 ? 2 * once : once;
    // The first layer's input has no gradient, so its weight is not read in backward.
    const std::int64_t parameters = stage == 0 ? 0 : (stage == 3 ? once + backward_reads : once);
    for (int i = 0; i < 3; ++i) {  // the first, and those that know what is read next
      INFO("stage " << stage << ", step " << i);
      CHECK(traffic_of([&] { step(1); }).bytes == gradients + parameters + scalar);
    }
    INFO("stage " << stage << ", two micro-batches");
    const std::int64_t again = stage == 3 ? parameters : 0;
    const std::int64_t sent = traffic_of([&] { step(2); }).bytes;
    // Nothing in between says that a pass ends: the parameter read first may start to move once
    // more.
    CHECK(sent >= gradients + parameters + again + 2 * scalar);
    CHECK(sent <= gradients + parameters + again + 2 * scalar + (stage == 3 ? once / kDepth : 0));
  }
}

TEST_CASE("memory per rank falls with the number of ranks") {
  const Mesh mesh = line();
  const int ranks = mesh.size();
  const std::int64_t part = kDepth * kWeight / ranks;
  for (const int stage : {0, 1, 2, 3}) {
    INFO("stage " << stage << ", " << ranks << " ranks");
    const Tensor x = input(mesh);
    const std::int64_t before = live();
    Stack net(kDepth, kWidth, mesh);
    if (stage > 0) nn::shard(net, {.stage = stage});
    optim::AdamW adam(net.parameters(), {.lr = 1e-9});
    const auto step = [&] {
      const Tensor loss = reduced(sum(net(x)));
      backward(loss);
      finish_gradients();
    };
    step();
    adam.step();
    step();
    adam.step();
    const std::int64_t small = kWeight / 2;  // activations and the like
    const std::int64_t held = live() - before;
    const std::int64_t whole = kDepth * kWeight;
    const std::int64_t expected[] = {3 * whole, whole + 2 * part,
                                     3 * part + (ranks > 1 ? whole : 0), 3 * part};
    CHECK(held <= expected[stage] + small);
    CHECK(held >= expected[stage]);
    if (stage != 3) continue;
    {
      const Tensor loss = reduced(sum(net(x)));
      CHECK(live() - before <= held + small);  // the tape keeps no whole weight
    }
    MemoryPool::of({}).reset_peak();
    step();
    // At most: the parameter in use and the next one, the unreduced gradients under way, the one
    // being made, and what a reduction receives.
    const std::int64_t transient = ranks > 1 ? 2 * kWeight + (4 << 20) + 3 * kWeight : 0;
    CHECK(peak() - before <= held + part + transient + small);
  }
}

TEST_CASE("parameters of mixed precision are moved in the narrow type, and kept in none") {
  const Mesh mesh = line();
  Stack net(kDepth, kWidth, mesh);
  nn::shard(net, {});
  nn::compute_in(net, DType::kBFloat16);
  const Tensor x = input(mesh);
  for (const nn::Parameter& p : net.parameters()) p.value();
  const std::int64_t before = live();
  Tensor loss;
  const std::int64_t sent = traffic_of([&] { loss = sum(cast(net(x), DType::kFloat64)); }).bytes;
  CHECK(sent == (mesh.size() - 1) * kDepth * kWeight / 4);
  CHECK(live() - before < kWeight / 2);
  CHECK(traffic_of([&] { backward(loss, {.reduce = false}); }).bytes ==
        (mesh.size() - 1) * (kDepth - 1) * kWeight / 4);
}

TEST_CASE("computing again, changed parameters, and gradients of gradients") {
  const Mesh mesh = line();
  const auto gradients = [&](bool again, int stage) {
    Stack net(3, 16, mesh);
    if (stage > 0) nn::shard(net, {.stage = stage});
    if (again) nn::recompute(net, "layers.?");
    const Tensor x = require_grad(
        to_tensor(random_array({4, 16}, 5), Placement(mesh).batch("x").resolve({4, 16})));
    const Tensor y = sum(square(net(x)));
    const Tensor g = grad({reduced(y)}, {x}, {.create_graph = true})[0];
    backward(reduced(sum(square(g))));
    std::vector<DenseArray> all = {to_dense(g)};
    for (const nn::Parameter& p : net.parameters()) all.push_back(to_dense(gradient(p.value())));
    return all;
  };
  const auto expected = gradients(false, 0);
  for (const int stage : {1, 2, 3}) {
    for (const bool again : {false, true}) {
      const auto actual = gradients(again, stage);
      for (std::size_t i = 0; i < expected.size(); ++i)
        CHECK(compare(str("tensor ", i), actual[i], expected[i], 1e-12) == "");
    }
  }
  Stack net(3, 16, mesh);
  nn::shard(net, {});
  optim::Sgd sgd(net.parameters());
  const Tensor x = Tensor::zeros(Layout::replicated(mesh, {4, 16}), DType::kFloat64);
  const Tensor old = sum(net(x));
  backward(sum(net(x)));
  sgd.step();
  if (mesh.size() > 1) CHECK_THROWS_AS(backward(old), UsageError);
}

TEST_CASE("uneven batches weigh each sample alike") {
  if (process().count != 2) return;
  const Mesh mesh = line();
  const DenseArray x = random_array({4, 5}, 1);
  const DenseArray t = random_array({4, 1}, 2);
  const auto run = [&](const Mesh& on, const Layout& rows_x, const Layout& rows_t, int stage) {
    Net net(on);
    if (stage > 0) nn::shard(net, {.stage = stage});
    backward(mse_loss(net(to_tensor(x, rows_x)), to_tensor(t, rows_t)));
    std::vector<DenseArray> all;
    for (const nn::Parameter& p : net.parameters()) all.push_back(to_dense(gradient(p.value())));
    return all;
  };
  const Mesh self = Mesh::self();
  const auto expected =
      run(self, Layout::replicated(self, x.shape), Layout::replicated(self, t.shape), 0);
  for (const Bounds& bounds : {Bounds{0, 3, 4}, Bounds{0, 4, 4}}) {
    for (const int stage : {0, 2, 3}) {
      const DimSplit split{{0}, bounds};
      const auto actual = run(mesh, Layout::make(mesh, x.shape, {split, {}}),
                              Layout::make(mesh, t.shape, {split, {}}), stage);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        for (std::size_t k = 0; k < expected[i].values.size(); ++k) {
          const double e = expected[i].values[k];
          if (std::abs(e) > 1e-3 * expected[i].largest())
            CHECK(std::abs(actual[i].values[k] / e - 1.0) < 1e-12);
        }
      }
    }
  }
}

}  // namespace tessera::test
