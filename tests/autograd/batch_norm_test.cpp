// ranks: 1 2 3 4

#include <bit>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/batch_norm.hpp>
#include <tessera/autograd/ops/conv.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/shape.hpp>

#include "support/op_table.hpp"

namespace tessera::test {
namespace {

double activated(Activation a, double z) {
  if (a == Activation::kSilu) return z / (1 + std::exp(-z));
  if (a == Activation::kGelu) return z / 2 * std::erfc(-z / std::sqrt(2.0));
  return z;
}

/// Weighted sums per (sample, group of channels), or per channel of all samples (`groups` 0).
struct Statistics {
  std::int64_t groups;
  std::int64_t width = 1;
  std::vector<double> count, mean, m2;

  Statistics(const DenseArray& x, const DenseArray& area, std::int64_t of) : groups(of) {
    const std::int64_t channels = x.shape.back();
    if (groups > 0) width = channels / groups;
    const std::int64_t slots = groups > 0 ? x.shape[0] * groups : channels;
    count.assign(static_cast<std::size_t>(slots), 0.0);
    mean = m2 = count;
    const auto weight = [&](Index i) {
      if (area.absent) return 1.0;
      Index at = area.shape.size() == i.size() ? i : Index(std::span(i.begin() + 1, i.end() - 1));
      for (int d = 0; d < at.size(); ++d)
        if (area.shape[d] == 1) at[d] = 0;
      return area[at];
    };
    for_each(x.shape, [&](const Index& i) {
      count[slot(i)] += weight(i);
      mean[slot(i)] += weight(i) * x[i];
    });
    for (std::size_t s = 0; s < mean.size(); ++s) mean[s] /= count[s];
    for_each(x.shape,
             [&](const Index& i) { m2[slot(i)] += weight(i) * std::pow(x[i] - mean[slot(i)], 2); });
  }
  std::size_t slot(const Index& i) const {
    return static_cast<std::size_t>(groups > 0 ? i[0] * groups + i.back() / width : i.back());
  }
};

DenseArray normalised(const DenseArray& x,
                      const DenseArray& gamma,
                      const DenseArray& beta,
                      const DenseArray& area,
                      std::int64_t groups,
                      double eps,
                      Activation activation) {
  const Statistics s(x, area, groups);
  DenseArray y(x.shape);
  for_each(x.shape, [&](const Index& i) {
    const std::size_t k = s.slot(i);
    double z = (x[i] - s.mean[k]) / std::sqrt(s.m2[k] / s.count[k] + eps);
    if (!gamma.absent) z *= gamma(i.back());
    if (!beta.absent) z += beta(i.back());
    y[i] = activated(activation, z);
  });
  return y;
}

/// Inputs x, gamma, beta, area. `groups` 0: batch norm.
OpCase norm_case(const Shape& shape,
                 const InputSpec& area,
                 std::int64_t groups,
                 Activation activation,
                 bool affine) {
  const std::int64_t channels = shape.back();
  OpCase c;
  c.inputs = {uniform(shape, 1.0, 3.0), affine ? uniform({channels}, 0.5, 1.5) : absent(),
              affine ? uniform({channels}) : absent(), area};
  c.f = [=](const auto& in) {
    if (groups > 0)
      return std::vector{group_norm(in[0], in[1], in[2], groups, 1e-2, activation, in[3])};
    return std::vector{
        batch_norm(in[0], in[1], in[2], {.eps = 1e-2, .activation = activation, .area = in[3]}).y};
  };
  c.reference = [=](const auto& in) -> std::vector<DenseArray> {
    return {normalised(in[0], in[1], in[2], in[3], groups, 1e-2, activation)};
  };
  // Parameters or the area split alone, or channels within a group.
  c.may_throw = [](const std::vector<Layout>& in) {
    bool split = in[0].is_split(in[0].dims() - 1);
    for (const std::size_t i : {1u, 2u, 3u})
      split = split || (in[i].defined() && in[i].split_axes() != 0);
    return split;
  };
  c.tolerance = 1e-10;
  c.difference_tolerance = 1e-5;
  c.bf16_tolerance = 0.2;
  return c;
}

OpCase given_moments_case(std::int64_t n) {
  InputSpec moments = constant(uniform({1, 3, 3}, 0.5, 2.0));
  moments.partial = false;
  moments.cuttable = {};
  OpCase c;
  c.inputs = {uniform({3, n, 3}), uniform({3}, 0.5, 1.5), uniform({3}), moments};
  c.f = [](const auto& in) {
    return std::vector{
        normalize_with(in[0], cast(in[3], DType::kFloat64), in[1], in[2], 1e-2, Activation::kSilu)};
  };
  c.reference = [](const auto& in) {
    DenseArray y(in[0].shape);
    for_each(y.shape, [&](const Index& i) {
      const std::int64_t k = i.back();
      const double rstd = 1 / std::sqrt(in[3](0, k, 2) / in[3](0, k, 0) + 1e-2);
      y[i] = activated(Activation::kSilu, (in[0][i] - in[3](0, k, 1)) * rstd * in[1](k) + in[2](k));
    });
    return std::vector{y};
  };
  c.may_throw = [](const std::vector<Layout>& in) {
    return in[0].is_split(2) || in[1].split_axes() != 0 || in[2].split_axes() != 0;
  };
  return c;
}

InputSpec area_of(const Shape& shape) {
  InputSpec area = constant(uniform(shape, 0.2, 1.0));
  area.partial = false;
  return area;
}

/// Sums of three uniform numbers: deviation `deviation` about `mean`.
DenseArray noise(const Shape& shape, double mean, double deviation) {
  DenseArray x(shape);
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    double sum = -1.5;
    for (const std::uint64_t k : {1u, 2u, 3u}) sum += uniform_at(k, static_cast<std::int64_t>(i));
    x.values[i] = mean + deviation * 2 * sum;
  }
  return x;
}

Mesh line() { return Mesh::world({{"a", process().count}}); }

/// Samples 3 + 1 over the first two ranks; other ranks, if any, have none.
Layout three_and_one(const Mesh& mesh, const Shape& shape) {
  Bounds bounds = {0};
  for (int r = 0; r < mesh.size(); ++r) bounds.push_back(r == 0 && mesh.size() > 1 ? 3 : 4);
  std::vector<DimSplit> splits(static_cast<std::size_t>(shape.size()));
  splits[0] = {{0}, bounds};
  return Layout::make(mesh, shape, splits);
}

}  // namespace

