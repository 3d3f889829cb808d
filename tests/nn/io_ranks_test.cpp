// ranks: 1 2 3
#include <catch2/catch.hpp>
#include <cmath>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/data/super_resolution.hpp>
#include <tessera/nn/io/netcdf.hpp>
#include <tessera/nn/io/safetensors.hpp>

#include "shared_dir.hpp"

using namespace tessera;

namespace {

double value(const Index& i) { return static_cast<double>(i[0] * 1000 + i[1] * 10 + i[2]) + 0.25; }

}  // namespace

TEST_CASE("tensors in any layout go to one file and come back in another") {
  const Mesh mesh = Mesh::world({{"h", process().count}});
  const io::Collective ranks = nn::collective(mesh);
  const test::SharedDir dir(ranks);
  const Shape shape{3, 7, 4};
  const Layout rows = Placement(mesh).domain(0, "h").resolve(shape);
  const Layout samples = Placement(mesh).batch("h").resolve(shape);
  const Layout whole = Layout::replicated(mesh, shape);
  io::SafetensorsWriter writer(
      dir / "a", {{"rows", DType::kFloat64, shape}, {"whole", DType::kFloat32, shape}},
      {{"ranks", std::to_string(ranks.size)}}, ranks);
  writer.write("rows", Tensor::from_function(rows, value, DType::kFloat64));
  writer.write("whole", Tensor::from_function(whole, value, DType::kFloat64));
  writer.commit();

  const io::SafetensorsReader reader(dir / "a");
  for (const Layout& layout : {rows, samples, whole}) {
    for (const char* name : {"rows", "whole"}) {
      const Tensor t = reader.read(name, layout, DType::kFloat64);
      int wrong = 0;
      for_each_index(t.local_box(), [&](const Index& i) { wrong += t.at(i) != value(i); });
      CHECK(wrong == 0);
    }
  }
  CHECK_THROWS_AS(reader.read("rows", Layout::replicated(mesh, {3, 7})), ShapeError);
  if (process().count > 1)
    CHECK_THROWS_AS(reader.read("rows", whole.with_partial(mesh.all_axes())), LayoutError);
}

TEST_CASE("ranks share the reading of the normalisation and each reads its part of a batch") {
  const Mesh mesh = Mesh::world({{"w", process().count}});
  const io::Collective ranks = nn::collective(mesh);
  const test::SharedDir dir(ranks);
  const Shape shape{12, 24};
  const auto field = [](std::int64_t i, std::int64_t j) {
    return static_cast<double>(i * i + 3 * j % 11);
  };
  {
    io::NetcdfWriter writer(dir / "a.nc", {{"y", 12}, {"x", 24}},
                            {{"z", {"y", "x"}, DType::kFloat64}}, {}, ranks);
    const Bounds bounds = balanced_bounds(12, ranks.size);
    const Interval mine{bounds[static_cast<std::size_t>(ranks.rank)],
                        bounds[static_cast<std::size_t>(ranks.rank) + 1]};
    std::vector<double> part;
    for (std::int64_t i = mine.lo; i < mine.hi; ++i)
      for (std::int64_t j = 0; j < 24; ++j) part.push_back(field(i, j));
    writer.write_box("z", Box({mine.lo, 0}, {mine.hi, 24}),
                     View::dense(part.data(), DType::kFloat64, {mine.size(), 24}));
    writer.commit();
  }
  data::SuperResolutionOptions options;
  options.field.path = dir / "a.nc";
  options.field.periodic = {"x"};
  options.factor = 2;
  options.crop = {8, 14};
  const data::SuperResolution shared(options, ranks), alone(options);
  CHECK(shared.normalization().mean == alone.normalization().mean);
  CHECK(shared.normalization().std == alone.normalization().std);
  const Layout input = Placement(mesh).domain(1, "w").resolve(shared.input_shape(6));
  const std::int64_t before = shared.field().bytes_read();
  const auto batch = shared.batch(3, input, shared.fine_layout(input), DType::kFloat64);
  CHECK(shared.field().bytes_read() - before == batch.target.local_shape().product() * 8);
  int wrong = 0;
  for_each_index(batch.target.local_box(), [&](const Index& i) {
    const Box window = shared.crop(3 + i[0]).window;
    const double expected = field(window.lo[0] + i[1], (window.lo[1] + i[2]) % 24);
    const double got =
        batch.target.at(i) * shared.normalization().std + shared.normalization().mean;
    wrong += std::abs(got - expected) > 1e-9;
  });
  CHECK(wrong == 0);
}
