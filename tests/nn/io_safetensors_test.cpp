// ranks: 1
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <tessera/nn/io/safetensors.hpp>

#include "io_support.hpp"

using namespace tessera;
using tessera::test::TempDir;

namespace {

template <class T>
View view_of(std::vector<T>& values, const Shape& shape) {
  return View::dense(values.data(), dtype_of<T>, shape);
}

// A file by hand: header text and data bytes.
std::string raw_file(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

std::vector<double> random_values(std::int64_t n, std::mt19937_64& random) {
  std::vector<double> values(static_cast<std::size_t>(n));
  for (double& v : values) v = std::uniform_real_distribution<double>(-100, 100)(random);
  return values;
}

std::int64_t flat(const Index& i, const Shape& shape) {
  std::int64_t offset = 0;
  for (int d = 0; d < shape.size(); ++d) offset = offset * shape[d] + i[d];
  return offset;
}

// What opening `file` says, or "" when it opens.
std::string open_error(const TempDir& dir, const std::string& file) {
  test::write_file(dir / "x", file);
  try {
    io::SafetensorsReader reader(dir / "x");
  } catch (const IoError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a file written by hand in the published format is read") {
  const TempDir dir;
  const float data[] = {1, 2, 3, 4, 5, 6};
  std::string bytes(reinterpret_cast<const char*>(data), sizeof(data));
  bytes += std::string("\x01\x00\x07", 3);
  test::write_file(dir / "a",
                   raw_file(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BOOL","shape":[3],)"
                            R"("data_offsets":[24,27]},"w":{"dtype":"F32","shape":[2,3],)"
                            R"("data_offsets":[0,24]}}   )",
                            bytes));
  const io::SafetensorsReader reader(dir / "a");
  REQUIRE(reader.entries().size() == 2);
  CHECK(reader.entries()[0].name == "w");
  CHECK(reader.entry("b").shape == Shape{3});
  CHECK(reader.metadata() == io::Metadata{{"format", "pt"}});
  std::vector<double> column(2);
  reader.read_box("w", Box({0, 1}, {2, 2}), view_of(column, {2, 1}));
  CHECK(column == std::vector<double>{2, 5});
  std::vector<std::int32_t> flags(3);
  reader.read_box("b", Box({0}, {3}), view_of(flags, {3}));
  CHECK(flags == std::vector<std::int32_t>{1, 0, 1});
  CHECK_THROWS_WITH(reader.entry("ww"), Catch::Contains("Did you mean \"w\"?"));
  CHECK_THROWS_AS(reader.read_box("w", Box({0, 1}, {2, 4}), view_of(column, {2, 3})), ShapeError);
  CHECK_THROWS_AS(reader.read_box("w", Box({0, 1}, {2, 2}), view_of(column, {2})), ShapeError);
  CHECK_THROWS_AS(reader.read_box("w", Box({0, 0}, {1, 3}), view_of(flags, {1, 3})), DTypeError);
}

TEST_CASE("the written file has the published format") {
  const TempDir dir;
  io::SafetensorsWriter writer(dir / "a", {{"u", DType::kUInt8, {1}}, {"f", DType::kFloat32, {2}}},
                               {{"k", "v"}});
  std::vector<float> f = {1.5f, -2.0f};
  std::vector<std::uint8_t> u = {9};
  writer.write_box("f", Box({0}, {2}), view_of(f, {2}));
  writer.write_box("u", Box({0}, {1}), view_of(u, {1}));
  CHECK(dir.list().size() == 1);
  CHECK(dir.list()[0].starts_with("a.tmp-"));
  writer.commit();
  CHECK(dir.list() == std::vector<std::string>{"a"});
  std::string header =
      R"({"__metadata__":{"k":"v"},"f":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("u":{"dtype":"U8","shape":[1],"data_offsets":[8,9]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  CHECK(test::read_file(dir / "a") ==
        raw_file(header, std::string(reinterpret_cast<const char*>(f.data()), 8) + "\x09"));
}

TEST_CASE("random boxes of random tensors, every pair of floating types, strided views") {
  const TempDir dir;
  std::mt19937_64 random(7);
  const auto below = [&](std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random);
  };
  for (int repeat = 0; repeat < 60; ++repeat) {
    Shape shape;
    const int dims = static_cast<int>(below(5));
    for (int d = 0; d < dims; ++d) shape.push_back(below(10) == 0 ? 0 : 1 + below(d == 0 ? 40 : 7));
    if (repeat == 0) shape = {3, 70'000, 2};  // rows beyond one block
    const auto values = random_values(shape.product(), random);
    const DType types[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16};
    const DType stored = types[below(3)];
    const DType given = types[below(3)];
    const DType asked = types[below(3)];
    const auto rounded = [](double v, DType type) {
      std::byte cell[8];
      store_double(cell, type, 0, v);
      return load_as_double(cell, type, 0);
    };

    // Written in two parts from a view with strides of its own.
    io::SafetensorsWriter writer(dir / "a", {{"x", stored, shape}, {"pad", DType::kUInt8, {3}}});
    std::vector<std::uint8_t> pad(3);
    writer.write_box("pad", Box({0}, {3}), view_of(pad, {3}));
    std::vector<std::byte> source(values.size() * 8 * 3 + 8);
    View whole = View::dense(source.data(), given, shape);
    for (int d = 0; d < dims; ++d) whole.strides[d] *= 3;
    for_each_index(Box::whole(shape), [&](const Index& i) {
      store_double(source.data(), given, 3 * flat(i, shape),
                   values[static_cast<std::size_t>(flat(i, shape))]);
    });
    Box low = Box::whole(shape), high = Box::whole(shape);
    if (dims > 0) {
      const int d = static_cast<int>(below(dims));
      const std::int64_t cut = below(shape[d] + 1);
      low.hi[d] = cut;
      high.lo[d] = cut;
      writer.write_box("x", high, whole.slice(high));
    }
    writer.write_box("x", low, whole.slice(low));
    writer.commit();

    const io::SafetensorsReader reader(dir / "a");
    Box box = Box::whole(shape);
    for (int d = 0; d < dims; ++d) {
      const std::int64_t a = below(shape[d] + 1), b = below(shape[d] + 1);
      box.set(d, {std::min(a, b), std::max(a, b)});
    }
    // Dimensions of the output in another order: the view's strides are a permutation.
    Shape part = box.shape();
    std::vector<int> order(static_cast<std::size_t>(dims));
    for (int d = 0; d < dims; ++d) order[static_cast<std::size_t>(d)] = d;
    std::shuffle(order.begin(), order.end(), random);
    Strides strides = Dims::filled(dims, 1);
    std::int64_t stride = 1;
    for (const int d : order) {
      strides[d] = stride;
      stride *= std::max<std::int64_t>(part[d], 1);
    }
    std::vector<std::byte> target(static_cast<std::size_t>(stride) * 8 + 8);
    reader.read_box("x", box, View{target.data(), asked, part, strides});
    int wrong = 0;
    for_each_index(box, [&](const Index& i) {
      std::int64_t at = 0;
      for (int d = 0; d < dims; ++d) at += (i[d] - box.lo[d]) * strides[d];
      const double expected = rounded(
          rounded(rounded(values[static_cast<std::size_t>(flat(i, shape))], given), stored), asked);
      if (load_as_double(target.data(), asked, at) != expected) ++wrong;
    });
    INFO("shape " << shape << " box " << box);
    CHECK(wrong == 0);
  }
}

TEST_CASE("integers convert where they fit") {
  const TempDir dir;
  io::SafetensorsWriter writer(dir / "a", {{"x", DType::kInt64, {3}}});
  std::vector<std::int64_t> x = {-1, 7, 1LL << 40};
  writer.write_box("x", Box({0}, {3}), view_of(x, {3}));
  writer.commit();
  const io::SafetensorsReader reader(dir / "a");
  std::vector<std::int32_t> narrow(2);
  reader.read_box("x", Box({0}, {2}), view_of(narrow, {2}));
  CHECK(narrow == std::vector<std::int32_t>{-1, 7});
  CHECK_THROWS_WITH(reader.read_box("x", Box({1}, {3}), view_of(narrow, {2})),
                    Catch::Contains("does not fit into i32"));
  std::vector<std::uint8_t> bytes(1);
  CHECK_THROWS_AS(reader.read_box("x", Box({0}, {1}), view_of(bytes, {1})), IoError);
}

TEST_CASE("special values keep their bits") {
  const TempDir dir;
  io::SafetensorsWriter writer(dir / "a", {{"x", DType::kFloat64, {5}}});
  std::vector<double> x = {-0.0, INFINITY, std::nan("0x123"), 5e-324, 1.7976931348623157e308};
  writer.write_box("x", Box({0}, {5}), view_of(x, {5}));
  writer.commit();
  std::vector<double> y(5);
  io::SafetensorsReader(dir / "a").read_box("x", Box({0}, {5}), view_of(y, {5}));
  CHECK(std::memcmp(x.data(), y.data(), 40) == 0);
}

TEST_CASE("only the asked part is read") {
  const TempDir dir;
  io::SafetensorsWriter writer(dir / "a", {{"x", DType::kFloat32, {1000, 5000}}});
  std::vector<float> x(5'000'000, 1.0f);
  writer.write_box("x", Box({0, 0}, {1000, 5000}), view_of(x, {1000, 5000}));
  writer.commit();
  const io::SafetensorsReader reader(dir / "a");
  const std::int64_t header = reader.bytes_read();
  CHECK(header < 200);
  std::vector<float> part(40'000);
  reader.read_box("x", Box({10, 1000}, {50, 2000}), view_of(part, {40, 1000}));
  CHECK(reader.bytes_read() - header == 40 * 1000 * 4);
}

TEST_CASE("several ranks write one file") {
  const TempDir dir;
  const Shape shape{7, 5};
  const auto f = [](std::int64_t i, std::int64_t j) { return static_cast<float>(i * 10 + j); };
  const auto errors = test::run_as_ranks(3, [&](const io::Collective& ranks) {
    io::SafetensorsWriter writer(
        dir / "a", {{"x", DType::kFloat32, shape}, {"s", DType::kInt64, {}}}, {}, ranks);
    const Bounds bounds = {0, 3, 3, 7};  // rank 1 has nothing
    const std::int64_t lo = bounds[static_cast<std::size_t>(ranks.rank)];
    const std::int64_t hi = bounds[static_cast<std::size_t>(ranks.rank) + 1];
    std::vector<float> mine;
    for (std::int64_t i = lo; i < hi; ++i)
      for (std::int64_t j = 0; j < 5; ++j) mine.push_back(f(i, j));
    writer.write_box("x", Box({lo, 0}, {hi, 5}), view_of(mine, {hi - lo, 5}));
    std::vector<std::int64_t> s = {42};
    if (ranks.rank == 2) writer.write_box("s", Box({}, {}), view_of(s, {}));
    writer.commit();
  });
  CHECK(errors == std::vector<std::string>(3));
  CHECK(dir.list() == std::vector<std::string>{"a"});
  const io::SafetensorsReader reader(dir / "a");
  const Tensor x = reader.read("x", Layout::replicated(Mesh::self(), shape), DType::kFloat64);
  for (const Shape& other : {Shape{5, 7}, Shape{35}, Shape{7, 4}})
    CHECK_THROWS_WITH(reader.read("x", Layout::replicated(Mesh::self(), other), DType::kFloat64),
                      Catch::Contains("has shape [7, 5]"));
  for (std::int64_t i = 0; i < 7; ++i)
    for (std::int64_t j = 0; j < 5; ++j) CHECK(x.at({i, j}) == f(i, j));
  CHECK(reader.read("s", Layout::replicated(Mesh::self(), {})).item() == 42);
}

TEST_CASE("a failure on one rank is an error on all, and the old file stays") {
  const TempDir dir;
  test::write_file(dir / "a", "old");
  SECTION("a part is missing") {
    const auto errors = test::run_as_ranks(3, [&](const io::Collective& ranks) {
      io::SafetensorsWriter writer(dir / "a", {{"x", DType::kFloat32, {3}}}, {}, ranks);
      std::vector<float> x = {1};
      const std::int64_t r = ranks.rank;
      if (r != 1) writer.write_box("x", Box({r}, {r + 1}), view_of(x, {1}));
      writer.commit();
    });
    for (const auto& e : errors) CHECK_THAT(e, Catch::Contains("2 of 3 elements"));
  }
  SECTION("one rank throws") {
    const auto errors = test::run_as_ranks(3, [&](const io::Collective& ranks) {
      ranks.together([&] {
        if (ranks.rank == 1) throw IoError("disk: full");
      });
    });
    for (const auto& e : errors) CHECK(e == "disk: full (rank 1)");
  }
  SECTION("the directory does not exist") {
    const auto errors = test::run_as_ranks(2, [&](const io::Collective& ranks) {
      io::SafetensorsWriter writer(dir / "none/a", {{"x", DType::kFloat32, {3}}}, {}, ranks);
    });
    for (const auto& e : errors) CHECK_THAT(e, Catch::Contains("No such file"));
  }
  SECTION("the writer is abandoned") {
    io::SafetensorsWriter writer(dir / "a", {{"x", DType::kFloat32, {3}}});
  }
  CHECK(dir.list() == std::vector<std::string>{"a"});
  CHECK(test::read_file(dir / "a") == "old");
}

TEST_CASE("what a killed run left goes, and nothing else") {
  const TempDir dir;
  for (const char* name :
       {"a.tmp-0123456789abcdef", "a.tmp-0123456789abcdeg", "a.tmp-1", "ba.tmp-0123456789abcdef"})
    test::write_file(dir / name, "x");
  io::SafetensorsWriter(dir / "a", {}).commit();
  CHECK(dir.list() == std::vector<std::string>{"a", "a.tmp-0123456789abcdeg", "a.tmp-1",
                                               "ba.tmp-0123456789abcdef"});
}

TEST_CASE("wrong use of the writer") {
  const TempDir dir;
  CHECK_THROWS_AS(
      io::SafetensorsWriter(dir / "a", {{"x", DType::kBool, {}}, {"x", DType::kBool, {}}}),
      UsageError);
  CHECK_THROWS_AS(io::SafetensorsWriter(dir / "a", {{"__metadata__", DType::kBool, {}}}),
                  UsageError);
  CHECK_THROWS_AS(io::SafetensorsWriter(dir / "a", {{"\xff", DType::kBool, {}}}), UsageError);
  CHECK_THROWS_AS(
      io::SafetensorsWriter(dir / "a", {{"x", DType::kFloat64, {1LL << 40, 1LL << 40}}}),
      UsageError);
  io::SafetensorsWriter writer(dir / "a", {{"block.weight", DType::kFloat32, {3}}});
  std::vector<float> x(3);
  CHECK_THROWS_WITH(writer.write_box("blocks.weight", Box({0}, {3}), view_of(x, {3})),
                    Catch::Contains("Did you mean \"block.weight\"?"));
  CHECK_THROWS_AS(writer.write_box("block.weight", Box({0}, {4}), view_of(x, {4})), ShapeError);
}

TEST_CASE("damaged headers are refused with the reason") {
  const TempDir dir;
  const std::string data(8, 'x');
  const auto says = [&](const std::string& header) {
    return open_error(dir, raw_file(header, data));
  };
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return R"("t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}";
  };
  REQUIRE(says("{" + tensor("F32", "[2]", "[0,8]") + "}").empty());
  // Nothing has no bytes.
  REQUIRE(says(R"({"e":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},)" +
               tensor("F32", "[2]", "[0,8]") + "}")
              .empty());
  CHECK_THAT(says("{" + tensor("F32", "[0]", "[0,4]") + "}"),
             Catch::Contains("needs 0 bytes, but claims 4"));
  CHECK_THAT(says("{" + tensor("F32", "[3]", "[0,8]") + "}"),
             Catch::Contains("needs 12 bytes, but claims 8"));
  CHECK_THAT(says("{" + tensor("F32", "[2]", "[4,12]") + "}"),
             Catch::Contains("claims bytes 4..12 of 8"));
  CHECK_THAT(says("{" + tensor("F32", "[2]", "[8,0]") + "}"), Catch::Contains("claims bytes 8..0"));
  CHECK_THAT(says("{" + tensor("F32", "[1]", "[4,8]") + "}"), Catch::Contains("a gap"));
  CHECK_THAT(says("{" + tensor("F32", "[1]", "[0,4]") + "}"), Catch::Contains("cover 4 of 8"));
  CHECK_THAT(says("{" + tensor("F32", "[2]", "[0,8]") + "," + tensor("F32", "[2]", "[0,8]") + "}"),
             Catch::Contains("occurs twice"));
  CHECK_THAT(says("{" + tensor("F32", "[2]", "[0,8]") +
                  R"(,"u":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})"),
             Catch::Contains("overlap"));
  CHECK_THAT(says("{" + tensor("F32", "[4294967296,4294967296,4294967296]", "[0,0]") + "}"),
             Catch::Contains("larger than 2^63"));
  CHECK_THAT(
      says("{" + tensor("F32", "[4611686018427387904,4611686018427387904,0]", "[0,0]") + "}"),
      Catch::Contains("larger than 2^63"));
  CHECK_THAT(says("{" + tensor("F32", "[18446744073709551615]", "[0,8]") + "}"),
             Catch::Contains("too large"));
  CHECK_THAT(says("{" + tensor("F32", "[-2]", "[0,8]") + "}"), Catch::Contains("negative"));
  CHECK_THAT(says("{" + tensor("F32", "[2.0]", "[0,8]") + "}"),
             Catch::Contains("not a 63-bit integer"));
  CHECK_THAT(says("{" + tensor("F8_E4M3", "[8]", "[0,8]") + "}"),
             Catch::Contains("unsupported element type"));
  CHECK_THAT(says("{" + tensor("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") + "}"),
             Catch::Contains("more than 8"));
  CHECK_THAT(says("{" + tensor("F32", "[[2]]", "[0,8]") + "}"),
             Catch::Contains("a list where none"));
  CHECK_THAT(says("{" + tensor("F32", "[2]", "[0,8,8]") + "}"), Catch::Contains("not two numbers"));
  CHECK_THAT(says(R"({"t":{"dtype":"F32","shape":[2]}})"), Catch::Contains("lacks"));
  CHECK_THAT(says(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})"),
             Catch::Contains("unknown field"));
  CHECK_THAT(says(R"({"t":[1]})"), Catch::Contains("a list where none"));
  CHECK_THAT(says(R"({"__metadata__":{"a":1}})"), Catch::Contains("a number where none"));
  CHECK_THAT(says("{" + std::string(50'000, '[')), Catch::Contains("not valid JSON"));
  CHECK_THAT(says(R"({"t":)" + std::string(50'000, '[')), Catch::Contains("a list where none"));
  CHECK_THAT(says("[]"), Catch::Contains("'{'"));
  CHECK_THAT(says(""), Catch::Contains("'{'"));
  CHECK_THAT(says("{} x"), Catch::Contains("not valid JSON"));
  CHECK_THAT(open_error(dir, "abc"), Catch::Contains("only 3 bytes"));
  CHECK_THAT(open_error(dir, std::string(8, '\xff') + "{}"),
             Catch::Contains("a header of 18446744073709551615 bytes"));
  CHECK_THROWS_WITH(io::SafetensorsReader(dir / ""), Catch::Contains("not a regular file"));
  CHECK_THROWS_WITH(io::SafetensorsReader(dir / "absent"), Catch::Contains("No such file"));
  CHECK(open_error(dir, raw_file("{}", "")).empty());
}

TEST_CASE("a file that shrinks while it is open is an error") {
  const TempDir dir;
  io::SafetensorsWriter writer(dir / "a", {{"x", DType::kFloat32, {100}}});
  std::vector<float> x(100);
  writer.write_box("x", Box({0}, {100}), view_of(x, {100}));
  writer.commit();
  const io::SafetensorsReader reader(dir / "a");
  std::filesystem::resize_file(dir / "a", 300);
  CHECK_THROWS_WITH(reader.read_box("x", Box({0}, {100}), view_of(x, {100})),
                    Catch::Contains("ends at byte 300"));
}