OP_TEST("batch normalisation of images") {
  return norm_case({3, 5, 4, 3}, absent(), 0, Activation::kNone, true);
}
OP_TEST("batch normalisation of rows, and silu") {
  return norm_case({9, 4}, absent(), 0, Activation::kSilu, true);
}
OP_TEST("batch normalisation of volumes without parameters, and gelu") {
  return norm_case({2, 3, 2, 3, 2}, absent(), 0, Activation::kGelu, false);
}
OP_TEST("batch normalisation with an area per row of the domain") {
  return norm_case({3, 5, 4, 3}, area_of({5, 1}), 0, Activation::kNone, true);
}
OP_TEST("batch normalisation with an area per sample and element") {
  return norm_case({3, 6, 2}, area_of({3, 6, 1}), 0, Activation::kSilu, true);
}
OP_TEST("instance normalisation with an area") {
  return norm_case({2, 6, 3, 4}, area_of({6, 3}), 4, Activation::kNone, true);
}
OP_TEST("group normalisation with an area along the inner dimension") {
  return norm_case({2, 3, 5, 4}, area_of({1, 1, 5, 1}), 2, Activation::kSilu, true);
}

OP_TEST("normalisation with given moments") { return given_moments_case(5); }

OP_TABLE("batch_norm") { return norm_case({2, n, 4, 3}, absent(), 0, Activation::kSilu, true); }
OP_TABLE("normalize_with") {
  OpCase c = given_moments_case(n);
  c.terms = 1;  // 3 n cotangents of both signs
  return c;
}

