// ranks: 1
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/data/grid_field.hpp>
#include <tessera/nn/data/scores.hpp>
#include <tessera/nn/data/upsample.hpp>
#include <vector>

#include "io_support.hpp"

using namespace tessera;
using data::Upsampling;

namespace {

const std::string kRelief = "/usr/share/ferret-vis/data/etopo5.cdf";

std::vector<double> random_values(std::int64_t n, std::mt19937_64& random) {
  std::vector<double> values(static_cast<std::size_t>(n));
  for (double& v : values) v = std::uniform_real_distribution<double>(-1, 1)(random);
  return values;
}

View view_of(std::vector<double>& values, const Shape& shape) {
  values.resize(static_cast<std::size_t>(shape.product()));
  return View::dense(values.data(), DType::kFloat64, shape);
}

// Weight of coarse point `k` (not yet mapped by the edge rule) for a point at `u`.
double weight(Upsampling method, double distance) {
  const double t = std::abs(distance);
  if (method == Upsampling::kLinear) return std::max(0.0, 1 - t);
  const double a = -0.75;
  if (t <= 1) return (a + 2) * t * t * t - (a + 3) * t * t + 1;
  if (t < 2) return a * t * t * t - 5 * a * t * t + 8 * a * t - 4 * a;
  return 0;
}

}  // namespace

TEST_CASE("upsampling equals the sum over the kernel, any dimension, factor and edge") {
  std::mt19937_64 random(11);
  const auto below = [&](std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random);
  };
  for (int repeat = 0; repeat < 40; ++repeat) {
    const auto dims = static_cast<int>(1 + below(3));
    Shape shape, fine_shape;
    std::vector<EdgeRule> edges;
    const std::int64_t factor = 1 + below(4);
    for (int d = 0; d < dims; ++d) {
      shape.push_back(1 + below(6));
      fine_shape.push_back(shape[d] * factor);
      edges.push_back(static_cast<EdgeRule>(below(4)));
    }
    const auto method = below(2) ? Upsampling::kLinear : Upsampling::kCubic;
    std::vector<double> coarse = random_values(shape.product(), random), fine;
    data::upsample(method, view_of(coarse, shape), view_of(fine, fine_shape), factor, edges);
    const Strides strides = row_major(shape);
    std::size_t at = 0;
    for_each_index(Box::whole(fine_shape), [&](const Index& i) {
      Box taps = Box::whole(shape);
      Index base = i;
      for (int d = 0; d < dims; ++d) {
        base[d] = static_cast<std::int64_t>(
            std::floor((static_cast<double>(i[d]) + 0.5) / static_cast<double>(factor) - 0.5));
        taps.set(d, {base[d] - 3, base[d] + 5});
      }
      double expected = 0;
      for_each_index(taps, [&](const Index& k) {
        double w = 1;
        std::int64_t from = 0;
        for (int d = 0; d < dims; ++d) {
          w *= weight(method, (static_cast<double>(i[d]) + 0.5) / static_cast<double>(factor) -
                                  0.5 - static_cast<double>(k[d]));
          const std::int64_t m = map_edge(edges[static_cast<std::size_t>(d)], k[d], shape[d]);
          if (m < 0) w = 0;
          from += std::max<std::int64_t>(m, 0) * strides[d];
        }
        if (w != 0) expected += w * coarse[static_cast<std::size_t>(from)];
      });
      REQUIRE(fine[at++] == Approx(expected).margin(1e-13));
    });
  }
  std::vector<double> a(4), b(5);
  const EdgeRule edge[] = {EdgeRule::kZero};
  CHECK_THROWS_AS(data::upsample(Upsampling::kCubic, view_of(a, {4}), view_of(b, {5}), 2, edge),
                  ShapeError);
  CHECK_THROWS_AS(
      data::upsample(Upsampling::kCubic, view_of(a, {2, 2}), view_of(b, {4, 4}), 2, edge),
      ShapeError);
}

