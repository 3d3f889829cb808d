// ranks: 1
// Files of netCDF4, h5py, zarr and NumPy read as those libraries read them: tests/data/formats.py
// makes them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <tessera/nn/io/field_reader.hpp>
#include <tessera/nn/io/nifti.hpp>
#include <tessera/nn/io/raw.hpp>

#include "io_support.hpp"

using namespace tessera;

namespace {

const std::string kFiles = TESSERA_SOURCE_DIR "/tests/data/formats/";

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

struct Expected {
  std::string file;
  std::string variable;
  Shape shape;
  std::vector<double> values;
};

std::vector<Expected> manifest() {
  const std::string bytes = test::read_file(kFiles + "expected.f64");
  std::ifstream lines(kFiles + "manifest.txt");
  std::vector<Expected> result;
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    Expected e;
    std::size_t offset = 0;
    int dims = 0;
    words >> e.file >> e.variable >> offset >> dims;
    for (int d = 0; d < dims; ++d) {
      std::int64_t n = 0;
      words >> n;
      e.shape.push_back(n);
    }
    REQUIRE(words);
    e.values.resize(static_cast<std::size_t>(e.shape.product()));
    REQUIRE((offset + e.values.size()) * 8 <= bytes.size());
    if (!e.values.empty())
      std::memcpy(e.values.data(), bytes.data() + offset * 8, e.values.size() * 8);
    result.push_back(std::move(e));
  }
  REQUIRE(result.size() > 140);
  return result;
}

int differences(const io::FieldReader& reader,
                const Expected& e,
                const Box& box,
                const Dims& step) {
  Shape part;
  for (int d = 0; d < box.dims(); ++d) part.push_back((box[d].size() + step[d] - 1) / step[d]);
  std::vector<double> values(static_cast<std::size_t>(part.product()) + 1, -77.0);
  std::vector<std::uint8_t> mask(values.size(), 9);
  reader.read(e.variable, box, View::dense(values.data(), DType::kFloat64, part),
              {.step = step, .mask = View::dense(mask.data(), DType::kUInt8, part)});
  int wrong = values.back() != -77.0 || mask.back() != 9;
  std::size_t at = 0;
  for_each_index(Box::whole(part), [&](const Index& i) {
    std::int64_t from = 0;
    for (int d = 0; d < box.dims(); ++d) from = from * e.shape[d] + box.lo[d] + i[d] * step[d];
    const double expected = e.values[static_cast<std::size_t>(from)];
    wrong += !same(values[at], expected);
    wrong += mask[at] != (std::isnan(expected) ? 0 : 1);
    ++at;
  });
  return wrong;
}

}  // namespace

TEST_CASE("values are those that the format's own library reads") {
  std::map<std::string, std::unique_ptr<io::FieldReader>> readers;
  std::mt19937_64 random(5);
  const auto below = [&](std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random);
  };
  for (const Expected& e : manifest()) {
    INFO(e.file << " " << e.variable);
    auto& reader = readers[e.file];
    if (!reader) reader = io::open_fields(kFiles + e.file);
    const io::FieldVariable& v = reader->variable(e.variable);
    REQUIRE(v.numeric);
    REQUIRE(v.shape == e.shape);
    REQUIRE(std::ssize(v.dims) == e.shape.size());
    const int dims = e.shape.size();
    CHECK(differences(*reader, e, Box::whole(e.shape), Dims::filled(dims, 1)) == 0);
    for (int repeat = 0; repeat < 20 && e.shape.product() > 0; ++repeat) {
      Box box = Box::whole(e.shape);
      Dims step = Dims::filled(dims, 1);
      for (int d = 0; d < dims; ++d) {
        const std::int64_t a = below(e.shape[d] + 1), b = below(e.shape[d] + 1);
        box.set(d, {std::min(a, b), std::max(a, b)});
        if (repeat % 2 == 1) step[d] = 1 + below(3);
      }
      REQUIRE(differences(*reader, e, box, step) == 0);
    }
  }
}