TEST_CASE("statistics with a mean far above the deviation, on any cut, the same bits everywhere") {
  struct Data {
    DType dtype;
    double mean, deviation;
  };
  const auto [dtype, mean, deviation] =
      GENERATE(Data{DType::kFloat32, 1e4, 1e-2}, Data{DType::kBFloat16, 10.0, 1.0});
  const bool weighted = GENERATE(false, true);
  const Shape shape = {4, 37, 29, 3};
  const DenseArray x = rounded_to(noise(shape, mean, deviation), dtype);
  DenseArray area;
  area.absent = !weighted;
  if (weighted) {
    area = DenseArray({37, 1});
    for (std::int64_t i = 0; i < 37; ++i)
      area(i, 0) = std::cos((static_cast<double>(i) - 18) / 37 * 3.1);
  }
  const Statistics s(x, area, 0);
  DenseArray none;
  none.absent = true;
  const DenseArray y = normalised(x, none, none, area, 0, 1e-9, Activation::kNone);
  const DenseArray instance = normalised(x, none, none, area, 3, 1e-9, Activation::kNone);
  const double rounding = dtype == DType::kFloat32 ? 1e-5 : 4e-3;  // of the result
  const Mesh mesh = line();
  const Layout layouts[] = {three_and_one(mesh, shape),
                            Placement(mesh).shard(1, {"a"}).resolve(shape),
                            Placement(mesh).shard(2, {"a"}).resolve(shape)};
  for (const Layout& layout : layouts) {
    INFO(layout.str());
    const Tensor in = to_tensor(x, layout, dtype);
    const Tensor weights =
        weighted ? to_tensor(area, Layout::replicated(mesh, area.shape)) : Tensor();
    const BatchNormResult result = batch_norm(in, {}, {}, {.eps = 1e-9, .area = weights});
    REQUIRE(result.moments.layout().is_replicated());
    for (std::int64_t c = 0; c < 3; ++c) {
      const auto k = static_cast<std::size_t>(c);
      const double count = result.moments.at({0, c, 0}), m = result.moments.at({0, c, 1}),
                   m2 = result.moments.at({0, c, 2});
      CHECK(std::fabs(count / s.count[k] - 1) < 1e-12);
      CHECK(std::fabs(m - s.mean[k]) < 1e-5 * deviation);
      CHECK(std::fabs(m2 / s.m2[k] - 1) < 1e-5);
      for (const double v : {count, m, m2})
        CHECK(from_process_0(std::bit_cast<std::uint64_t>(v)) == std::bit_cast<std::uint64_t>(v));
    }
    CHECK(compare("batch norm", result.y, y, rounding) == "");
    CHECK(compare("instance norm", group_norm(in, {}, {}, 3, 1e-9, Activation::kNone, weights),
                  instance, rounding) == "");
  }
}

