// ranks: 1 2 3 4

#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/conv.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/norm.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

double activated(Activation a, double z) {
  switch (a) {
    case Activation::kRelu:
      return z > 0 ? z : 0;
    case Activation::kSilu:
      return z / (1 + std::exp(-z));
    case Activation::kGelu:
      return z / 2 * std::erfc(-z / std::sqrt(2.0));
    default:
      return z;
  }
}

DenseArray normalised(const DenseArray& x,
                      const DenseArray& gamma,
                      const DenseArray& beta,
                      std::int64_t groups,
                      double eps,
                      Activation activation) {
  const std::int64_t channels = x.shape.back();
  const std::int64_t width = channels / groups;
  std::vector<double> count(static_cast<std::size_t>(x.shape[0] * groups)), mean(count), m2(count);
  const auto slot = [&](const Index& i) {
    return static_cast<std::size_t>(i[0] * groups + i.back() / width);
  };
  for_each(x.shape, [&](const Index& i) {
    count[slot(i)] += 1;
    mean[slot(i)] += x[i];
  });
  for (std::size_t s = 0; s < mean.size(); ++s) mean[s] /= count[s];
  for_each(x.shape, [&](const Index& i) { m2[slot(i)] += std::pow(x[i] - mean[slot(i)], 2); });
  DenseArray y(x.shape);
  for_each(x.shape, [&](const Index& i) {
    double z = (x[i] - mean[slot(i)]) / std::sqrt(m2[slot(i)] / count[slot(i)] + eps);
    if (!gamma.absent) z *= gamma(i.back());
    if (!beta.absent) z += beta(i.back());
    y[i] = activated(activation, z);
  });
  return y;
}

/// Channels split within a group, parameters split alone, or several tensors split differently.
bool channels_or_parameters(const std::vector<Layout>& layouts) {
  const int last = layouts[0].dims() - 1;
  bool split = layouts[0].is_split(last);
  for (const int i : {1, 2})
    split = split || (layouts[static_cast<std::size_t>(i)].defined() &&
                      layouts[static_cast<std::size_t>(i)].split_axes() != 0);
  return split;
}

OpCase norm_case(const Shape& shape, std::int64_t groups, Activation activation, bool parameters) {
  const std::int64_t channels = shape.back();
  return {
      .inputs = {uniform(shape, 1.0, 3.0), parameters ? uniform({channels}, 0.5, 1.5) : absent(),
                 parameters ? uniform({channels}) : absent()},
      .f =
          [=](const auto& x) {
            return std::vector{group_norm(x[0], x[1], x[2], groups, 1e-2, activation)};
          },
      .reference = [=](const auto& x) -> std::vector<DenseArray> {
        return {normalised(x[0], x[1], x[2], groups, 1e-2, activation)};
      },
      .may_throw = channels_or_parameters,
      .tolerance = 1e-10,
      .difference_tolerance = 1e-5,
      .bf16_tolerance = 0.2};
}

}  // namespace

OP_TEST("group normalisation of an image") {
  return norm_case({2, 5, 4, 6}, 2, Activation::kNone, true);
}
OP_TEST("group normalisation and silu") { return norm_case({2, 6, 4}, 2, Activation::kSilu, true); }
OP_TEST("group normalisation and gelu") { return norm_case({1, 7, 4}, 4, Activation::kGelu, true); }
OP_TEST("layer normalisation of rows") { return norm_case({9, 5}, 1, Activation::kNone, true); }
OP_TEST("group normalisation without parameters") {
  return norm_case({2, 3, 3, 4}, 1, Activation::kNone, false);
}

OP_TEST("group normalisation and relu") {
  OpCase c = norm_case({2, 4, 4}, 2, Activation::kRelu, true);
  c.first = false;  // kinks anywhere: value and cuts only, fp64 alone
  return c;
}

TEST_CASE("a split domain takes one exchange of moments forward and one of sums backward") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const Layout layout = Placement(mesh).shard(1, {"a"}).resolve({2, 4 * mesh.size(), 8});
  const Tensor x = require_grad(Tensor::from_function(layout, [](const Index& i) {
    return std::sin(static_cast<double>(i[0] + 3 * i[1] + i[2]));
  }));
  Tensor y;
  const Traffic forward = traffic_of([&] { y = group_norm(x, {}, {}, 2); });
  // Each rank gives its [2, 2, 3] moments in fp64 to the others.
  const std::int64_t ranks = mesh.size();
  if (ranks > 1) REQUIRE(forward.bytes == ranks * (ranks - 1) * 2 * 2 * 3 * 8);
  if (ranks == 1) REQUIRE(forward.bytes == 0);
}

