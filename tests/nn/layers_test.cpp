// ranks: 1 2 3
#include <catch2/catch.hpp>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/nn/layers.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

Mesh line() { return Mesh::world({{"x", process().count}}); }

/// The layer's result where x is cut along dimension 1, against `expected`.
void check(const char* what, nn::Layer& layer, const DenseArray& x, const DenseArray& expected) {
  nn::initialize(layer, 7);
  const Layout cut = Placement(line()).shard(1, {"x"}).resolve(x.shape);
  const Tensor y = layer(to_tensor(x, cut));
  CHECK(y.shape() == expected.shape);
  CHECK(compare(what, y, expected, 1e-12) == "");
}

/// Values of a parameter of a model with this seed.
DenseArray values(nn::Module& model, const std::string& path) {
  nn::initialize(model, 7);
  for (const auto& [name, p] : model.named_parameters()) {
    if (name == path) return to_dense(p.value());
  }
  throw UsageError("no parameter " + path);
}

}  // namespace

TEST_CASE("linear and embedding") {
  const Mesh mesh = line();
  const DenseArray x = random_array({2, 5, 3}, 1);
  nn::Linear layer({.in = 3, .out = 4}, mesh, DType::kFloat64);
  const DenseArray w = values(layer, "weight");
  const DenseArray b = values(layer, "bias");
  DenseArray expected({2, 5, 4});
  for_each(expected.shape, [&](const Index& i) {
    double sum = b(i[2]);
    for (std::int64_t k = 0; k < 3; ++k) sum += w(i[2], k) * x(i[0], i[1], k);
    expected[i] = sum;
  });
  check("linear", layer, x, expected);
  CHECK(nn::Linear({.in = 3, .out = 4, .bias = false}, mesh).parameter_count() == 12);

  nn::Embedding table(6, 3, mesh, DType::kFloat64);
  const DenseArray rows = values(table, "weight");
  DenseArray index({2, 4});
  for (std::size_t i = 0; i < 8; ++i) index.values[i] = static_cast<double>(i * 5 % 6);
  const Tensor looked_up =
      table(to_tensor(index, Layout::replicated(mesh, index.shape), DType::kInt64));
  DenseArray picked({2, 4, 3});
  for_each(picked.shape, [&](const Index& i) {
    picked[i] = rows(static_cast<std::int64_t>(index(i[0], i[1])), i[2]);
  });
  CHECK(compare("embedding", looked_up, picked, 0.0) == "");
}

TEST_CASE("convolution keeps the size by default, also for even kernels") {
  const Mesh mesh = line();
  const std::int64_t kernel = GENERATE(1, 2, 3, 4);
  const std::int64_t dilation = GENERATE(1, 2);
  const DenseArray x = random_array({1, 9, 2}, 2);
  nn::Conv layer({.dims = 1,
                  .in = 2,
                  .out = 3,
                  .kernel = {kernel},
                  .dilation = {dilation},
                  .edges = {EdgeRule::kCircular}},
                 mesh, DType::kFloat64);
  const DenseArray w = values(layer, "weight");
  const DenseArray b = values(layer, "bias");
  const std::int64_t low = dilation * (kernel - 1) / 2;
  DenseArray expected({1, 9, 3});
  for_each(expected.shape, [&](const Index& i) {
    double sum = b(i[2]);
    for (std::int64_t t = 0; t < kernel; ++t) {
      for (std::int64_t k = 0; k < 2; ++k) {
        sum += w(i[2], t, k) * x(i[0], (i[1] - low + t * dilation + 18) % 9, k);
      }
    }
    expected[i] = sum;
  });
  check("conv", layer, x, expected);
}

TEST_CASE("transposed convolution reaches every size within a stride") {
  const Mesh mesh = line();
  nn::ConvTranspose layer({.dims = 1, .in = 2, .out = 1, .kernel = {2}, .stride = {2}}, mesh,
                          DType::kFloat64);
  nn::initialize(layer, 7);
  const DenseArray x = random_array({1, 5, 2}, 3);
  const Tensor cut = to_tensor(x, Placement(mesh).shard(1, {"x"}).resolve(x.shape));
  const DenseArray whole = to_dense(layer(cut));
  CHECK(whole.shape == Shape{1, 10, 1});
  const DenseArray shorter = to_dense(layer.forward_to(cut, {9}));
  const DenseArray longer = to_dense(layer.forward_to(cut, {11}));
  for (std::int64_t i = 0; i < 9; ++i) {
    CHECK(shorter(0, i, 0) == whole(0, i, 0));
    CHECK(longer(0, i, 0) == whole(0, i, 0));
  }
  CHECK(longer(0, 10, 0) == values(layer, "bias")(0));
  CHECK_THROWS_AS(layer.forward_to(cut, {8}), ShapeError);
  CHECK_THROWS_AS(layer.forward_to(cut, {12}), ShapeError);
  CHECK_THROWS_AS(layer.forward_to(cut, {9, 9}), ShapeError);
}

