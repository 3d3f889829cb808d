// ranks: 1 2 3 4
#include <bit>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/batch_norm.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/inspect/plan.hpp>
#include <tessera/nn/module.hpp>
#include <tessera/nn/weight_norms.hpp>

#include "nn/layer_cuts.hpp"
#include "nn/shared_dir.hpp"

namespace tessera::test {
namespace {

Mesh line() { return Mesh::world({{"x", process().count}}); }

struct Moments {
  std::vector<double> mean, variance;  // unbiased
};

Moments moments_of(const DenseArray& x) {
  const std::int64_t channels = x.shape.back();
  const double n = static_cast<double>(x.size() / channels);
  Moments m{std::vector<double>(static_cast<std::size_t>(channels), 0.0), {}};
  m.variance = m.mean;
  for_each(x.shape,
           [&](const Index& i) { m.mean[static_cast<std::size_t>(i.back())] += x[i] / n; });
  for_each(x.shape, [&](const Index& i) {
    const auto c = static_cast<std::size_t>(i.back());
    m.variance[c] += std::pow(x[i] - m.mean[c], 2) / (n - 1);
  });
  return m;
}

/// Two convolutions with batch norms.
struct Net : nn::Layer {
  nn::Conv first, second;
  nn::BatchNorm norm, last;
  explicit Net(const Mesh& mesh, DType dtype = DType::kFloat64)
      : first({.dims = 2, .in = 2, .out = 3, .bias = false}, mesh, dtype),
        second({.dims = 2, .in = 3, .out = 2, .bias = false}, mesh, dtype),
        norm({.channels = 3, .activation = Activation::kSilu}, mesh, dtype),
        last({.channels = 2, .affine = false}, mesh, dtype) {
    nn::initialize(*this, 3);
  }
  void fields(nn::Fields& f) override {
    f("first", first);
    f("norm", norm);
    f("second", second);
    f("last", last);
  }
  Tensor forward(const Tensor& x) const override { return last(second(norm(first(x)))); }
};

/// Training steps of a network with batch norms behind a spectral norm.
struct Work : nn::Workload {
  struct Both : nn::Module {
    nn::SpectralNormConv in;
    Net net;
    explicit Both(const Mesh& mesh)
        : in({.dims = 2, .in = 2, .out = 2}, mesh, DType::kFloat64), net(mesh) {
      nn::initialize(*this, 1);
    }
    void fields(nn::Fields& f) override {
      f("in", in);
      f("net", net);
    }
  } both;
  Layout layout;
  explicit Work(const Mesh& mesh)
      : both(mesh), layout(Placement(mesh).shard(1, {"h"}).resolve({2, 12, 5, 2})) {}
  nn::Module& model() override { return both; }
  Tensor loss(std::int64_t) override {
    const Tensor x = Tensor::full(layout, 1.0, DType::kFloat64);
    return mse_loss(both.net(both.in(x)), x);
  }
  void update() override { finish_gradients(); }
};

std::vector<DenseArray> buffers(nn::Module& model) {
  std::vector<DenseArray> all;
  for (const auto& [name, t] : model.named_buffers()) all.push_back(to_dense(t));
  return all;
}

}  // namespace

TEST_CASE("batch and instance norms give one answer for every cut") {
  check_layer_cuts(
      [](const Mesh& mesh) {
        return nn::BatchNorm({.channels = 3, .activation = Activation::kSilu}, mesh,
                             DType::kFloat64);
      },
      {3, 7, 5, 3});
  check_layer_cuts(
      [](const Mesh& mesh) {
        nn::InstanceNorm layer({.channels = 4}, mesh, DType::kFloat64);
        layer.set_area(Tensor::from_function(
            Layout::replicated(mesh, {6, 1}),
            [](const Index& i) { return 1.0 / static_cast<double>(i[0] + 1); }, DType::kFloat64));
        return layer;
      },
      {2, 6, 3, 4});
  check_layer_cuts(
      [](const Mesh& mesh) {
        nn::AreaGroupNorm layer({.groups = 2, .channels = 4, .affine = false}, mesh,
                                DType::kFloat64);
        layer.set_area(Tensor::full(Layout::replicated(mesh, {6}), 2.0, DType::kFloat64));
        return layer;
      },
      {2, 6, 4});
}

TEST_CASE("an area of one everywhere changes nothing; norms without parameters have none") {
  const Mesh mesh = line();
  const DenseArray x = random_array({2, 6, 4}, 1);
  nn::GroupNorm plain({.groups = 2, .channels = 4, .affine = false}, mesh, DType::kFloat64);
  nn::AreaGroupNorm weighted({.groups = 2, .channels = 4, .affine = false}, mesh, DType::kFloat64);
  weighted.set_area(Tensor::full(Layout::replicated(mesh, {6}), 2.0));
  const Tensor in = to_tensor(x, Placement(mesh).shard(1, {"x"}).resolve(x.shape));
  CHECK(compare("", weighted(in), to_dense(plain(in)), 1e-13) == "");
  CHECK(plain.parameters().empty());
  nn::InstanceNorm instance({.channels = 4, .affine = false}, mesh, DType::kFloat64);
  nn::BatchNorm batch({.channels = 4, .affine = false}, mesh, DType::kFloat64);
  CHECK(instance.parameters().empty());
  CHECK(batch.parameters().empty());
  CHECK(batch.named_buffers().size() == 2);
  CHECK_THROWS_AS(nn::BatchNorm({.channels = 0}, mesh), UsageError);
  CHECK_THROWS_AS(nn::BatchNorm({.channels = 2, .momentum = 0.0}, mesh), UsageError);
  CHECK_THROWS_AS(nn::InstanceNorm({.channels = 0}, mesh), UsageError);
}

TEST_CASE("running statistics follow the batches, equal to the bit on all ranks") {
  const Mesh mesh = line();
  const std::int64_t cut = GENERATE(0, 1, 2);
  const double momentum = GENERATE(0.1, 1.0);
  nn::BatchNorm layer({.channels = 3, .momentum = momentum}, mesh);
  nn::initialize(layer, 1);
  std::vector<double> mean(3, 0.0), variance(3, 1.0);
  DenseArray x;
  for (int step = 0; step < 3; ++step) {
    x = rounded_to(random_array({4, 5, 6, 3}, static_cast<std::uint64_t>(step), 99.0, 101.0),
                   DType::kFloat32);
    // With more than 4 samples' worth of ranks some have none.
    const Layout layout =
        cut == 2 ? Layout::replicated(mesh, x.shape)
                 : Placement(mesh).shard(static_cast<int>(cut), {"x"}).resolve(x.shape);
    layer(to_tensor(x, layout, DType::kFloat32));
    const Moments m = moments_of(x);
    for (std::size_t c = 0; c < 3; ++c) {
      mean[c] = (1 - momentum) * mean[c] + momentum * m.mean[c];
      variance[c] = (1 - momentum) * variance[c] + momentum * m.variance[c];
    }
  }
  for (std::int64_t c = 0; c < 3; ++c) {
    const double actual[] = {layer.running_mean.at({c}), layer.running_var.at({c})};
    CHECK(actual[0] == Approx(mean[static_cast<std::size_t>(c)]).epsilon(1e-12));
    CHECK(actual[1] == Approx(variance[static_cast<std::size_t>(c)]).epsilon(1e-9));
    for (const double v : actual)
      CHECK(from_process_0(std::bit_cast<std::uint64_t>(v)) == std::bit_cast<std::uint64_t>(v));
  }
  // Evaluation reads them and leaves them alone.
  layer.eval();
  DenseArray expected(x.shape);
  for_each(x.shape, [&](const Index& i) {
    const auto c = static_cast<std::size_t>(i.back());
    expected[i] = (x[i] - mean[c]) / std::sqrt(variance[c] + 1e-5);
  });
  const auto before = buffers(layer);
  const Layout rows = Placement(mesh).shard(1, {"x"}).resolve(x.shape);
  CHECK(compare("", layer(to_tensor(x, rows, DType::kFloat32)), expected, 1e-5) == "");
  const auto after = buffers(layer);
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(before[i].values == after[i].values);
}

TEST_CASE("gradients of samples 3 + 1 over two ranks are those of one rank in a network") {
  const Mesh mesh = line();
  const DenseArray x = random_array({4, 6, 5, 2}, 1), target = random_array({4, 6, 5, 2}, 2);
  const auto gradients = [&](const Mesh& on, const Layout& layout) {
    Net net(on);
    const Tensor y = net(to_tensor(x, layout));
    backward(mse_loss(y, to_tensor(target, y.layout())));
    std::vector<DenseArray> all;
    for (const nn::Parameter& p : net.parameters()) all.push_back(to_dense(gradient(p.value())));
    for (const DenseArray& b : buffers(net)) all.push_back(b);
    return all;
  };
  Bounds bounds = {0};  // a third and fourth rank are empty
  for (int r = 0; r < mesh.size(); ++r) bounds.push_back(r == 0 && mesh.size() > 1 ? 3 : 4);
  const auto one = gradients(Mesh::self(), Layout::replicated(Mesh::self(), x.shape));
  const auto many = gradients(mesh, Layout::make(mesh, x.shape, {{{0}, bounds}, {}, {}, {}}));
  REQUIRE(one.size() == 8);
  for (std::size_t i = 0; i < one.size(); ++i) {
    INFO("tensor " << i);
    CHECK(compare("", many[i], one[i], 1e-12) == "");
    CHECK(std::fabs(dot(many[i], one[i]) / dot(one[i], one[i]) - 1) < 1e-12);
  }
}

TEST_CASE("running statistics are saved with the model") {
  const Mesh mesh = line();
  const SharedDir dir(nn::collective(mesh));
  const DenseArray x = random_array({4, 6, 5, 2}, 1);
  const Tensor in = to_tensor(x, Placement(mesh).shard(1, {"x"}).resolve(x.shape));
  Net trained(mesh), loaded(mesh);
  trained(in);
  nn::save_weights(dir / "w.safetensors", trained);
  nn::load_weights(dir / "w.safetensors", loaded);
  const auto a = buffers(trained), b = buffers(loaded);
  REQUIRE(a.size() == 4);
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i].values == b[i].values);
  trained.eval();
  loaded.eval();
  CHECK(compare("", loaded(in), to_dense(trained(in)), 0.0) == "");
  CHECK(trained.norm.running_mean.at({0}) != 0.0);
}