TEST_CASE("wrong groups and parameters throw on every rank") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const auto zeros = [&](const Shape& s) { return Tensor::zeros(Layout::replicated(mesh, s)); };
  REQUIRE_THROWS_AS(group_norm(zeros({2, 5, 6}), {}, {}, 4), ShapeError);
  REQUIRE_THROWS_AS(group_norm(zeros({6}), {}, {}, 1), ShapeError);
  REQUIRE_THROWS_AS(group_norm(zeros({2, 6}), zeros({5}), {}, 1), ShapeError);
  const Tensor channels =
      Tensor::zeros(Placement(mesh).shard(1, {"a"}).resolve({2, 6 * mesh.size()}));
  if (mesh.size() > 1) REQUIRE_THROWS_AS(group_norm(channels, {}, {}, 1), LayoutError);
}

namespace {

/// The same values as a tensor that readers keep: a view is not computed again.
Tensor kept(const Tensor& x) { return reshape(x, x.shape()); }

std::int64_t live_bytes() { return MemoryPool::of(Device{}).stats().live_bytes; }

}  // namespace

TEST_CASE("what reads a norm or an activation keeps nothing of it and sees the same bits again") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const Layout layout = Placement(mesh).shard(1, {"a"}).resolve({2, 12 * mesh.size() + 1, 10, 8});
  const auto parameter = [&](const Shape& shape, double phase) {
    return require_grad(Tensor::from_function(Layout::replicated(mesh, shape), [&](const Index& i) {
      double s = phase;
      for (int d = 0; d < i.size(); ++d) s = 1.7 * s + static_cast<double>(i[d]);
      return std::sin(s);
    }));
  };
  const auto run = [&](bool keeps, int chain) {
    const Tensor x = require_grad(Tensor::from_function(layout, [](const Index& i) {
      return std::sin(static_cast<double>(i[0] + 3 * i[1] + 5 * i[2] * i[2] + 7 * i[3]));
    }));
    const Tensor gamma = parameter({8}, 0.1), beta = parameter({8}, 0.2);
    const Tensor w = parameter({4, 3, 3, 8}, 0.3);
    const std::int64_t before = live_bytes();
    Tensor h = group_norm(x, gamma, beta, 2, 1e-5, Activation::kSilu);
    if (keeps) h = kept(h);
    for (int i = 0; i < chain; ++i) {
      h = i % 2 == 0 ? gelu(h) : silu(h);
      if (keeps) h = kept(h);
    }
    const Tensor y = conv(h, w, {}, {.pad_lo = {1, 1}});
    h = Tensor();
    const std::int64_t held = live_bytes() - before - y.local_bytes();
    // Of a chain at most every second value is kept.
    if (!keeps) CHECK(held < (chain + 1) / 2 * x.local_bytes() * 9 / 8 + 8192);
    if (keeps) CHECK(held >= (chain + 1) * x.local_bytes());
    backward(mse_loss(y, Tensor::zeros(y.layout())));
    std::vector<DenseArray> gradients;
    for (const Tensor& t : {x, gamma, beta, w}) gradients.push_back(to_dense(gradient(t)));
    return gradients;
  };
  for (const int chain : {0, 1, 2, 5}) {
    const auto a = run(true, chain), b = run(false, chain);
    for (std::size_t i = 0; i < a.size(); ++i) {
      INFO("gradient " << i << ", " << chain << " activations behind the norm");
      CHECK(a[i].values == b[i].values);
    }
  }
}

TEST_CASE("values computed again have their place in a graph of the gradient") {
  const Mesh mesh = Mesh::self();
  const Tensor x = require_grad(Tensor::from_function(
      Layout::replicated(mesh, {1, 6, 4}),
      [](const Index& i) { return std::cos(static_cast<double>(i[1] + 4 * i[2])); },
      DType::kFloat64));
  const auto second = [&](bool keeps) {
    Tensor h = group_norm(x, {}, {}, 2, 1e-2, Activation::kGelu);
    if (keeps) h = kept(h);
    const Tensor g = grad({sum(h * h * h)}, {x}, {.create_graph = true})[0];
    return to_dense(grad({sum(g * g)}, {x})[0]);
  };
  const DenseArray a = second(true), b = second(false);
  CHECK(compare("second derivative", b, a, 1e-12) == "");
}

OP_TABLE("group_norm") { return norm_case({2, n, 4, 6}, 2, Activation::kSilu, true); }
OP_TABLE("activate") {
  return {.inputs = {uniform({2, n, 3})},
          .f = [](const auto& x) { return std::vector{activate(x[0], Activation::kGelu)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray y = x[0];
            for (double& v : y.values) v = activated(Activation::kGelu, v);
            return {y};
          }};
}
