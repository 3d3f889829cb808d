// ranks: 1 2 3
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <set>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/layout.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/data/nearest.hpp>
#include <tessera/nn/data/points.hpp>
#include <tessera/nn/io/netcdf.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

constexpr std::int64_t kPoints = 60;

double longitude(std::int64_t i) { return static_cast<double>(i * 37 % 360); }
double latitude(std::int64_t i) { return static_cast<double>(i * 29 % 170) - 85.0; }
/// Missing where the target is.
double heat(std::int64_t s, std::int64_t i) {
  return i % 7 == 3 ? std::nan("") : static_cast<double>(10 * s + i % 11);
}
double cover(std::int64_t i) { return 2.0 * static_cast<double>(i % 5); }

/// Distance of two points through the unit sphere.
double chord(std::int64_t a, std::int64_t b) {
  const double radian = std::numbers::pi / 180.0;
  const double cosine = std::sin(latitude(a) * radian) * std::sin(latitude(b) * radian) +
                        std::cos(latitude(a) * radian) * std::cos(latitude(b) * radian) *
                            std::cos((longitude(a) - longitude(b)) * radian);
  return std::sqrt(std::max(2.0 - 2.0 * cosine, 0.0));
}
double distance(const double* a, const double* b) {
  return std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
}

/// A file of points with two samples, one per rank, removed at the end.
class Cloud {
 public:
  Cloud() {
    path_ = (std::filesystem::temp_directory_path() / str("points-", getpid(), ".nc")).string();
    io::NetcdfWriter writer(path_,
                            {{.name = "sample", .size = 2}, {.name = "cells", .size = kPoints}},
                            {{.name = "clon",
                              .dims = {"cells"},
                              .attributes = {{"units", std::string("radian")},
                                             {"standard_name", std::string("longitude")}}},
                             {.name = "lat", .dims = {"cells"}},
                             {.name = "heat", .dims = {"sample", "cells"}, .fill = -999.0},
                             {.name = "cover", .dims = {"cells"}},
                             {.name = "short", .dims = {"sample"}}});
    std::vector<double> values;
    const auto write = [&](const std::string& name, const Shape& shape) {
      writer.write_box(name, Box::whole(shape), View::dense(values.data(), DType::kFloat64, shape));
      values.clear();
    };
    for (std::int64_t i = 0; i < kPoints; ++i)
      values.push_back(longitude(i) * std::numbers::pi / 180.0);
    write("clon", {kPoints});
    for (std::int64_t i = 0; i < kPoints; ++i) values.push_back(latitude(i));
    write("lat", {kPoints});
    for (std::int64_t s = 0; s < 2; ++s)
      for (std::int64_t i = 0; i < kPoints; ++i) values.push_back(heat(s, i));
    write("heat", {2, kPoints});
    for (std::int64_t i = 0; i < kPoints; ++i) values.push_back(cover(i));
    write("cover", {kPoints});
    values = {1.0, 2.0};
    write("short", {2});
    writer.commit();
  }
  ~Cloud() { std::filesystem::remove(path_); }
  data::PointCloudOptions options() const {
    return {.path = path_, .inputs = {"cover"}, .targets = {"heat"}, .holdout = 0.3, .seed = 5};
  }

 private:
  std::string path_;
};

}  // namespace

TEST_CASE("points have their place on the sphere, their values and scales of the training") {
  const Cloud file;
  const data::PointCloud cloud(file.options());
  REQUIRE(cloud.points() == kPoints);
  CHECK(cloud.samples() == 2);
  CHECK(cloud.input_channels() == 4);
  CHECK(cloud.dimension() == "cells");
  CHECK(cloud.training_points() > 30);
  CHECK(cloud.training_points() < 52);
  double sum = 0.0;
  double count = 0.0;
  for (const std::int64_t i : cloud.training()) {
    CHECK_FALSE(cloud.held_out(i));
    for (std::int64_t s = 0; s < 2; ++s) {
      if (std::isnan(heat(s, i))) continue;
      sum += heat(s, i);
      count += 1.0;
    }
  }
  CHECK(cloud.target_scale(0).mean == Approx(sum / count).epsilon(1e-6));
  double channels[4];
  double first[4];
  double second[4];
  cloud.input(0, 0, first);
  cloud.input(0, 1, second);
  const double scale = chord(0, 1) / distance(first, second);
  double largest = 0.0;
  for (std::int64_t i = 0; i < kPoints; ++i) {
    cloud.input(1, i, channels);
    CHECK(distance(first, channels) * scale == Approx(chord(0, i)).margin(1e-5));
    for (int d = 0; d < 3; ++d) largest = std::max(largest, std::abs(channels[d]));
    CHECK(channels[3] * cloud.scales()[0].std + cloud.scales()[0].mean ==
          Approx(cover(i)).margin(1e-5));
    CHECK(std::isnan(cloud.target(0, 0, i)) == std::isnan(heat(0, i)));
  }
  CHECK(largest == Approx(1.0));
  // The corner of the map at the least longitude and latitude, and that of point 0.
  const auto [west, east] = std::pair(0.0, 353.0);
  const auto [south, north] = std::pair(-85.0, 84.0);
  const std::vector<double> place = cloud.position_on_map((longitude(0) - west) / (east - west),
                                                          (latitude(0) - south) / (north - south));
  CHECK(distance(place.data(), first) < 1e-5);
  CHECK(cloud.map_aspect() == Approx((north - south) / (east - west)).epsilon(1e-5));
}