TEST_CASE("gradients of samples 3 + 1 over two ranks are those of one rank, through batch norms") {
  const Mesh mesh = line();
  const Shape shape = {4, 7, 6, 2};
  const DenseArray x = random_array(shape, 1), target = random_array({4, 7, 6, 3}, 2),
                   w1 = random_array({4, 3, 3, 2}, 3), w2 = random_array({3, 3, 3, 4}, 4),
                   gamma = random_array({4}, 5, 0.5, 1.5), beta = random_array({4}, 6);
  const auto gradients = [&](const Mesh& on, const Layout& layout) {
    const auto parameter = [&](const DenseArray& a) {
      return require_grad(to_tensor(a, Layout::replicated(on, a.shape)));
    };
    const std::vector<Tensor> p = {parameter(w1), parameter(gamma), parameter(beta), parameter(w2)};
    const Tensor input = require_grad(to_tensor(x, layout));
    const BatchNormSettings silu = {.activation = Activation::kSilu};
    const Tensor h = batch_norm(conv(input, p[0], {}, {.pad_lo = {1}}), p[1], p[2], silu).y;
    const Tensor y = batch_norm(conv(h, p[3], {}, {.pad_lo = {1}}), {}, {}).y;
    backward(mse_loss(y, to_tensor(target, y.layout())));
    std::vector<DenseArray> all = {to_dense(gradient(input))};
    for (const Tensor& t : p) all.push_back(to_dense(gradient(t)));
    return all;
  };
  const auto one = gradients(Mesh::self(), Layout::replicated(Mesh::self(), shape));
  const auto many = gradients(mesh, three_and_one(mesh, shape));
  for (std::size_t i = 0; i < one.size(); ++i) {
    INFO("gradient " << i);
    CHECK(compare("", many[i], one[i], 1e-12) == "");
    CHECK(std::fabs(dot(many[i], one[i]) / dot(one[i], one[i]) - 1) < 1e-12);
  }
}

TEST_CASE("a batch norm takes one exchange of moments over all ranks at once") {
  const int n = process().count;
  const Mesh mesh = n == 4 ? Mesh::world({{"data", 2}, {"h", 2}}) : Mesh::world({{"h", n}});
  Placement placement(mesh);
  if (n == 4) placement = placement.shard(0, {"data"});
  const Layout layout = placement.shard(1, {"h"}).resolve({4, 4 * n, 8});
  const Tensor x = to_tensor(random_array(layout.shape(), 1), layout);
  const Traffic forward = traffic_of([&] { batch_norm(x, {}, {}); });
  CHECK(forward.bytes == n * (n - 1) * 8 * 3 * 8);
}

TEST_CASE("batch norm explains what does not fit") {
  const Mesh mesh = line();
  const auto zeros = [&](const Shape& s, DType t = DType::kFloat32) {
    return Tensor::zeros(Layout::replicated(mesh, s), t);
  };
  CHECK_THROWS_AS(batch_norm(zeros({6}), {}, {}), ShapeError);
  CHECK_THROWS_WITH(batch_norm(zeros({2, 6}), zeros({5}), {}),
                    Catch::Contains("batch_norm: gamma [5] does not fit the 6 channels"));
  CHECK_THROWS_AS(batch_norm(zeros({2, 6}, DType::kInt32), {}, {}), DTypeError);
  CHECK_THROWS_AS(batch_norm(zeros({2, 5, 6}), {}, {}, {.area = zeros({4})}), ShapeError);
  CHECK_THROWS_AS(batch_norm(zeros({2, 5, 6}), {}, {}, {.area = zeros({2, 5, 6})}), ShapeError);
  CHECK_THROWS_AS(batch_norm(zeros({2, 5, 6}), {}, {}, {.area = require_grad(zeros({5}))}),
                  UsageError);
  CHECK_THROWS_AS(normalize_with(zeros({2, 6}), zeros({1, 6, 3}), {}, {}), ShapeError);
}

TEST_CASE("samples that are nowhere have no statistics and no gradient") {
  const Mesh mesh = line();
  const Tensor x = require_grad(
      Tensor::zeros(Placement(mesh).shard(1, {"a"}).resolve({0, 5, 3}), DType::kFloat64));
  const BatchNormResult result = batch_norm(x, {}, {});
  CHECK(result.y.shape() == Shape{0, 5, 3});
  CHECK(result.moments.at({0, 1, 0}) == 0.0);
  CHECK(grad({result.y}, {x}, {}, {Tensor::zeros(result.y.layout(), DType::kFloat64)})[0].shape() ==
        Shape{0, 5, 3});
}

}  // namespace tessera::test
