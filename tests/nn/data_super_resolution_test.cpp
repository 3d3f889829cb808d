// ranks: 1
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <set>
#include <tessera/nn/data/super_resolution.hpp>
#include <tessera/nn/data/upsample.hpp>
#include <tessera/nn/io/netcdf.hpp>

#include "io_support.hpp"

using namespace tessera;
using tessera::test::TempDir;

namespace {

// Plays every rank of a mesh in turn, in this process.
void as_each_rank(int count, const std::function<void()>& f) {
  const Process own = process();
  for (int rank = 0; rank < count; ++rank) {
    set_process({rank, count});
    f();
  }
  set_process(own);
}

struct FileOptions {
  Shape shape = {26, 48};
  double first_longitude = 0.0;
  double held_out_change = 0.0;  // added to the points at longitudes 60..150
  bool missing = false;
};

double field_value(std::int64_t i, std::int64_t j) {
  return std::round(200 * std::sin(0.7 * static_cast<double>(i)) *
                        std::cos(0.9 * static_cast<double>(j)) +
                    static_cast<double>(i * j % 17));
}

void make_file(const std::string& path, const FileOptions& options = {}) {
  const std::int64_t rows = options.shape[0], columns = options.shape[1];
  std::vector<double> lat, lon, z;
  for (std::int64_t i = 0; i < rows; ++i)
    lat.push_back(90.0 - 180.0 * (static_cast<double>(i) + 0.5) / static_cast<double>(rows));
  for (std::int64_t j = 0; j < columns; ++j)
    lon.push_back(options.first_longitude +
                  360.0 * static_cast<double>(j) / static_cast<double>(columns));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) {
      const double east = std::fmod(lon[static_cast<std::size_t>(j)] + 720, 360);
      const bool held_out = east >= 60 && east < 150;
      const bool gone = options.missing && (i / 2 + j / 3) % 5 == 0;
      z.push_back(gone ? NAN : field_value(i, j) + (held_out ? options.held_out_change : 0));
    }
  io::NetcdfWriter writer(path,
                          {{"lat", rows, lat, {{"units", "degrees_north"}}},
                           {"lon", columns, lon, {{"units", "degrees_east"}}}},
                          {{"z", {"lat", "lon"}, DType::kFloat32, {}, -9999.0}});
  writer.write_box("z", Box::whole(options.shape),
                   View::dense(z.data(), DType::kFloat64, options.shape));
  writer.commit();
}

data::SuperResolutionOptions options_for(const std::string& path) {
  data::SuperResolutionOptions options;
  options.field.path = path;
  options.factor = 4;
  options.crop = {12, 16};
  options.holdout_lo = 60;
  options.holdout_hi = 150;
  options.seed = 5;
  return options;
}

std::map<std::vector<std::int64_t>, double> parts_of(const Tensor& tensor) {
  std::map<std::vector<std::int64_t>, double> values;
  for_each_index(tensor.local_box(), [&](const Index& i) {
    values[{i.begin(), i.end()}] = tensor.at(i);
  });
  return values;
}

}  // namespace

TEST_CASE("grid fields: periodic longitude, windows across the edge, held-out intervals") {
  const TempDir dir;
  make_file(dir / "a.nc", {.first_longitude = -180});
  const data::GridField field({.path = dir / "a.nc", .multiple = 4});
  CHECK(field.shape() == Shape{24, 48});
  CHECK_FALSE(field.periodic(0));
  CHECK(field.periodic(1));
  CHECK(field.variable().name == "z");
  CHECK(field.coordinate_attribute(0, "units") == "degrees_north");
  std::vector<double> values(3 * 10);
  field.read(0, Box({2, 43}, {5, 53}), View::dense(values.data(), DType::kFloat64, {3, 10}));
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t j = 0; j < 10; ++j)
      CHECK(values[static_cast<std::size_t>(i * 10 + j)] == field_value(i + 2, (j + 43) % 48));
  CHECK_THROWS_AS(
      field.read(0, Box({-1, 0}, {2, 10}), View::dense(values.data(), DType::kFloat64, {3, 10})),
      ShapeError);
  // -180 + 7.5 j: 0 is column 24, 60 column 32, 150 column 44, 190 = -170 lies between columns 1
  // and 2.
  CHECK(field.interval(1, 0, 60) == Interval{24, 32});
  CHECK(field.interval(1, 150, 190) == Interval{44, 50});
  CHECK(field.interval(1, -180, 180) == Interval{0, 48});
  CHECK(field.interval(1, 1, 2).empty());
  CHECK(field.interval(0, -90, 0) == Interval{13, 24});  // latitude descends
  CHECK(field.dim("lon") == 1);
  CHECK_THROWS_AS(field.dim("depth"), UsageError);
  CHECK_THROWS_AS(data::GridField({.path = dir / "a.nc", .multiple = 5}), UsageError);
  CHECK_THROWS_AS(data::GridField({.path = dir / "a.nc", .variable = "y"}), IoError);
}