TEST_CASE("what is computed again moves running statistics once, with the same gradients") {
  const Mesh mesh = line();
  const DenseArray x = random_array({4, 6, 5, 2}, 1);
  const Layout layout = Placement(mesh).shard(0, {"x"}).resolve(x.shape);
  const auto run = [&](bool again) {
    Net net(mesh);
    if (again) {
      nn::recompute(net, "first");
      nn::recompute(net, "norm");
      nn::recompute(net, "last");
    }
    for (int step = 0; step < 2; ++step)
      backward(mse_loss(net(to_tensor(x, layout)), to_tensor(x, layout)));
    std::vector<DenseArray> all = buffers(net);
    for (const nn::Parameter& p : net.parameters()) all.push_back(to_dense(gradient(p.value())));
    return all;
  };
  const auto plain = run(false), again = run(true);
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(plain[i].values == again[i].values);
}

TEST_CASE("a frozen batch norm passes gradients on as a scale and a shift") {
  const Mesh mesh = line();
  nn::BatchNorm layer({.channels = 2}, mesh, DType::kFloat64);
  nn::initialize(layer, 1);
  layer(to_tensor(random_array({4, 6, 2}, 3, 2.0, 5.0), Layout::replicated(mesh, {4, 6, 2})));
  layer.eval();
  const DenseArray x = random_array({4, 6, 2}, 4), dy = random_array({4, 6, 2}, 5);
  const Layout rows = Placement(mesh).shard(1, {"x"}).resolve(x.shape);
  const Tensor in = require_grad(to_tensor(x, rows));
  const Tensor y = layer(in);
  backward(sum(y * to_tensor(dy, rows)));
  DenseArray expected(x.shape), dgamma({2}), dbeta({2});
  for_each(x.shape, [&](const Index& i) {
    const double rstd = 1 / std::sqrt(layer.running_var.at({i[2]}) + 1e-5);
    expected[i] = dy[i] * rstd;
    dgamma(i[2]) += dy[i] * (x[i] - layer.running_mean.at({i[2]})) * rstd;
    dbeta(i[2]) += dy[i];
  });
  CHECK(compare("x", gradient(in), expected, 1e-12) == "");
  CHECK(compare("gamma", gradient(layer.weight.value()), dgamma, 1e-12) == "");
  CHECK(compare("beta", gradient(layer.bias.value()), dbeta, 1e-12) == "");
}

