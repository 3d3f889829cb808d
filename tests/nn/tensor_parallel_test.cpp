// ranks: 1 2 3 4
// Weights split in use: the values and gradients of one rank, what a transformer block sends with
// tokens whole and with tokens split over the same axis.
#include <catch2/catch.hpp>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/nn/layers.hpp>
#include <tessera/nn/shard.hpp>
#include <tessera/nn/tensor_parallel.hpp>
#include <tessera/nn/transformer.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

Mesh line() { return Mesh::world({{"t", process().count}}); }

nn::TransformerBlock block_of(std::int64_t heads, std::int64_t channels, const Mesh& mesh) {
  nn::TransformerBlock block(
      {.attention = {.channels = channels, .heads = heads}, .mlp = {.hidden = channels + 3}}, mesh,
      DType::kFloat64);
  nn::initialize(block, 1);
  return block;
}

std::vector<Tensor> run(const nn::TransformerBlock& block,
                        std::vector<nn::Parameter> parameters,
                        const Tensor& input) {
  const Tensor x = require_grad(input);
  const Tensor y = block(x);
  backward(reduced(sum(y * to_tensor(random_array(y.shape(), 2), y.layout().dual()))));
  finish_gradients();
  std::vector<Tensor> all = {y, gradient(x)};
  for (const nn::Parameter& p : parameters) all.push_back(gradient(p.value()));
  return all;
}

}  // namespace

TEST_CASE(
    "a block over split heads and hidden channels, tokens whole or split, is that of one rank") {
  const Mesh mesh = line();
  const std::int64_t heads = GENERATE(3, 4);  // fewer than ranks, no multiple of them
  const bool sequence = GENERATE(false, true);
  const bool sharded = GENERATE(false, true);
  const DenseArray x = random_array({2, 7, 4 * heads}, 1);
  nn::TransformerBlock one = block_of(heads, 4 * heads, Mesh::self());
  const auto expected = run(one, one.parameters(), to_self(x));
  nn::TransformerBlock many = block_of(heads, 4 * heads, mesh);
  nn::place(many, nn::tensor_parallel(many, "t"));
  if (sharded) nn::shard(many, {});
  const Layout layout = sequence ? Placement(mesh).domain(0, "t").resolve(x.shape)
                                 : Layout::replicated(mesh, x.shape);
  const auto actual = run(many, many.parameters(), to_tensor(x, layout));
  INFO(heads << " heads, sequence " << sequence << ", sharded " << sharded);
  CHECK(actual[0].layout() == layout);
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(compare(str("tensor ", i), actual[i], to_dense(expected[i]), 1e-12, 1e-2) == "");
}

TEST_CASE("what a block sends per step is that of the method") {
  const Mesh mesh = line();
  const std::int64_t p = mesh.size();
  const std::int64_t channels = 8 * p;
  const Shape shape = {1, 2048 / p * p, channels};
  const std::int64_t tokens = shape.product() * 8;
  const std::int64_t scalar = p * (p - 1) * 8;
  for (const bool sequence : {false, true}) {
    nn::TransformerBlock block = block_of(p, channels, mesh);
    nn::place(block, nn::tensor_parallel(block, "t"));
    const Layout layout =
        sequence ? Placement(mesh).domain(0, "t").resolve(shape) : Layout::replicated(mesh, shape);
    const Tensor x = to_tensor(random_array(shape, 1), layout);
    const NoGrad no_grad;
    INFO("sequence " << sequence);
    // All-reduces, or gathers and scatters of sums.
    CHECK(traffic_of([&] { block(x); }).bytes == 4 * (p - 1) * tokens);
    const EnableGrad grad;
    const std::int64_t norms = sequence ? p * (p - 1) * 4 * channels * 8 + scalar : 0;
    CHECK(traffic_of([&] { run(block, block.parameters(), x); }).bytes ==
          8 * (p - 1) * tokens + norms);
  }
}

