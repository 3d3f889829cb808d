// ranks: 1 2 3 4
// The samples of a step on any number of ranks: their order, their parts, their weight in the
// gradient; what a module keeps of them in a buffer.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/nn/layers.hpp>
#include <tessera/nn/optim.hpp>
#include <tessera/nn/sampler.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

constexpr std::int64_t kFeatures = 5;

/// How many of a batch's samples each rank has.
using Cut = std::vector<std::int64_t> (*)(std::int64_t samples);

std::vector<std::int64_t> even(std::int64_t samples) {
  const std::int64_t n = process().count;
  std::vector<std::int64_t> counts;
  for (std::int64_t r = 0; r < n; ++r) counts.push_back((r + 1) * samples / n - r * samples / n);
  return counts;
}

/// All but one on the first rank, one on the last: 3 + 1; the others have none.
std::vector<std::int64_t> uneven(std::int64_t samples) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(process().count), 0);
  counts.front() = samples - 1;
  counts.back() += 1;
  return counts;
}

Layout rows(const Mesh& mesh, std::int64_t samples, std::int64_t width, Cut cut) {
  if (mesh.size() == 1) return Layout::replicated(mesh, {samples, width});
  DimSplit split{.axes = {0}, .bounds = {0}};
  for (const std::int64_t count : cut(samples)) split.bounds.push_back(split.bounds.back() + count);
  return Layout::replicated(mesh, {samples, width}).with_dim(0, samples, split);
}

/// Two layers, and a running mean of what goes between them.
struct Net : nn::Module {
  nn::Linear in;
  nn::Dropout dropout;
  nn::Linear out;
  Tensor running;

  explicit Net(const Mesh& mesh)
      : in({.in = kFeatures, .out = 7}, mesh, DType::kFloat64),
        dropout(0.2),
        out({.in = 7, .out = 2}, mesh, DType::kFloat64),
        running(Tensor::zeros(Layout::replicated(mesh, {7}), DType::kFloat64)) {
    nn::initialize(*this, 3);
  }
  void fields(nn::Fields& f) override {
    f("in", in);
    f("dropout", dropout);
    f("out", out);
    f("running", running);
  }
  Tensor operator()(const Tensor& x) {
    const Tensor h = tanh(in(x));
    {
      const NoGrad guard;
      running = 0.9 * running + 0.1 * reduced(mean(h, {0}));
    }
    return out(dropout(h));
  }
};

/// Gradients of each step, and the buffer after it.
struct Trace {
  std::vector<std::vector<DenseArray>> gradients;
  std::vector<DenseArray> buffers;
  std::vector<double> losses;
};

Trace train(const Mesh& mesh, const nn::Sampler& sampler, Cut cut) {
  const DenseArray inputs = random_array({11, kFeatures}, 1);
  const DenseArray targets = random_array({11, 2}, 2);
  Net net(mesh);
  optim::Sgd sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  Trace trace;
  for (std::int64_t step = 0; step < 2 * sampler.steps(); ++step) {
    net.random().step = static_cast<std::uint64_t>(step);
    const std::vector<std::int64_t> batch = sampler.batch(step);
    const auto read = [&](const DenseArray& from) {
      const Layout layout = rows(mesh, std::ssize(batch), from.shape[1], cut);
      const std::vector<std::int64_t> mine = nn::Sampler::part(batch, layout);
      const std::int64_t first = layout.local_box().lo[0];
      return Tensor::from_function(
          layout,
          [&](const Index& i) {
            return from(mine.at(static_cast<std::size_t>(i[0] - first)), i[1]);
          },
          DType::kFloat64);
    };
    const Tensor loss = mse_loss(net(read(inputs)), read(targets));
    backward(loss);
    finish_gradients();
    trace.losses.push_back(reduced(loss).item());
    trace.gradients.emplace_back();
    for (const nn::Parameter& p : net.parameters())
      trace.gradients.back().push_back(to_dense(gradient(p.value())));
    sgd.step();
    trace.buffers.push_back(to_dense(net.running));
    // Replicas of a buffer are the same bits.
    for (const double v : trace.buffers.back().values) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, &v, sizeof bits);
      REQUIRE(from_process_0(bits) == bits);
    }
  }
  return trace;
}

}  // namespace

