// ranks: 1 2 3 4
#include <catch2/catch.hpp>
#include <cmath>
#include <numbers>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/field_losses.hpp>

#include "nn/loss_cases.hpp"

namespace tessera::test {
namespace {

/// Latitudes as a weight [5, 1, 1] over fields [2, 5, 4, 3].
std::vector<InputSpec> fields(InputSpec first) {
  return {std::move(first), constant(uniform({2, 5, 4, 3})), whole(uniform({5, 1, 1}, 0.1, 2.0)),
          whole(uniform({5, 4, 3}))};
}

}  // namespace

OP_TEST("weighted squares") {
  return {.inputs = fields(uniform({2, 5, 4, 3})),
          .f = [](const auto& x) -> std::vector<Tensor> {
            return {nn::weighted_mse_loss(x[0], x[1], x[2])};
          },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            double total = 0.0, divisor = 0.0;
            for_each(x[0].shape, [&](const Index& i) {
              total += x[2](i[1], 0, 0) * std::pow(x[0][i] - x[1][i], 2);
              divisor += x[2](i[1], 0, 0);
            });
            return {DenseArray({}, total / divisor)};
          },
          .may_throw = disagree};
}

OP_TEST("weighted errors per channel") {
  return {.inputs = fields(uniform({2, 5, 4, 3}, 1.5, 3.0)),
          .f = [](const auto& x) -> std::vector<Tensor> {
            return {nn::weighted_rmse(x[0], x[1], x[2]), nn::weighted_rmse(x[0], x[1])};
          },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray weighted({3}), plain({3});
            double divisor = 0.0;
            for_each(x[0].shape, [&](const Index& i) {
              const double square = std::pow(x[0][i] - x[1][i], 2);
              weighted(i[3]) += x[2](i[1], 0, 0) * square;
              plain(i[3]) += square;
              divisor += x[2](i[1], 0, 0) / 3;
            });
            for (double& v : weighted.values) v = std::sqrt(v / divisor);
            for (double& v : plain.values) v = std::sqrt(v / 40);
            return {weighted, plain};
          },
          .may_throw = disagree};
}

OP_TEST("anomaly correlation per channel") {
  return {.inputs = fields(uniform({2, 5, 4, 3})),
          .f = [](const auto& x) -> std::vector<Tensor> {
            return {nn::anomaly_correlation(x[0], x[1], x[3], x[2])};
          },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray result({3});
            for (int n = 0; n < 2; ++n) {
              for (int c = 0; c < 3; ++c) {
                double ab = 0.0, aa = 0.0, bb = 0.0;
                for_each({5, 4}, [&](const Index& i) {
                  const double w = x[2](i[0], 0, 0);
                  const double a = x[0](n, i[0], i[1], c) - x[3](i[0], i[1], c);
                  const double b = x[1](n, i[0], i[1], c) - x[3](i[0], i[1], c);
                  ab += w * a * b;
                  aa += w * a * a;
                  bb += w * b * b;
                });
                result(c) += ab / std::sqrt(aa * bb) / 2;
              }
            }
            return {result};
          },
          .may_throw = disagree};
}

TEST_CASE("latitudes weigh rows by their area, on any cut") {
  const std::vector<double> degrees = {-80, -30, 0, 20, 65};
  double total = 0.0;
  for (const double d : degrees) total += std::cos(d * std::numbers::pi / 180);
  Rng rng(from_process_0(run_seed()));
  for (const Mesh& mesh : test_meshes()) {
    const Tensor like = to_tensor(random_array({2, 5, 3}, 1), draw_layout(mesh, {2, 5, 3}, rng));
    const Tensor weight = nn::latitude_weights(degrees, like);
    DenseArray expected({1, 5, 1});
    for (int i = 0; i < 5; ++i)
      expected(0, i, 0) =
          std::cos(degrees[static_cast<std::size_t>(i)] * std::numbers::pi / 180) * 5 / total;
    CHECK(compare("weights", weight, expected, 1e-14) == "");
    CHECK(weight.layout().split(1) == like.layout().split(1));
    CHECK_THROWS_AS(nn::latitude_weights(degrees, like, 0), ShapeError);
    // As weights of a loss they lie with the rows.
    double loss = 0.0;
    const DenseArray x = random_array({2, 5, 3}, 1);
    for_each(x.shape, [&](const Index& i) { loss += expected(0, i[1], 0) * x[i] * x[i] / 30; });
    const Tensor zero = Tensor::zeros(like.layout(), DType::kFloat64);
    CHECK(nn::weighted_mse_loss(like, zero, weight).item() == Approx(loss));
    CHECK(nn::weighted_rmse(like, zero, weight).shape() == Shape{3});
  }
}