TEST_CASE("pairs are the file's values and their block means") {
  const TempDir dir;
  make_file(dir / "a.nc");
  data::SuperResolutionOptions options = options_for(dir / "a.nc");
  options.flips = true;
  options.coordinate_channels = true;
  const data::SuperResolution set(options);
  CHECK(set.input_shape(3) == Shape{3, 3, 4, 2});
  CHECK_FALSE(set.masked());
  const Layout input = Layout::replicated(Mesh::self(), set.input_shape(40));
  const Layout target = set.fine_layout(input);
  CHECK(target.shape() == Shape{40, 12, 16, 1});
  const data::SuperResolutionBatch batch = set.batch(100, input, target, DType::kFloat64);
  CHECK_FALSE(batch.mask.defined());
  const auto [mean, std, missing] = set.normalization();
  int mirrored = 0;
  for (std::int64_t n = 0; n < 40; ++n) {
    const auto crop = set.crop(100 + n);
    const auto value = [&](std::int64_t i, std::int64_t j) {
      const std::int64_t row = crop.mirrored[0] ? crop.window.hi[0] - 1 - i : crop.window.lo[0] + i;
      const std::int64_t column =
          crop.mirrored[1] ? crop.window.hi[1] - 1 - j : crop.window.lo[1] + j;
      return field_value(row, column % 48);
    };
    mirrored += crop.mirrored[0] + crop.mirrored[1];
    CHECK(crop.window.lo[0] % 4 == 0);
    CHECK(crop.window.lo[1] % 4 == 0);
    for (std::int64_t i = 0; i < 12; ++i)
      for (std::int64_t j = 0; j < 16; ++j)
        REQUIRE(batch.target.at({n, i, j, 0}) == Approx((value(i, j) - mean) / std).margin(1e-12));
    for (std::int64_t i = 0; i < 3; ++i)
      for (std::int64_t j = 0; j < 4; ++j) {
        double sum = 0;
        for (std::int64_t a = 0; a < 4; ++a)
          for (std::int64_t b = 0; b < 4; ++b) sum += value(4 * i + a, 4 * j + b);
        REQUIRE(batch.input.at({n, i, j, 0}) == Approx((sum / 16 - mean) / std).margin(1e-12));
        // Latitudes descend from 86.5 by 180/26: the middle of a block of rows.
        const std::int64_t row =
            crop.mirrored[0] ? crop.window.hi[0] - 4 * i - 4 : crop.window.lo[0] + 4 * i;
        REQUIRE(batch.input.at({n, i, j, 1}) ==
                Approx(1 - 2 * (static_cast<double>(row) + 1.5) / 23).margin(1e-12));
      }
  }
  CHECK(mirrored > 20);
  CHECK(mirrored < 60);
}

TEST_CASE("training crops cover all places but the held-out part") {
  const TempDir dir;
  make_file(dir / "a.nc", {.first_longitude = -180});
  const data::SuperResolution set(options_for(dir / "a.nc"));
  // Columns 32..44 are held out; coarse 8..11 of 12. Starts 11, 0, 1, 2, 3, 4 leave room for 4
  // columns.
  CHECK(set.holdout() == Box({0, 8}, {6, 11}));
  CHECK(set.crops() == 4 * 6);
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  for (std::int64_t sample = 0; sample < 1000; ++sample) {
    const auto crop = set.crop(sample);
    seen.insert({crop.window.lo[0], crop.window.lo[1]});
    for (std::int64_t j = crop.window.lo[1]; j < crop.window.hi[1]; ++j)
      REQUIRE((j % 48 < 32 || j % 48 >= 44));
  }
  CHECK(seen.size() == 24);
  data::SuperResolutionOptions other = options_for(dir / "a.nc");
  other.seed = 6;
  const data::SuperResolution set2(other);
  int equal = 0;
  for (std::int64_t sample = 0; sample < 100; ++sample)
    equal += set.crop(sample).window == set2.crop(sample).window;
  CHECK(equal < 20);
}

TEST_CASE("what is held out leaves no trace in training") {
  const TempDir dir;
  make_file(dir / "a.nc");
  make_file(dir / "b.nc", {.held_out_change = 12345});
  const data::SuperResolution a(options_for(dir / "a.nc")), b(options_for(dir / "b.nc"));
  CHECK(a.normalization().mean == b.normalization().mean);
  CHECK(a.normalization().std == b.normalization().std);
  const Layout input = Layout::replicated(Mesh::self(), a.input_shape(200));
  const auto x = a.batch(0, input, a.fine_layout(input)),
             y = b.batch(0, input, b.fine_layout(input));
  CHECK(parts_of(x.input) == parts_of(y.input));
  CHECK(parts_of(x.target) == parts_of(y.target));
  // The other way round: the held-out part itself shows the change.
  const Box part = a.holdout();
  const Layout whole = Layout::replicated(Mesh::self(), {1, part[0].size(), part[1].size(), 1});
  const auto u = a.window(part, whole, a.fine_layout(whole)),
             v = b.window(part, whole, b.fine_layout(whole));
  for (const auto& [index, value] : parts_of(u.target)) {
    const double change =
        (v.target.at({index[0], index[1], index[2], index[3]}) - value) * a.normalization().std;
    REQUIRE(change == Approx(12345).epsilon(1e-4));
  }
}