TEST_CASE("names, attributes and what cannot be read") {
  const auto h5 = io::open_fields(kFiles + "fields.h5");
  CHECK(h5->variable("z").dims == std::vector<std::string>{"time", "lat", "lon"});
  CHECK(h5->variable("time").dims == std::vector<std::string>{"time"});
  CHECK(h5->variable("chunked").dims == std::vector<std::string>{"dim_0", "dim_1", "dim_2"});
  CHECK(h5->coordinates("lat") == std::vector<double>{0, 1.5, 3, 4.5, 6});
  CHECK(std::get<std::string>(h5->variable("z").attributes.at("units")) == "m");
  CHECK(std::get<std::vector<double>>(h5->variable("z").attributes.at("levels")) ==
        std::vector<double>{1, 2});
  CHECK(std::get<std::string>(h5->attributes().at("title")) == "fields");
  CHECK(h5->variable("types/complex64").dims.back() == "complex");
  CHECK(h5->variable("types/bool").type == io::StoredType::kBool);
  CHECK(h5->variable("types/float16_big").type == io::StoredType::kFloat16);
  // Links are not variables; values in other files are not read.
  CHECK_FALSE(h5->contains("soft"));
  CHECK_FALSE(h5->contains("outside"));
  float x = 0;
  for (const char* name : {"external", "text"}) {
    CHECK_FALSE(h5->variable(name).numeric);
    CHECK_THROWS_AS(h5->read(name, Box({}, {}), View::dense(&x, DType::kFloat32, {})), DataError);
  }

  const auto old = io::open_fields(kFiles + "old.zarr");
  CHECK(old->variable("packed").dims == std::vector<std::string>{"time", "lat", "lon"});
  CHECK(old->variable("plain").dims == std::vector<std::string>{"dim_0", "dim_1", "dim_2"});
  CHECK(std::get<std::string>(old->attributes().at("title")) == "format 2");
  const auto array = io::open_fields(kFiles + "old.zarr/inner/holes");  // an array by itself
  CHECK(array->variables().size() == 1);
  CHECK(array->contains("array"));
  const auto inner = io::open_fields(kFiles + "old.zarr/inner/");
  CHECK(inner->contains("holes"));
  const auto current = io::open_fields(kFiles + "new.zarr");
  CHECK(current->variable("sharded").type == io::StoredType::kInt64);
  CHECK(current->variable("gzip").dims == std::vector<std::string>{"time", "lat", "lon"});
  CHECK_THROWS_WITH(current->variable("gzib"), Catch::Contains("Did you mean \"gzip\"?"));
  CHECK_THROWS_AS(current->variable_or_only("", 2), UsageError);
  CHECK(io::open_fields(kFiles + "series_?.nc")->variable_or_only("", 2).name == "v");
}

TEST_CASE("integers come exactly, and only where nothing is lost") {
  const auto file = io::open_fields(kFiles + "stored.npz");
  std::vector<std::int64_t> whole(24);
  const View view = View::dense(whole.data(), DType::kInt64, {3, 4, 2});
  const Box box = Box::whole({3, 4, 2});
  file->read("int64", box, view);
  const std::string bytes = test::read_file(kFiles + "stored.npz");
  CHECK(bytes.find(std::string(reinterpret_cast<const char*>(whole.data()), 24 * 8)) !=
        std::string::npos);
  std::vector<std::int64_t> fortran(24);
  file->read("int64_big", box, View::dense(fortran.data(), DType::kInt64, {3, 4, 2}));
  for (std::int64_t& x : fortran)
    x = static_cast<std::int64_t>(__builtin_bswap64(static_cast<std::uint64_t>(x)));
  CHECK(bytes.find(std::string(reinterpret_cast<const char*>(fortran.data()), 24 * 8)) !=
        std::string::npos);
  CHECK_THROWS_AS(file->read("uint64", box, view), DataError);  // beyond 63 bits
  CHECK_THROWS_AS(file->read("float32", box, view), DTypeError);
  std::vector<std::int32_t> narrow(24);
  CHECK_THROWS_AS(file->read("int64", box, View::dense(narrow.data(), DType::kInt32, {3, 4, 2})),
                  IoError);
  file->read("int16", box, View::dense(narrow.data(), DType::kInt32, {3, 4, 2}));

  // A missing point has a place among integers only when it is said which.
  const auto packed = io::open_fields(kFiles + "packed4.nc");
  std::vector<std::int64_t> small(315);
  const View out = View::dense(small.data(), DType::kInt64, {7, 5, 9});
  CHECK_THROWS_AS(packed->read("packed", Box::whole({7, 5, 9}), out), DTypeError);
  io::RawOptions raw{
      .shape = {3}, .type = "int16", .attributes = {{"missing_value", std::vector<double>{7}}}};
  const test::TempDir dir;
  const std::int16_t stored[] = {5, 7, -1};
  test::write_file(dir / "a.bin", std::string(reinterpret_cast<const char*>(stored), 6));
  const io::RawReader reader(dir / "a.bin", raw);
  const View three = View::dense(small.data(), DType::kInt64, {3});
  CHECK_THROWS_AS(reader.read("array", Box({0}, {3}), three), DataError);
  reader.read("array", Box({0}, {3}), three, {.missing = -9});
  CHECK((small[0] == 5 && small[1] == -9 && small[2] == -1));
}