TEST_CASE("an embedding by rows or by features") {
  const Mesh mesh = line();
  const auto gradients = [&](const Mesh& on, int dim) {
    nn::Embedding embedding(11, 5, on, DType::kFloat64);
    nn::initialize(embedding, 1);
    if (dim >= 0) {
      const Placement split = Placement(on).shard(dim, {"t"});
      nn::place(embedding, {{"weight", {.rest = split, .use = split}}});
    }
    const Tensor index = Tensor::from_function(
        Layout::replicated(on, {9}),
        [](const Index& i) { return static_cast<double>(i[0] * 5 % 11); }, DType::kInt64);
    const Tensor y = embedding(index);
    backward(reduced(sum(square(y))));
    return std::vector<DenseArray>{to_dense(y), to_dense(gradient(embedding.weight.value()))};
  };
  const auto expected = gradients(Mesh::self(), -1);
  for (const int dim : {0, 1}) {
    const auto actual = gradients(mesh, dim);
    for (std::size_t i = 0; i < 2; ++i)
      CHECK(compare(str("tensor ", i), actual[i], expected[i], 1e-13) == "");
  }
}

TEST_CASE("cross entropy over split classes, samples split or whole") {
  const std::int64_t classes = GENERATE(2, 7);
  const DenseArray x = random_array({5, 6}, 1);
  const std::vector<std::int64_t> numbers = {1, 0, -1, classes - 1, 1};
  const auto run_head = [&](const Mesh& on, bool split) {
    nn::Linear head({.in = 6, .out = classes}, on, DType::kFloat64);
    nn::initialize(head, 1);
    if (split) {
      const nn::ParameterPlacement rows = nn::split_rows(on, "t");
      nn::place(head, {{"weight", rows}, {"bias", rows}});
    }
    const Layout samples = on.size() > 1 && !split ? Placement(on).batch("t").resolve({5})
                                                   : Layout::replicated(on, {5});
    const Layout rows = on.size() > 1 && !split ? Placement(on).batch("t").resolve(x.shape)
                                                : Layout::replicated(on, x.shape);
    const Tensor target = Tensor::from_function(
        samples,
        [&](const Index& i) {
          return static_cast<double>(numbers[static_cast<std::size_t>(i[0])]);
        },
        DType::kInt64);
    const Tensor in = require_grad(to_tensor(x, rows));
    const Tensor logits = head(in) * 3.0;
    if (split && on.size() > 1) CHECK(logits.layout().is_split(1));
    const Tensor loss = cross_entropy(logits, target);
    backward(loss);
    return std::vector<DenseArray>{to_dense(loss), to_dense(gradient(in)),
                                   to_dense(gradient(head.weight.value())),
                                   to_dense(gradient(head.bias.value())), to_dense(logits)};
  };
  const auto expected = run_head(Mesh::self(), false);
  double total = 0.0;
  int counted = 0;
  for (std::int64_t n = 0; n < 5; ++n) {
    const std::int64_t target = numbers[static_cast<std::size_t>(n)];
    if (target < 0) continue;
    double sum_of_exp = 0.0;
    for (std::int64_t c = 0; c < classes; ++c) sum_of_exp += std::exp(expected[4](n, c));
    total += std::log(sum_of_exp) - expected[4](n, target);
    ++counted;
  }
  CHECK(expected[0].values[0] == Approx(total / counted).epsilon(1e-12));
  for (const bool split : {false, true}) {
    const auto actual = run_head(line(), split);
    INFO(classes << " classes, split " << split);
    for (std::size_t i = 0; i < expected.size(); ++i)
      CHECK(compare(str("tensor ", i), actual[i], expected[i], 1e-12) == "");
  }
  const Mesh self = Mesh::self();
  const Tensor logits = to_self(x);
  CHECK_THROWS_AS(
      cross_entropy(logits, Tensor::zeros(Layout::replicated(self, {4}), DType::kInt64)),
      ShapeError);
  CHECK_THROWS_AS(cross_entropy(logits, Tensor::zeros(Layout::replicated(self, {5}))), DTypeError);
}

}  // namespace tessera::test