TEST_CASE("shuffles depend on seed and epoch alone") {
  using nn::shuffled;
  const auto order = shuffled(100, 3, 1);
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (std::int64_t i = 0; i < 100; ++i) REQUIRE(sorted[static_cast<std::size_t>(i)] == i);
  CHECK(order == shuffled(100, 3, 1));
  CHECK(order != shuffled(100, 3, 2));
  CHECK(order != shuffled(100, 4, 1));
  CHECK(shuffled(0, 1).empty());
  // Each number comes to each place about equally often.
  std::vector<int> first(5, 0);
  for (std::uint64_t e = 0; e < 2000; ++e) ++first[static_cast<std::size_t>(shuffled(5, 9, e)[0])];
  for (const int count : first) CHECK(count > 300);
}

TEST_CASE("each sample comes once in an epoch, in an order that is new in each") {
  for (const bool shuffle : {true, false}) {
    const nn::Sampler sampler(11, {.batch = 4, .shuffle = shuffle, .seed = 5});
    REQUIRE(sampler.steps() == 3);
    std::vector<std::vector<std::int64_t>> epochs(2);
    for (std::int64_t step = 0; step < 6; ++step) {
      const auto batch = sampler.batch(step);
      CHECK(batch.size() == (step % 3 == 2 ? 3 : 4));
      auto& epoch = epochs[static_cast<std::size_t>(step / 3)];
      epoch.insert(epoch.end(), batch.begin(), batch.end());
    }
    CHECK((epochs[0] == epochs[1]) == !shuffle);
    CHECK((epochs[0] == nn::shuffled(11, 5, 0)) == shuffle);
    for (auto& epoch : epochs) {
      std::sort(epoch.begin(), epoch.end());
      for (std::int64_t i = 0; i < 11; ++i) REQUIRE(epoch[static_cast<std::size_t>(i)] == i);
    }
    // Any step, in any order of asking: what a resumed run does.
    const nn::Sampler resumed(11, {.batch = 4, .shuffle = shuffle, .seed = 5});
    for (const std::int64_t step : {4, 1, 5, 0}) CHECK(resumed.batch(step) == sampler.batch(step));
  }
  const nn::Sampler whole(11, {.batch = 4, .drop_last = true});
  CHECK(whole.steps() == 2);
  CHECK(whole.batch(1).size() == 4);
  CHECK(whole.batch(2) != whole.batch(0));
  const nn::Sampler few(3, {.batch = 4, .drop_last = true});
  CHECK(few.steps() == 1);
  CHECK(few.batch(7).size() == 3);
  CHECK_THROWS_AS(nn::Sampler(0), UsageError);
  CHECK_THROWS_AS(nn::Sampler(3, {.batch = 0}), UsageError);
}

TEST_CASE("the parts of a batch are the batch, on any number of ranks") {
  const int n = process().count;
  const Mesh mesh = Mesh::world({{"data", n}});
  const nn::Sampler sampler(23, {.batch = 9, .seed = 1});
  for (const Cut cut : {even, uneven}) {
    for (std::int64_t step = 0; step < 4; ++step) {
      const auto batch = sampler.batch(step);
      const Layout layout = rows(mesh, std::ssize(batch), 3, cut);
      const auto mine = nn::Sampler::part(batch, layout);
      CHECK(std::ssize(mine) == cut(std::ssize(batch))[static_cast<std::size_t>(mesh.rank())]);
      const std::int64_t first = layout.local_box().lo[0];
      for (std::size_t i = 0; i < mine.size(); ++i)
        CHECK(mine[i] == batch[static_cast<std::size_t>(first) + i]);
    }
  }
  CHECK_THROWS_AS(nn::Sampler::part(sampler.batch(0), Layout::replicated(mesh, {8, 3})),
                  ShapeError);
}

TEST_CASE("gradients and buffers are those of one rank, however samples are shared out") {
  const nn::Sampler sampler(11, {.batch = 4, .seed = 7});
  const Trace expected = train(Mesh::self(), sampler, even);
  const Mesh mesh = Mesh::world({{"data", process().count}});
  for (const Cut cut : {even, uneven}) {
    const Trace actual = train(mesh, sampler, cut);
    for (std::size_t step = 0; step < expected.losses.size(); ++step) {
      INFO("step " << step);
      CHECK(actual.losses[step] == Approx(expected.losses[step]).epsilon(1e-12));
      CHECK(compare("buffer", actual.buffers[step], expected.buffers[step], 1e-12) == "");
      for (std::size_t i = 0; i < expected.gradients[step].size(); ++i) {
        CHECK(compare(str("gradient ", i), actual.gradients[step][i], expected.gradients[step][i],
                      1e-12) == "");
      }
    }
  }
}

}  // namespace tessera::test
