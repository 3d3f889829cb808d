// ranks: 1
#include <netcdf.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/io/netcdf.hpp>

#include "io_support.hpp"

using namespace tessera;
using tessera::test::TempDir;

namespace {

void ok(int status) {
  INFO(nc_strerror(status));
  REQUIRE(status == NC_NOERR);
}

// Makes files with the library itself, so that the reader is checked against something else than
// the writer.
class Maker {
 public:
  Maker(const std::string& path, int mode = NC_CLOBBER) {
    ok(nc_create(path.c_str(), mode, &file));
  }
  ~Maker() { nc_close(file); }
  int dim(const char* name, std::size_t size) {
    int id = 0;
    ok(nc_def_dim(file, name, size, &id));
    return id;
  }
  int var(const char* name, nc_type type, std::vector<int> dims) {
    int id = 0;
    ok(nc_def_var(file, name, type, static_cast<int>(dims.size()), dims.data(), &id));
    return id;
  }
  void number(int v, const char* name, nc_type type, std::vector<double> x) {
    ok(nc_put_att_double(file, v, name, type, x.size(), x.data()));
  }
  void text(int v, const char* name, const std::string& x) {
    ok(nc_put_att_text(file, v, name, x.size(), x.data()));
  }
  void end() { ok(nc_enddef(file)); }
  int file = 0;
};

View view_of(std::vector<double>& values, const Shape& shape) {
  values.resize(static_cast<std::size_t>(shape.product()));
  return View::dense(values.data(), DType::kFloat64, shape);
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace

TEST_CASE("packed integers, several missing values, boxes with steps") {
  const TempDir dir;
  const Shape shape{5, 6, 7};
  std::mt19937_64 random(3);
  const auto below = [&](std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random);
  };
  std::vector<short> raw(5 * 6 * 7);
  for (short& x : raw) x = static_cast<short>(below(12) - 3);
  for (const int mode : {NC_CLOBBER, NC_CLOBBER | NC_NETCDF4}) {
    {
      Maker make(dir / "a.nc", mode);
      const std::vector<int> dims = {make.dim("time", 5), make.dim("lat", 6), make.dim("lon", 7)};
      const int v = make.var("t", NC_SHORT, dims);
      make.number(v, "scale_factor", NC_DOUBLE, {0.25});
      make.number(v, "add_offset", NC_DOUBLE, {10});
      make.number(v, "_FillValue", NC_SHORT, {-3});
      make.number(v, "missing_value", NC_SHORT, {0, 7});
      make.number(v, "valid_range", NC_SHORT, {-1, 8});
      make.text(v, "units", "K");
      if (mode & NC_NETCDF4) {
        const std::size_t chunk[] = {2, 3, 4};
        ok(nc_def_var_chunking(make.file, v, NC_CHUNKED, chunk));
        ok(nc_def_var_deflate(make.file, v, 1, 1, 2));
      }
      make.end();
      ok(nc_put_var_short(make.file, v, raw.data()));
    }
    const io::NetcdfReader reader(dir / "a.nc");
    CHECK(reader.variable("t").dims == std::vector<std::string>{"time", "lat", "lon"});
    CHECK(reader.variable("t").shape == shape);
    CHECK(std::get<std::string>(reader.variable("t").attributes.at("units")) == "K");
    for (int repeat = 0; repeat < 100; ++repeat) {
      Box box = Box::whole(shape);
      Dims step;
      Shape part;
      for (int d = 0; d < 3; ++d) {
        const std::int64_t a = below(shape[d] + 1), b = below(shape[d] + 1);
        box.set(d, {std::min(a, b), std::max(a, b)});
        step.push_back(1 + below(3));
        part.push_back((box[d].size() + step[d] - 1) / step[d]);
      }
      std::vector<double> values, mask_free(static_cast<std::size_t>(part.product()));
      std::vector<std::uint8_t> mask(static_cast<std::size_t>(part.product()) + 1, 9);
      const double missing = repeat % 2 ? -1e9 : NAN;
      reader.read("t", box, view_of(values, part),
                  {.step = step,
                   .missing = missing,
                   .mask = View::dense(mask.data(), DType::kUInt8, part)});
      std::size_t at = 0;
      for (std::int64_t i = box.lo[0]; i < box.hi[0]; i += step[0])
        for (std::int64_t j = box.lo[1]; j < box.hi[1]; j += step[1])
          for (std::int64_t k = box.lo[2]; k < box.hi[2]; k += step[2], ++at) {
            if (part.product() == 0) continue;
            const int r = raw[static_cast<std::size_t>((i * 6 + j) * 7 + k)];
            const bool valid = r != -3 && r != 0 && r != 7 && r >= -1 && r <= 8;
            REQUIRE(mask[at] == (valid ? 1 : 0));
            REQUIRE(same(values[at], valid ? r * 0.25 + 10 : missing));
          }
      CHECK(mask.back() == 9);
    }
  }
}

TEST_CASE("types and their traps") {
  const TempDir dir;
  {
    Maker make(dir / "a.nc");
    const int x = make.dim("x", 3);
    const int bytes = make.var("bytes", NC_BYTE, {x});
    make.text(bytes, "_Unsigned", "true");
    make.number(bytes, "missing_value", NC_BYTE, {-2});  // 254
    const int single = make.var("single", NC_FLOAT, {x});
    make.number(single, "missing_value", NC_DOUBLE,
                {-9.99e33, 0.1});  // 0.1 differs in float and double
    const int standard = make.var("standard", NC_FLOAT, {x});
    const int unpacked = make.var("unpacked", NC_SHORT, {x});
    make.number(unpacked, "scale_factor", NC_FLOAT, {0.5});
    make.number(unpacked, "valid_max", NC_FLOAT, {2.0});
    const int coordinate = make.var("x", NC_DOUBLE, {x});
    const int letters = make.var("letters", NC_CHAR, {x});
    const int scalar = make.var("scalar", NC_INT, {});
    make.text(NC_GLOBAL, "title", "traps");
    make.end();
    const signed char b[] = {-1, -2, 5};
    ok(nc_put_var_schar(make.file, bytes, b));
    const float f[] = {-9.99e33f, 0.1f, 0.25f};
    ok(nc_put_var_float(make.file, single, f));
    const float g[] = {NC_FILL_FLOAT, NAN, 1.0f};
    ok(nc_put_var_float(make.file, standard, g));
    const short s[] = {4, 5, -30000};
    ok(nc_put_var_short(make.file, unpacked, s));
    const double c[] = {1.5, 2.5, 3.5};
    ok(nc_put_var_double(make.file, coordinate, c));
    ok(nc_put_var_text(make.file, letters, "abc"));
    const int n = 77;
    ok(nc_put_var_int(make.file, scalar, &n));
  }
  const io::NetcdfReader reader(dir / "a.nc");
  const auto read = [&](const char* name) {
    std::vector<double> values;
    reader.read(name, Box({0}, {3}), view_of(values, {3}));
    return values;
  };
  CHECK(read("bytes")[0] == 255);
  CHECK(std::isnan(read("bytes")[1]));
  CHECK(std::isnan(read("single")[0]));
  CHECK(std::isnan(read("single")[1]));
  CHECK(read("single")[2] == 0.25);
  CHECK(std::isnan(read("standard")[0]));
  CHECK(std::isnan(read("standard")[1]));
  CHECK(read("standard")[2] == 1);
  CHECK(read("unpacked")[0] == 2);
  CHECK(std::isnan(read("unpacked")[1]));
  CHECK(read("unpacked")[2] == -15000);
  CHECK(reader.coordinates("x") == std::vector<double>{1.5, 2.5, 3.5});
  CHECK(reader.coordinates("y").empty());
  CHECK(std::get<std::string>(reader.attributes().at("title")) == "traps");
  std::vector<double> one;
  reader.read("scalar", Box({}, {}), view_of(one, {}));
  CHECK(one[0] == 77);
  CHECK_FALSE(reader.variable("letters").numeric);
  CHECK_THROWS_AS(read("letters"), IoError);
  CHECK_THROWS_WITH(read("bites"), Catch::Contains("Did you mean \"bytes\"?"));
  CHECK_THROWS_AS(reader.read("x", Box({0}, {4}), view_of(one, {4})), ShapeError);
  CHECK_THROWS_AS(reader.read("x", Box({0}, {3}), view_of(one, {2})), ShapeError);
  CHECK_THROWS_AS(reader.read("x", Box({0}, {3}), view_of(one, {3}), {.step = {0}}), ShapeError);
}

TEST_CASE("the bytes of a hyperslab are what is read, and strided views are filled") {
  const TempDir dir;
  {
    Maker make(dir / "a.nc");
    const int v = make.var("z", NC_SHORT, {make.dim("y", 700), make.dim("x", 1000)});
    make.end();
    std::vector<short> z(700'000);
    for (std::size_t i = 0; i < z.size(); ++i) z[i] = static_cast<short>(i % 30'000);
    ok(nc_put_var_short(make.file, v, z.data()));
  }
  const io::NetcdfReader reader(dir / "a.nc");
  std::vector<float> out(2 * 3 * 600 * 900, -1.0f);
  // Every second column of every third row of a larger array.
  const View view{out.data(), DType::kFloat32, {600, 900}, {3 * 2 * 900, 2}};
  reader.read("z", Box({50, 60}, {650, 960}), view);
  CHECK(reader.bytes_read() == 600 * 900 * 2);
  int wrong = 0;
  for (std::int64_t i = 0; i < 600; ++i)
    for (std::int64_t j = 0; j < 900; ++j) {
      const auto expected = static_cast<float>(((i + 50) * 1000 + j + 60) % 30'000);
      if (out[static_cast<std::size_t>(i * 5400 + j * 2)] != expected) ++wrong;
      if (out[static_cast<std::size_t>(i * 5400 + j * 2 + 1)] != -1) ++wrong;
    }
  CHECK(wrong == 0);
}

TEST_CASE("ranks write their parts in turn") {
  const TempDir dir;
  test::write_file(dir / "a.nc", "old");
  const auto f = [](std::int64_t i, std::int64_t j) {
    return i == 2 && j == 1 ? NAN : static_cast<double>(i) + 0.5 * static_cast<double>(j);
  };
  const auto errors = test::run_as_ranks(3, [&](const io::Collective& ranks) {
    io::NetcdfWriter writer(
        dir / "a.nc", {{"lat", 5, {-2, -1, 0, 1, 2}, {{"units", "degrees_north"}}}, {"lon", 3}},
        {{"z",
          {"lat", "lon"},
          DType::kFloat32,
          {{"units", "m"}, {"levels", std::vector<double>{1, 2}}},
          -999.0},
         {"n", {"lon"}, DType::kInt64}},
        {{"title", "parts"}}, ranks);
    const Bounds bounds = {0, 2, 2, 5};
    const std::int64_t lo = bounds[static_cast<std::size_t>(ranks.rank)];
    const std::int64_t hi = bounds[static_cast<std::size_t>(ranks.rank) + 1];
    std::vector<double> mine;
    for (std::int64_t i = lo; i < hi; ++i)
      for (std::int64_t j = 0; j < 3; ++j) mine.push_back(f(i, j));
    mine.push_back(0);
    writer.write_box("z", Box({lo, 0}, {hi, 3}),
                     View::dense(mine.data(), DType::kFloat64, {hi - lo, 3}));
    std::int64_t n = 1LL << 50;
    const std::int64_t r = ranks.rank;
    writer.write_box("n", Box({r}, {r + 1}), View::dense(&n, DType::kInt64, {1}));
    if (ranks.rank == 0) CHECK(test::read_file(dir / "a.nc") == "old");
    writer.commit();
  });
  CHECK(errors == std::vector<std::string>(3));
  CHECK(dir.list() == std::vector<std::string>{"a.nc"});
  const io::NetcdfReader reader(dir / "a.nc");
  std::vector<double> z, n;
  reader.read("z", Box({0, 0}, {5, 3}), view_of(z, {5, 3}));
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j < 3; ++j)
      CHECK(same(z[static_cast<std::size_t>(i * 3 + j)], f(i, j)));
  reader.read("n", Box({0}, {3}), view_of(n, {3}));
  CHECK(n == std::vector<double>(3, std::ldexp(1.0, 50)));
  CHECK(reader.coordinates("lat") == std::vector<double>{-2, -1, 0, 1, 2});
  CHECK(std::get<std::vector<double>>(reader.variable("z").attributes.at("levels")) ==
        std::vector<double>{1, 2});
  CHECK(std::get<std::vector<double>>(reader.variable("z").attributes.at("_FillValue")) ==
        std::vector<double>{-999});
  CHECK(std::get<std::string>(reader.variable("lat").attributes.at("units")) == "degrees_north");
}

TEST_CASE("an incomplete NetCDF file never appears") {
  const TempDir dir;
  double x = 1;
  const View one = View::dense(&x, DType::kFloat64, {1});
  SECTION("a part is missing") {
    io::NetcdfWriter writer(dir / "a.nc", {{"x", 2}}, {{"v", {"x"}}});
    writer.write_box("v", Box({0}, {1}), one);
    CHECK_THROWS_WITH(writer.commit(), Catch::Contains("1 of 2 points"));
  }
  SECTION("wrong use") {
    CHECK_THROWS_AS(io::NetcdfWriter(dir / "a.nc", {{"x", 2}}, {{"v", {"y"}}}), UsageError);
    CHECK_THROWS_AS(io::NetcdfWriter(dir / "a.nc", {{"x", 2, {1.0}}}, {{"v", {"x"}}}), UsageError);
    io::NetcdfWriter writer(dir / "a.nc", {{"x", 2}}, {{"v", {"x"}, DType::kInt32}});
    CHECK_THROWS_AS(writer.write_box("w", Box({0}, {1}), one), UsageError);
    CHECK_THROWS_AS(writer.write_box("v", Box({0}, {1}), one), DTypeError);
    std::int32_t n = 1;
    const View whole = View::dense(&n, DType::kInt32, {1});
    CHECK_THROWS_AS(writer.write_box("v", Box({2}, {3}), whole), ShapeError);
  }
  SECTION("no such directory") {
    CHECK_THROWS_AS(io::NetcdfWriter(dir / "none/a.nc", {{"x", 2}}, {{"v", {"x"}}}), IoError);
  }
  CHECK(dir.list().empty());
}

TEST_CASE("a file that was cut off is refused, wherever the cut is") {
  const TempDir dir;
  // The writer's three forms: 64-bit offsets, 64-bit data for bytes and long integers.
  for (const DType type : {DType::kFloat32, DType::kUInt8, DType::kInt64}) {
    io::NetcdfWriter writer(dir / "a.nc",
                            {{.name = "y", .size = 5, .coordinates = {1, 2, 3, 4, 5}}, {"x", 3}},
                            {{.name = "v", .dims = {"y", "x"}, .dtype = type},
                             {.name = "w", .dims = {"x"}, .dtype = DType::kInt32}},
                            {{"title", std::string("odd")}});
    std::vector<std::int32_t> values(15, 1);
    writer.write_box("v", Box::whole({5, 3}), View::dense(values.data(), DType::kInt32, {5, 3}));
    writer.write_box("w", Box::whole({3}), View::dense(values.data(), DType::kInt32, {3}));
    writer.commit();
    const std::string good = test::read_file(dir / "a.nc");
    CHECK_NOTHROW(io::NetcdfReader(dir / "a.nc"));
    // A new file each time: overwriting one waits for the disk.
    const auto put = [&](const std::string& content) {
      std::filesystem::remove(dir / "b.nc");
      test::write_file(dir / "b.nc", content);
    };
    for (std::size_t size = 0; size < good.size(); ++size) {
      put(good.substr(0, size));
      INFO(size << " of " << good.size() << " bytes");
      CHECK_THROWS_AS(io::NetcdfReader(dir / "b.nc"), DataError);
    }
    // What follows the data does not matter.
    put(good + "xyz");
    CHECK_NOTHROW(io::NetcdfReader(dir / "b.nc"));
    // Damage in the header is an error or goes unnoticed, but never worse.
    for (std::size_t at = 4; at < good.size(); ++at) {
      for (const int bit : {0, 3, 7}) {
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
        put(bad);
        try {
          io::NetcdfReader(dir / "b.nc");
        } catch (const IoError&) {
        }
      }
    }
  }
}

TEST_CASE("a file of records") {
  // x(2), t unlimited with 3 records of a(t) short and b(t, x) float, written by hand.
  const TempDir dir;
  const auto number = [](std::uint32_t v) {
    return std::string{static_cast<char>(v >> 24), static_cast<char>(v >> 16),
                       static_cast<char>(v >> 8), static_cast<char>(v)};
  };
  const auto name = [&](const std::string& text) {
    return number(static_cast<std::uint32_t>(text.size())) + text +
           std::string((4 - text.size() % 4) % 4, '\0');
  };
  const std::string none = number(0) + number(0);
  std::string header = std::string("CDF\1", 4) + number(3) + number(10) + number(2) + name("t") +
                       number(0) + name("x") + number(2) + none + number(11) + number(2);
  const std::uint32_t begin = static_cast<std::uint32_t>(header.size()) + 40 + 44;
  header += name("a") + number(1) + number(0) + none + number(3) + number(4) + number(begin);
  header += name("b") + number(2) + number(0) + number(1) + none + number(5) + number(8) +
            number(begin + 4);
  REQUIRE(header.size() <= begin);
  const std::string good = header + std::string(begin - header.size() + 3 * 12, '\0');
  test::write_file(dir / "a.nc", good);
  CHECK(io::NetcdfReader(dir / "a.nc").variable("b").shape == Shape{3, 2});
  test::write_file(dir / "a.nc", good.substr(0, good.size() - 1));
  CHECK_THROWS_WITH(io::NetcdfReader(dir / "a.nc"), Catch::Contains("cut off"));
}

TEST_CASE("files that are not NetCDF") {
  const TempDir dir;
  test::write_file(dir / "a.nc", "hello");
  CHECK_THROWS_WITH(io::NetcdfReader(dir / "a.nc"), Catch::Contains("cannot be opened as NetCDF"));
  CHECK_THROWS_AS(io::NetcdfReader(dir / "b.nc"), IoError);
}