TEST_CASE("raw files need sizes that fit") {
  const test::TempDir dir;
  test::write_file(dir / "a.raw", std::string(24, '\0'));
  const auto open = [&](const io::RawOptions& o) { io::RawReader(dir / "a.raw", o); };
  CHECK_NOTHROW(open({.shape = {2, 3}}));
  CHECK_THROWS_AS(open({.shape = {2, 3}, .offset = 1}), DataError);
  CHECK_THROWS_AS(open({.shape = {2, 3}, .offset = -1}), DataError);
  CHECK_THROWS_AS(open({.shape = {2, 3}, .offset = INT64_MAX}), DataError);
  CHECK_THROWS_AS(open({.shape = {INT64_MAX, INT64_MAX}}), DataError);
  CHECK_THROWS_AS(open({.shape = {-1, -1}}), DataError);
  CHECK_THROWS_AS(open({.shape = {2, 2}, .type = "complex64"}), DataError);
  CHECK_THROWS_AS(open({.shape = {2}, .type = "string"}), UsageError);
  CHECK_THROWS_AS(open({.shape = {2}, .dims = {"a", "b"}}), UsageError);
  CHECK_THROWS_AS(io::open_fields(dir / "a.raw"), IoError);  // no description
  const auto describe = [&](const std::string& text) {
    test::write_file(dir / "a.raw.json", text);
    io::open_fields(dir / "a.raw");
  };
  CHECK_NOTHROW(describe(R"({"shape": [3, 2]})"));
  for (const char* bad : {"", "[]", "{}", R"({"shape": 3})", R"({"shape": [3, 2], "order": "D"})",
                          R"({"shape": [3], "size": 4})", R"({"shape": [1,1,1,1,1,1,1,1,1]})"}) {
    INFO(bad);
    CHECK_THROWS_AS(describe(bad), DataError);
  }
}

TEST_CASE("volumes are fields, too") {
  for (const char* name : {"double.nii", "scaled.nii.gz", "wide.nii.gz"}) {
    INFO(name);
    const std::string path = str(TESSERA_SOURCE_DIR "/tests/data/nifti/", name);
    const io::NiftiReader reader(path);
    const Box box = Box::whole(reader.header().shape);
    std::vector<double> expected(static_cast<std::size_t>(box.volume()));
    std::vector<double> values(expected.size());
    reader.read(box, View::dense(expected.data(), DType::kFloat64, box.shape()));
    const auto file = io::open_fields(path);
    const io::FieldVariable& v = file->variable_or_only("", 3);
    CHECK(v.shape == box.shape());
    CHECK(v.dims.back() == "i");
    file->read("volume", box, View::dense(values.data(), DType::kFloat64, box.shape()));
    CHECK(values == expected);
    CHECK(file->bytes_read() > 0);
  }
}