TEST_CASE("the normalisation is that of the training part, on any number of ranks") {
  const TempDir dir;
  make_file(dir / "a.nc", {.missing = true});
  data::SuperResolutionOptions options = options_for(dir / "a.nc");
  const data::SuperResolution set(options);
  double sum = 0, squares = 0, count = 0;
  for (std::int64_t i = 0; i < 24; ++i)
    for (std::int64_t j = 0; j < 48; ++j) {
      if ((i / 2 + j / 3) % 5 == 0 || (j >= 8 && j < 20)) continue;
      sum += field_value(i, j);
      squares += field_value(i, j) * field_value(i, j);
      ++count;
    }
  CHECK(set.masked());
  CHECK(set.normalization().mean == Approx(sum / count));
  CHECK(set.normalization().std == Approx(std::sqrt(squares / count - sum / count * sum / count)));
  const auto errors = test::run_as_ranks(3, [&](const io::Collective& ranks) {
    const data::SuperResolution shared(options, ranks);
    if (shared.normalization().mean != set.normalization().mean ||
        shared.normalization().std != set.normalization().std)
      throw IoError("differs");
  });
  CHECK(errors == std::vector<std::string>(3));
  options.normalization = data::Normalization{1, 2, true};
  CHECK(data::SuperResolution(options).normalization().std == 2);
}

TEST_CASE("masked points are zero in input and target") {
  const TempDir dir;
  make_file(dir / "a.nc", {.missing = true});
  const data::SuperResolution set(options_for(dir / "a.nc"));
  const Layout input = Layout::replicated(Mesh::self(), set.input_shape(5));
  const auto batch = set.batch(0, input, set.fine_layout(input), DType::kFloat64);
  for (std::int64_t n = 0; n < 5; ++n) {
    const Box window = set.crop(n).window;
    for (std::int64_t i = 0; i < 12; ++i)
      for (std::int64_t j = 0; j < 16; ++j) {
        const std::int64_t row = window.lo[0] + i, column = (window.lo[1] + j) % 48;
        const bool gone = (row / 2 + column / 3) % 5 == 0;
        REQUIRE(batch.mask.at({n, i, j, 0}) == (gone ? 0 : 1));
        if (gone) REQUIRE(batch.target.at({n, i, j, 0}) == 0);
      }
  }
}

TEST_CASE("every mesh sees the same data, and a rank reads no more than its part") {
  const TempDir dir;
  make_file(dir / "a.nc");
  data::SuperResolutionOptions options = options_for(dir / "a.nc");
  options.flips = true;
  options.normalization = data::Normalization{10, 100};
  const std::int64_t samples = 5, first = 77;
  std::map<std::vector<std::int64_t>, double> input_values, target_values;
  {
    const data::SuperResolution set(options);
    const Layout input = Layout::replicated(Mesh::self(), set.input_shape(samples));
    const auto batch = set.batch(first, input, set.fine_layout(input));
    input_values = parts_of(batch.input);
    target_values = parts_of(batch.target);
  }
  struct Case {
    std::vector<MeshAxis> axes;
    std::vector<DimSplit> splits;
  };
  const std::vector<Case> cases = {
      {{{"h", 3}}, {{}, {{0}, {0, 1, 2, 3}}, {}, {}}},
      {{{"h", 2}}, {{}, {{0}, {0, 3, 3}}, {}, {}}},
      {{{"data", 2}, {"w", 3}}, {{{0}, {0, 2, 5}}, {}, {{1}, {0, 0, 3, 4}}, {}}},
      {{{"h", 2}, {"w", 2}}, {{}, {{0}, {0, 1, 3}}, {{1}, {0, 3, 4}}, {}}},
  };
  for (const Case& c : cases) {
    int ranks = 1;
    for (const MeshAxis& axis : c.axes) ranks *= axis.size;
    std::map<std::vector<std::int64_t>, double> inputs, targets;
    as_each_rank(ranks, [&] {
      const data::SuperResolution set(options);
      const std::int64_t before = set.field().bytes_read();
      const Layout input = Layout::make(Mesh::world(c.axes), set.input_shape(samples), c.splits);
      const Layout target = set.fine_layout(input);
      const auto batch = set.batch(first, input, target);
      inputs.merge(parts_of(batch.input));
      targets.merge(parts_of(batch.target));
      CHECK(set.field().bytes_read() - before == batch.target.local_shape().product() * 4);
    });
    CHECK(inputs == input_values);
    CHECK(targets == target_values);
  }
  // Input and target split differently.
  std::map<std::vector<std::int64_t>, double> inputs, targets;
  as_each_rank(2, [&] {
    const data::SuperResolution set(options);
    const Mesh mesh = Mesh::world({{"h", 2}});
    const Layout input =
        Layout::make(mesh, set.input_shape(samples), {{}, {{0}, {0, 1, 3}}, {}, {}});
    const Layout target = Layout::make(mesh, {samples, 12, 16, 1}, {{}, {}, {{0}, {0, 5, 16}}, {}});
    const auto batch = set.batch(first, input, target);
    inputs.merge(parts_of(batch.input));
    targets.merge(parts_of(batch.target));
  });
  CHECK(inputs == input_values);
  CHECK(targets == target_values);
}

