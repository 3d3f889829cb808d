// ranks: none
#include <tessera/nn/io/field_reader.hpp>

#include "program.hpp"

// Fields that commands write, as NetCDF and as Zarr.
namespace tessera::test {
namespace {

std::vector<double> values_of(const io::FieldReader& file, const std::string& variable) {
  const Shape& shape = file.variable(variable).shape;
  std::vector<double> values(static_cast<std::size_t>(shape.product()));
  file.read(variable, Box::whole(shape), View::dense(values.data(), DType::kFloat64, shape));
  return values;
}

void check_same(const std::string& a, const std::string& b, const std::string& variable) {
  const auto x = io::open_fields(a), y = io::open_fields(b);
  CHECK(x->variable(variable).shape == y->variable(variable).shape);
  CHECK(x->variable(variable).dims == y->variable(variable).dims);
  CHECK(values_of(*x, variable) == values_of(*y, variable));
  for (const std::string& dim : x->variable(variable).dims)
    CHECK(x->coordinates(dim) == y->coordinates(dim));
}

}  // namespace

TEST_CASE("generate and predict write Zarr stores that hold what their NetCDF files do") {
  const TemporaryFolder at;
  const Words solver = {"generate", "gray_scott", "--size",     "9,8,10", "--samples", "2",
                        "--frames", "3",          "--interval", "3",      "--out"};
  for (const std::string name : {"a.nc", "a.zarr"}) {
    Words words = solver;
    words.push_back(at / name);
    const Outcome o = tessera(at, 3, words);
    INFO(o.output);
    REQUIRE(o.code == 0);
  }
  check_same(at / "a.nc", at / "a.zarr", "u");

  REQUIRE(tessera(at, 1, train(at, "run", {"--steps", "2"})).code == 0);
  for (const std::string name : {"b.nc", "b.zarr"}) {
    const Outcome o =
        tessera(at, 2, {"predict", at / "run", "--output", at / name, "--tile", "64"});
    INFO(o.output);
    REQUIRE(o.code == 0);
    CHECK(std::filesystem::exists(at / "b.png"));
    std::filesystem::remove(at / "b.png");
  }
  check_same(at / "b.nc", at / "b.zarr", "relief");
  for (const std::string& name : at.list()) CHECK(name.find(".tmp-") == std::string::npos);
}

}  // namespace tessera::test
