// ranks: 1 2 3 4
#include <catch2/catch.hpp>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/nn/slice_attention.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kSlices = 3;
constexpr std::int64_t kChannels = 6;
constexpr std::int64_t kDepth = 4;

nn::SliceAttention make(const Mesh& mesh) {
  nn::SliceAttention layer(
      {.channels = kChannels, .heads = kHeads, .head_channels = kDepth, .slices = kSlices}, mesh,
      DType::kFloat64);
  nn::initialize(layer, 3);
  return layer;
}

/// w x + b of row `r` of the last dimension.
std::vector<double> product(const nn::Linear& layer, const std::vector<double>& x) {
  const DenseArray w = to_dense(layer.weight.value());
  std::vector<double> y(static_cast<std::size_t>(w.shape[0]));
  for (std::int64_t o = 0; o < w.shape[0]; ++o) {
    double total = layer.bias.defined() ? to_dense(layer.bias.value())(o) : 0.0;
    for (std::int64_t i = 0; i < w.shape[1]; ++i) total += w(o, i) * x[static_cast<std::size_t>(i)];
    y[static_cast<std::size_t>(o)] = total;
  }
  return y;
}

void soften(std::vector<double>& v) {
  double total = 0;
  for (double& x : v) total += x = std::exp(x);
  for (double& x : v) x /= total;
}

std::vector<double> head(const std::vector<double>& v, std::int64_t h) {
  return {v.begin() + h * kDepth, v.begin() + (h + 1) * kDepth};
}

/// The formulas of the header in plain loops, for one sample [points, channels].
std::vector<std::vector<double>> reference(const nn::SliceAttention& layer, const DenseArray& x) {
  const std::int64_t points = x.shape[1];
  const auto n = static_cast<std::size_t>(points);
  std::vector<std::vector<double>> a(n), f(n), joined(n);
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<double> row;
    for (std::int64_t c = 0; c < kChannels; ++c)
      row.push_back(x(0, static_cast<std::int64_t>(i), c));
    a[i] = product(layer.slice_input, row);
    f[i] = product(layer.value_input, row);
  }
  for (std::int64_t h = 0; h < kHeads; ++h) {
    std::vector<std::vector<double>> w(n);
    std::vector<std::vector<double>> z(kSlices, std::vector<double>(kDepth));
    std::vector<double> weight(kSlices, 1e-5);
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<double> warm = head(a[i], h);
      for (double& v : warm) v /= 0.5;
      w[i] = product(layer.slice_weights, warm);
      soften(w[i]);
      for (std::size_t m = 0; m < kSlices; ++m) {
        weight[m] += w[i][m];
        for (std::size_t d = 0; d < kDepth; ++d) z[m][d] += w[i][m] * head(f[i], h)[d];
      }
    }
    std::vector<std::vector<double>> q(kSlices), k(kSlices), v(kSlices), mixed(kSlices);
    for (std::size_t m = 0; m < kSlices; ++m) {
      for (double& c : z[m]) c /= weight[m];
      q[m] = product(layer.query, z[m]);
      k[m] = product(layer.key, z[m]);
      v[m] = product(layer.value, z[m]);
    }
    for (std::size_t m = 0; m < kSlices; ++m) {
      std::vector<double> p(kSlices);
      for (std::size_t l = 0; l < kSlices; ++l)
        for (std::size_t d = 0; d < kDepth; ++d) p[l] += q[m][d] * k[l][d] / std::sqrt(kDepth);
      soften(p);
      mixed[m].assign(kDepth, 0.0);
      for (std::size_t l = 0; l < kSlices; ++l)
        for (std::size_t d = 0; d < kDepth; ++d) mixed[m][d] += p[l] * v[l][d];
    }
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t d = 0; d < kDepth; ++d) {
        double total = 0;
        for (std::size_t m = 0; m < kSlices; ++m) total += w[i][m] * mixed[m][d];
        joined[i].push_back(total);
      }
    }
  }
  for (auto& row : joined) row = product(layer.proj, row);
  return joined;
}

Mesh line() { return Mesh::world({{"x", process().count}}); }

Layout cut(const Shape& shape) { return Placement(line()).domain(0, "x").resolve(shape); }

}  // namespace

TEST_CASE("slice attention is what its formulas say") {
  const DenseArray x = random_array({1, 11, kChannels}, 1);
  const nn::SliceAttention layer = make(line());
  const auto rows = reference(layer, x);
  DenseArray expected({1, 11, kChannels});
  for_each(expected.shape, [&](const Index& i) {
    expected[i] = rows[static_cast<std::size_t>(i[1])][static_cast<std::size_t>(i[2])];
  });
  CHECK(compare("y", layer(to_tensor(x, cut(x.shape))), expected, 1e-12) == "");
}

TEST_CASE("slice attention communicates one reduction of its slices, and one in backward") {
  const Mesh mesh = line();
  const DenseArray x = random_array({2, 13, kChannels}, 2);
  const nn::SliceAttention layer = make(mesh);
  const Tensor points = require_grad(to_tensor(x, cut(x.shape)));
  const auto reduction = [&](std::int64_t channels) {
    const Layout sums = Layout::replicated(mesh, {2, kHeads, kSlices, channels})
                            .with_partial(mesh.size() > 1 ? mesh.all_axes() : 0);
    const Tensor pending = Tensor::zeros(sums, DType::kFloat64);
    return traffic_of([&] { reduced(pending); });
  };
  Tensor y;
  const Traffic one = reduction(kDepth + 1);
  expect_traffic(one.bytes, one.messages, [&] { y = layer(points); });
  if (mesh.size() > 1) CHECK(one.messages > 0);

  const Traffic back = reduction(kDepth);
  const Tensor g = to_tensor(random_array(x.shape, 3), y.layout());
  expect_traffic(back.bytes, back.messages, [&] { grad({y}, {points}, {}, {g}); });

  // Gradients of the layer's parameters stay pending, whatever the number of parameters.
  const Tensor loss = reduced(sum(layer(points) * g));
  expect_traffic(back.bytes, back.messages, [&] { backward(loss, {.reduce = false}); });
}

}  // namespace tessera::test