TEST_CASE("layers in a row") {
  const Mesh mesh = line();
  nn::Sequential layers(nn::Conv({.dims = 2, .in = 1, .out = 4}, mesh, DType::kFloat64),
                        nn::GroupNorm({.groups = 2, .channels = 4, .activation = Activation::kSilu},
                                      mesh, DType::kFloat64),
                        nn::Activate(Activation::kGelu), nn::MaxPool({.kernel = {2, 2}}),
                        nn::Upsample({.factor = 2, .mode = InterpolateMode::kNearest}),
                        nn::PixelShuffle(2));
  layers.add(nn::AvgPool({.kernel = {2, 2}})).add(nn::Dropout(0.5));
  layers.eval();
  nn::initialize(layers, 7);
  CHECK(layers.size() == 8);
  const DenseArray x = random_array({1, 8, 6, 1}, 4);
  const Tensor y =
      layers(to_tensor(x, Placement(mesh).shard(1, {"x"}).resolve(x.shape, {.multiple = 2})));
  CHECK(y.shape() == Shape{1, 8, 6, 1});
  const DenseArray one = [&] {
    nn::Sequential alone(
        nn::Conv({.dims = 2, .in = 1, .out = 4}, Mesh::self(), DType::kFloat64),
        nn::GroupNorm({.groups = 2, .channels = 4, .activation = Activation::kSilu}, Mesh::self(),
                      DType::kFloat64));
    nn::initialize(alone, 7);
    return to_dense(max_pool(gelu(alone(to_self(x))), {.kernel = {2, 2}}));
  }();
  // Shuffled apart and averaged: each point is the mean of the four channels of its block.
  DenseArray expected({1, 8, 6, 1});
  for_each(expected.shape, [&](const Index& i) {
    for (std::int64_t c = 0; c < 4; ++c) expected[i] += one(0, i[1] / 2, i[2] / 2, c) / 4;
  });
  CHECK(compare("sequence", y, expected, 1e-12) == "");
  std::vector<std::string> names;
  for (const auto& [name, p] : layers.named_parameters()) names.push_back(name);
  CHECK(names == std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias"});
}

TEST_CASE("layers refuse options that cannot be meant") {
  const Mesh mesh = line();
  CHECK_THROWS_AS(nn::Linear({.in = 0, .out = 4}, mesh), UsageError);
  CHECK_THROWS_AS(nn::Conv({.dims = 4, .in = 1, .out = 1}, mesh), UsageError);
  CHECK_THROWS_AS(nn::Conv({.in = 3, .out = 4, .groups = 2}, mesh), UsageError);
  CHECK_THROWS_AS(nn::Conv({.dims = 3, .in = 1, .out = 1, .kernel = {3, 3}}, mesh), UsageError);
  CHECK_THROWS_AS(nn::Conv({.in = 1, .out = 1, .output_padding = {1}}, mesh), UsageError);
  CHECK_THROWS_AS(
      nn::Conv(
          {.dims = 1, .in = 1, .out = 1, .edges = std::vector<EdgeRule>(3, EdgeRule::kReflect)},
          mesh),
      UsageError);
  CHECK_THROWS_AS(nn::GroupNorm({.groups = 3, .channels = 4}, mesh), UsageError);
  CHECK_THROWS_AS(nn::Dropout(1.0), UsageError);
  CHECK_THROWS_AS(nn::Embedding(0, 3, mesh), UsageError);
  CHECK_THROWS_AS(nn::Linear({.in = 1, .out = 1}, mesh, DType::kInt32), DTypeError);
  CHECK_THROWS_AS(nn::parse_activation("swish"), UsageError);
  for (const Activation a : {Activation::kNone, Activation::kRelu, Activation::kSilu}) {
    CHECK(nn::parse_activation(nn::name(a)) == a);
  }
}

}  // namespace tessera::test