TEST_CASE("fields in three dimensions, with a leading time") {
  const TempDir dir;
  const Shape shape{3, 6, 8, 4};
  std::vector<double> t(static_cast<std::size_t>(shape.product()));
  for (std::size_t i = 0; i < t.size(); ++i) t[i] = static_cast<double>(i * i % 101);
  {
    io::NetcdfWriter writer(dir / "a.nc", {{"time", 3}, {"z", 6}, {"y", 8}, {"x", 4}},
                            {{"t", {"time", "z", "y", "x"}, DType::kFloat64}});
    writer.write_box("t", Box::whole(shape), View::dense(t.data(), DType::kFloat64, shape));
    writer.commit();
  }
  data::SuperResolutionOptions options;
  options.field = {.path = dir / "a.nc", .domain_dims = 3, .periodic = {"x", "y"}};
  options.factor = 2;
  options.crop = {4, 4, 2};
  options.normalization = data::Normalization{};
  const data::SuperResolution set(options);
  CHECK(set.field().fields() == 3);
  CHECK(set.crops() == 3 * 2 * 4 * 2);
  const Layout input = Layout::replicated(Mesh::self(), set.input_shape(20));
  const auto batch = set.batch(0, input, set.fine_layout(input), DType::kFloat64);
  for (std::int64_t n = 0; n < 20; ++n) {
    const auto crop = set.crop(n);
    for_each_index(Box::whole({4, 4, 2}), [&](const Index& i) {
      const std::int64_t z = crop.window.lo[0] + i[0], y = (crop.window.lo[1] + i[1]) % 8,
                         x = (crop.window.lo[2] + i[2]) % 4;
      REQUIRE(batch.target.at({n, i[0], i[1], i[2], 0}) ==
              t[static_cast<std::size_t>(((crop.field * 6 + z) * 8 + y) * 4 + x)]);
    });
  }
}

TEST_CASE("options that do not fit the field are refused") {
  const TempDir dir;
  make_file(dir / "a.nc");
  const auto refused = [&](const std::function<void(data::SuperResolutionOptions&)>& change,
                           const std::string& why) {
    data::SuperResolutionOptions options = options_for(dir / "a.nc");
    change(options);
    CHECK_THROWS_WITH(data::SuperResolution(options), Catch::Contains(why));
    CHECK_THROWS_AS(data::SuperResolution(options), UsageError);
  };
  refused([](auto& o) { o.factor = 0; }, "factor 0");
  refused(
      [](auto& o) {
        o.factor = 5;
        o.crop = {10, 10};
      },
      "not a multiple of 5");
  refused([](auto& o) { o.crop = {12}; }, "2 dimensions");
  refused([](auto& o) { o.crop = {12, 18}; }, "multiple of 4");
  refused([](auto& o) { o.crop = {28, 16}; }, "not larger");
  refused([](auto& o) { o.crop = {12, 40}; }, "avoids the held-out part");
  refused([](auto& o) { o.holdout_dim = "longitude"; }, "no dimension");
  refused(
      [](auto& o) {
        o.holdout_lo = 1;
        o.holdout_hi = 2;
      },
      "no point");
  const data::SuperResolution set(options_for(dir / "a.nc"));
  const Layout input = Layout::replicated(Mesh::self(), set.input_shape(2));
  CHECK_THROWS_AS(set.batch(0, set.fine_layout(input), input), ShapeError);
  CHECK_THROWS_AS(set.batch(0, input, input), ShapeError);
  CHECK_THROWS_AS(set.window(Box({0, 0}, {7, 3}), Layout::replicated(Mesh::self(), {1, 7, 3, 1}),
                             Layout::replicated(Mesh::self(), {1, 28, 12, 1})),
                  ShapeError);
}