TEST_CASE("batch norm in bf16 keeps its parameters and statistics exact") {
  const Mesh mesh = line();
  Net net(mesh, DType::kFloat32);
  nn::compute_in(net, DType::kBFloat16);
  const DenseArray x = random_array({4, 6, 5, 2}, 1);
  const Tensor y =
      net(to_tensor(x, Placement(mesh).shard(1, {"x"}).resolve(x.shape), DType::kFloat32));
  CHECK(y.dtype() == DType::kBFloat16);
  CHECK(net.norm.running_var.dtype() == DType::kFloat64);
  Net whole(mesh);
  const DenseArray exact = to_dense(whole(to_tensor(x, Layout::replicated(mesh, x.shape))));
  CHECK(compare("", y, exact, 0.05) == "");
  backward(sum(cast(y, DType::kFloat32)));
  CHECK(gradient(net.norm.weight.value()).dtype() == DType::kFloat32);
}

TEST_CASE("channels may be split: statistics come together") {
  const Mesh mesh = line();
  const DenseArray x = random_array({3, 5, 6}, 7);
  const auto run = [&](const Mesh& on, const Layout& layout) {
    nn::BatchNorm layer({.channels = 6}, on, DType::kFloat64);
    nn::initialize(layer, 1);
    const Tensor in = require_grad(to_tensor(x, layout));
    const Tensor y = layer(in);
    backward(sum(y * y * y));
    return std::vector{to_dense(y), to_dense(gradient(in)), to_dense(layer.running_mean),
                       to_dense(layer.running_var), to_dense(gradient(layer.weight.value()))};
  };
  const auto one = run(Mesh::self(), Layout::replicated(Mesh::self(), x.shape));
  const auto many = run(mesh, Placement(mesh).shard(2, {"x"}).resolve(x.shape));
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(compare("", many[i], one[i], 1e-11) == "");
}