TEST_CASE("draws of points are those of one rank, each point once, none held out") {
  const Cloud file;
  const data::PointCloud cloud(file.options());
  const Shape shape = {3, 20, 4};
  const Layout alone = Layout::replicated(Mesh::self(), shape);
  const data::PointBatch one = cloud.batch(4, alone, DType::kFloat64);
  for (std::int64_t n = 0; n < 3; ++n) {
    std::set<std::vector<double>> seen;
    for (std::int64_t i = 0; i < 20; ++i) {
      std::vector<double> position;
      for (std::int64_t c = 0; c < 3; ++c) position.push_back(one.input.at({n, i, c}));
      CHECK(seen.insert(position).second);
      bool found = false;
      double channels[4];
      for (const std::int64_t p : cloud.training()) {
        cloud.input(0, p, channels);
        found = found || (channels[0] == position[0] && channels[1] == position[1]);
      }
      CHECK(found);
      CHECK((one.mask.at({n, i, 0}) == 1.0 || one.target.at({n, i, 0}) == 0.0));
    }
  }
  CHECK(compare("later", cloud.batch(5, alone, DType::kFloat64).input, to_dense(one.input), 0.0) !=
        "");
  for (const Mesh& mesh : test_meshes()) {
    Placement placement(mesh);
    for (int a = 0; a < mesh.axis_count() && a < 2; ++a)
      placement = placement.shard(a == 0 ? 1 : 0, {mesh.axis_name(a)});
    const data::PointBatch many = cloud.batch(4, placement.resolve(shape, {}), DType::kFloat64);
    INFO(mesh.str());
    CHECK(compare("input", many.input, to_dense(one.input), 0.0) == "");
    CHECK(compare("target", many.target, to_dense(one.target), 0.0) == "");
    CHECK(compare("mask", cast(many.mask, DType::kFloat64),
                  to_dense(cast(one.mask, DType::kFloat64)), 0.0) == "");
  }
}

TEST_CASE("what points refuse") {
  const Cloud file;
  const auto with = [&](auto&& change) {
    data::PointCloudOptions o = file.options();
    change(o);
    return [o] { data::PointCloud{o}; };
  };
  CHECK_THROWS_AS(with([](auto& o) { o.targets = {}; })(), UsageError);
  CHECK_THROWS_AS(with([](auto& o) { o.targets = {"short"}; })(), UsageError);
  CHECK_THROWS_AS(with([](auto& o) { o.inputs = {"none"}; })(), DataError);
  CHECK_THROWS_AS(with([](auto& o) { o.coordinates = {"heat"}; })(), UsageError);
  CHECK_THROWS_AS(with([](auto& o) { o.holdout = 1.0; })(), UsageError);
  CHECK_THROWS_AS(with([](auto& o) { o.path = "none.nc"; })(), IoError);
  const data::PointCloud cloud(file.options());
  CHECK_THROWS_AS(cloud.batch(0, Layout::replicated(Mesh::self(), {1, 60, 4}), DType::kFloat64),
                  UsageError);
  CHECK_THROWS_AS(data::PointCloud(file.options(), {{0.0, 1.0}}), DataError);
}

TEST_CASE("the nearest point is the one that a search through all finds") {
  Rng rng(3);
  for (const int dims : {1, 2, 3}) {
    for (const std::int64_t n : {1, 2, 7, 200}) {
      std::vector<double> positions;
      std::vector<std::int64_t> members;
      for (std::int64_t i = 0; i < n; ++i) {
        if (i % 3 != 1 || n < 3) members.push_back(i);
        // Few distinct values: equally near points.
        for (int d = 0; d < dims; ++d)
          positions.push_back(static_cast<double>(rng.integer(0, 6)) / 3.0);
      }
      const data::NearestPoints nearest(positions, dims, members);
      for (int k = 0; k < 50; ++k) {
        std::vector<double> at;
        for (int d = 0; d < dims; ++d) at.push_back(static_cast<double>(rng.integer(-1, 7)) / 3.0);
        std::int64_t best = -1;
        double least = 1e300;
        for (const std::int64_t m : members) {
          double distance = 0.0;
          for (int d = 0; d < dims; ++d) {
            const double apart =
                at[static_cast<std::size_t>(d)] - positions[static_cast<std::size_t>(m * dims + d)];
            distance += apart * apart;
          }
          if (distance < least) {
            least = distance;
            best = m;
          }
        }
        CHECK(nearest.nearest(at) == best);
      }
    }
  }
}

}  // namespace tessera::test