TEST_CASE("block means ignore missing points") {
  std::vector<double> x = {1, 3, NAN, NAN, 5,  //
                           2, 6, NAN, NAN, 7,  //
                           0, 0, NAN, 8,   9};
  std::vector<double> y(4, 0);
  const View fine = View{x.data(), DType::kFloat64, {2, 4}, {5, 1}};
  data::block_mean(fine, view_of(y, {1, 2}), 2);
  CHECK(y[0] == 3);
  CHECK(std::isnan(y[1]));
  const View lower = View{x.data() + 6, DType::kFloat64, {2, 4}, {5, 1}};
  data::block_mean(lower, view_of(y, {1, 2}), 2);
  CHECK(y[0] == 3);  // 6, 0
  CHECK(y[1] == 8);  // 7, 8, 9
  std::vector<float> z(1);
  data::block_mean(view_of(x, {3, 5}).slice(Box({0, 0}, {1, 1})),
                   View::dense(z.data(), DType::kFloat32, {1, 1}), 1);
  CHECK(z[0] == 1.0f);
}

TEST_CASE("scores") {
  data::ReliefScores a, b;
  a.add(3, 1);    // land, +2
  a.add(-1, 0);   // ocean, -1
  b.add(-6, -2);  // ocean, -4
  b.add(NAN, 1);
  a += b;
  CHECK(a.all.count == 3);
  CHECK(a.all.rmse() == Approx(std::sqrt(7.0)));
  CHECK(a.all.mae() == Approx(7.0 / 3));
  CHECK(a.all.mean() == Approx(-1.0));
  CHECK(a.land.rmse() == 2);
  CHECK(a.ocean.rmse() == Approx(std::sqrt(8.5)));
  CHECK(std::isnan(data::ErrorSums().rmse()));
}

TEST_CASE("the baselines of the Earth's relief") {
  if (!std::filesystem::exists(kRelief)) {
    WARN("skipped: " << kRelief << " is not installed (Debian package ferret-datasets)");
    return;
  }
  const data::GridField field({.path = kRelief, .variable = "ROSE", .multiple = 4});
  CHECK(field.shape() == Shape{2160, 4320});
  CHECK_FALSE(field.periodic(0));
  CHECK(field.periodic(1));
  const Interval held_out = field.interval(1, 0, 60);
  CHECK(held_out == Interval{0, 720});

  // The held-out part and as much around it as the kernels see.
  const std::int64_t factor = 4;
  const std::int64_t reach = 2 * factor;
  const Box window({0, held_out.lo - reach}, {2160, held_out.hi + reach});
  std::vector<double> truth, coarse, fine;
  const Shape shape = window.shape();
  const Shape coarse_shape{shape[0] / factor, shape[1] / factor};
  const std::int64_t before = field.bytes_read();
  field.read(0, window, view_of(truth, shape));
  CHECK(field.bytes_read() - before == shape.product() * 4);
  data::block_mean(view_of(truth, shape), view_of(coarse, coarse_shape), factor);
  const auto score = [&](Upsampling method) {
    const EdgeRule edges[] = {EdgeRule::kReplicate, EdgeRule::kReplicate};
    data::upsample(method, view_of(coarse, coarse_shape), view_of(fine, shape), factor, edges);
    data::ReliefScores scores;
    for (std::int64_t i = 0; i < shape[0]; ++i)
      for (std::int64_t j = reach; j < shape[1] - reach; ++j) {
        const auto at = static_cast<std::size_t>(i * shape[1] + j);
        scores.add(fine[at], truth[at]);
      }
    return scores;
  };
  CHECK(score(Upsampling::kLinear).all.rmse() == Approx(117.7).margin(0.05));
  const data::ReliefScores cubic = score(Upsampling::kCubic);
  CHECK(cubic.all.rmse() == Approx(105.0).margin(0.05));
  CHECK(cubic.land.rmse() == Approx(87.7).margin(0.05));
  CHECK(cubic.ocean.rmse() == Approx(119.2).margin(0.05));
}