TEST_CASE("a plan counts what a step with running statistics sends, without data") {
  const Mesh mesh = Mesh::world({{"h", process().count}});
  const nn::MakeWorkload make = [](const Mesh& m) { return std::make_unique<Work>(m); };
  const nn::RankPlan plan = nn::plan_rank({{"h", mesh.size()}}, mesh.rank(), make);
  Work real(mesh);
  const nn::RankPlan measured = nn::measure_rank(mesh, real);
  CHECK(plan.sent.total().messages == measured.sent.total().messages);
  CHECK(plan.sent.total().bytes == measured.sent.total().bytes);
}

TEST_CASE("batches of one element per channel, and of none") {
  const Mesh mesh = line();
  nn::BatchNorm layer({.channels = 2}, mesh);
  nn::initialize(layer, 1);
  CHECK_THROWS_WITH(layer(Tensor::zeros(Layout::replicated(mesh, {1, 2}))),
                    Catch::Contains("one element per channel"));
  CHECK_THROWS_AS(layer(Tensor::zeros(Layout::replicated(mesh, {4, 3}))), ShapeError);
  layer(Tensor::zeros(Layout::replicated(mesh, {0, 5, 2})));
  CHECK(layer.running_var.at({0}) == 1.0);
  layer.eval();
  CHECK(layer(Tensor::zeros(Layout::replicated(mesh, {1, 2}))).shape() == Shape{1, 2});
}

}  // namespace tessera::test