namespace {

/// Index of element i of n under a rule; -1: none.
std::int64_t inside(std::int64_t i, std::int64_t n, EdgeRule edge) {
  if (i >= 0 && i < n) return i;
  if (edge == EdgeRule::kCircular) return (i + 4 * n) % n;
  return edge == EdgeRule::kReplicate ? std::clamp<std::int64_t>(i, 0, n - 1) : -1;
}

/// SSIM at each window in plain loops, window weights as a product of Gaussians.
DenseArray ssim_of(const DenseArray& x, const DenseArray& y, const nn::SsimOptions& o) {
  const int dims = x.shape.size() - 2;
  const bool padded = !o.edges.empty();
  Shape shape = x.shape;
  Shape window;
  for (int d = 1; d <= dims; ++d) {
    if (!padded) shape[d] -= o.window - 1;
    window.push_back(o.window);
  }
  DenseArray result(shape);
  const double half = 0.5 * static_cast<double>(o.window - 1);
  for_each(shape, [&](const Index& at) {
    double norm = 0, mx = 0, my = 0, xx = 0, yy = 0, xy = 0;
    for_each(window, [&](const Index& k) {
      double w = 1.0;
      Index from = at;
      for (int d = 0; d < dims; ++d) {
        const double u = (static_cast<double>(k[d]) - half) / o.sigma;
        w *= std::exp(-u * u / 2);
        from[d + 1] = at[d + 1] + k[d];
        if (padded)
          from[d + 1] = inside(from[d + 1] - (o.window - 1) / 2, x.shape[d + 1],
                               o.edges[o.edges.size() > 1 ? static_cast<std::size_t>(d) : 0]);
      }
      norm += w;
      mx += w * x[from];
      my += w * y[from];
      xx += w * x[from] * x[from];
      yy += w * y[from] * y[from];
      xy += w * x[from] * y[from];
    });
    mx /= norm;
    my /= norm;
    const double vx = xx / norm - mx * mx, vy = yy / norm - my * my, c = xy / norm - mx * my;
    const double c1 = std::pow(o.k1 * o.range, 2), c2 = std::pow(o.k2 * o.range, 2);
    result[at] = (2 * mx * my + c1) * (2 * c + c2) / ((mx * mx + my * my + c1) * (vx + vy + c2));
  });
  return result;
}

OpCase ssim_case(const Shape& shape, const nn::SsimOptions& options) {
  return {.inputs = {uniform(shape), constant(uniform(shape))},
          .f = [=](const auto& x) -> std::vector<Tensor> {
            return {nn::ssim_map(x[0], x[1], options), nn::ssim(x[0], x[1], options)};
          },
          .reference = [=](const auto& x) -> std::vector<DenseArray> {
            const DenseArray map = ssim_of(x[0], x[1], options);
            double total = 0.0;
            for (const double v : map.values) total += v;
            return {map, DenseArray({}, total / static_cast<double>(map.size()))};
          },
          .may_throw = disagree,
          .second = false,
          .fp32_tolerance = 2e-4,
          .bf16_tolerance = 0.3,
          .random_cuts = 6};
}

}  // namespace

OP_TEST("structural similarity along a line") {
  return ssim_case({2, 13, 2}, {.window = 5, .sigma = 1.1, .range = 2.0});
}
OP_TEST("structural similarity in the plane, with edges") {
  return ssim_case({1, 5, 6, 2}, {.window = 4,
                                  .sigma = 1.5,
                                  .range = 2.0,
                                  .edges = {EdgeRule::kReplicate, EdgeRule::kCircular}});
}
OP_TEST("structural similarity in space") {
  return ssim_case({1, 4, 5, 4, 1}, {.window = 3, .range = 2.0});
}

TEST_CASE("similarity of equal fields is 1, and keeps its digits far from 0") {
  const Shape shape = {1, 12, 12, 1};
  const DenseArray x = random_array(shape, 3);
  DenseArray y = random_array(shape, 4);
  for (std::size_t i = 0; i < y.values.size(); ++i) y.values[i] = x.values[i] + 0.3 * y.values[i];
  const Layout layout = Placement(line()).shard(1, {"x"}).resolve(shape);
  const nn::SsimOptions options = {.window = 7, .range = 2.0};
  CHECK(nn::ssim(to_tensor(x, layout), to_tensor(x, layout), options).item() == Approx(1.0));
  // 1000 added to both in fp32: luminance becomes 1, structure stays.
  DenseArray high_x = x, high_y = y;
  for (double& v : high_x.values) v += 1000;
  for (double& v : high_y.values) v += 1000;
  double expected = 0.0;
  const DenseArray map = ssim_of(high_x, high_y, options);
  for (const double v : map.values) expected += v / static_cast<double>(map.size());
  const Tensor far = nn::ssim(to_tensor(high_x, layout, DType::kFloat32),
                              to_tensor(high_y, layout, DType::kFloat32), options);
  CHECK(far.item() == Approx(expected).epsilon(1e-3));
}

TEST_CASE("losses of fields refuse what does not fit") {
  const auto zeros = [&](const Shape& s) { return Tensor::zeros(Layout::replicated(line(), s)); };
  const Tensor x = zeros({2, 5, 3});
  CHECK_THROWS_AS(nn::weighted_mse_loss(x, zeros({2, 5, 1})), ShapeError);
  CHECK_THROWS_AS(nn::weighted_mse_loss(x, x, zeros({4, 1})), ShapeError);
  CHECK_THROWS_AS(nn::weighted_rmse(x, x, zeros({3})), ShapeError);
  CHECK_THROWS_AS(nn::anomaly_correlation(x, x, zeros({4, 3})), ShapeError);
  CHECK_THROWS_AS(nn::ssim(x, x), ShapeError);
  CHECK_THROWS_AS(nn::ssim(zeros({2, 5}), zeros({2, 5}), {.window = 1}), ShapeError);
  CHECK_THROWS_AS(nn::ssim(x, x, {.window = 3, .sigma = 0}), UsageError);
  CHECK_THROWS_AS(
      nn::ssim(x, x, {.window = 3, .edges = {EdgeRule::kCircular, EdgeRule::kCircular}}),
      UsageError);
}

}  // namespace tessera::test
