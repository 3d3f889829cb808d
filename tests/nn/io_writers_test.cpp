// ranks: 1 2 3 4
// Decomposed tensors as NumPy, NetCDF and Zarr files: what lies on disk is decoded here by hand.
#include <fcntl.h>
#include <zlib.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <tessera/nn/io/netcdf.hpp>
#include <tessera/nn/io/nifti.hpp>
#include <tessera/nn/io/npy_writer.hpp>
#include <tessera/nn/io/zarr_writer.hpp>

#include "write_support.hpp"

using namespace tessera;
using namespace tessera::test;
using Codec = io::ZarrOptions::Codec;

namespace {

const std::vector<DType> kTypes = {DType::kFloat32, DType::kFloat64, DType::kBFloat16,
                                   DType::kInt32,   DType::kInt64,   DType::kUInt8,
                                   DType::kBool};

template <class T>
double take(const std::string& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return static_cast<double>(value);
}

double element(const std::string& descr, const std::string& bytes, std::size_t i) {
  if (descr == "<f4") return take<float>(bytes, i);
  if (descr == "<f8") return take<double>(bytes, i);
  if (descr == "<i4") return take<std::int32_t>(bytes, i);
  if (descr == "<i8") return take<std::int64_t>(bytes, i);
  if (descr == "|u1" || descr == "|b1") return take<std::uint8_t>(bytes, i);
  FAIL("unknown type " << descr);
  return 0.0;
}

const std::map<DType, std::string> kDescr = {{DType::kFloat32, "<f4"},  {DType::kFloat64, "<f8"},
                                             {DType::kBFloat16, "<f4"}, {DType::kInt32, "<i4"},
                                             {DType::kInt64, "<i8"},    {DType::kUInt8, "|u1"},
                                             {DType::kBool, "|b1"}};
const std::map<std::string, std::string> kDescrOfV3 = {{"float32", "<f4"}, {"float64", "<f8"},
                                                       {"int32", "<i4"},   {"int64", "<i8"},
                                                       {"uint8", "|u1"},   {"bool", "|b1"}};

std::string unpacked(const std::string& bytes, const std::string& codec, std::size_t size) {
  std::string out(size, '\0');
  if (codec == "gzip") {
    z_stream stream = {};
    REQUIRE(inflateInit2(&stream, 15 + 16) == Z_OK);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream.avail_in = static_cast<uInt>(bytes.size());
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(size);
    CHECK(inflate(&stream, Z_FINISH) == Z_STREAM_END);
    CHECK(stream.total_out == size);
    inflateEnd(&stream);
    return out;
  }
  if (codec == "zstd") {
    CHECK(ZSTD_decompress(out.data(), size, bytes.data(), bytes.size()) == size);
    return out;
  }
  CHECK(bytes.size() == size);
  return bytes;
}

/// An array of a store as its metadata describes it.
struct Stored {
  Shape shape, chunks;
  std::string descr, codec;
  nlohmann::json attributes;
  std::vector<std::string> dims;
  std::vector<double> values;
  int padding_wrong = 0;
};

Shape shape_of(const nlohmann::json& json) { return Shape(json.get<std::vector<std::int64_t>>()); }

Stored read_store(const std::string& store, const std::string& name, int format) {
  const std::string at = store + "/" + name;
  Stored a;
  if (format == 3) {
    const auto json = nlohmann::json::parse(test::read_file(at + "/zarr.json"));
    CHECK(json["zarr_format"] == 3);
    CHECK(json["node_type"] == "array");
    CHECK(json["chunk_key_encoding"]["configuration"]["separator"] == ".");
    a.shape = shape_of(json["shape"]);
    a.chunks = shape_of(json["chunk_grid"]["configuration"]["chunk_shape"]);
    a.descr = kDescrOfV3.at(json["data_type"]);
    if (json["codecs"].size() > 1) a.codec = json["codecs"][1]["name"];
    a.attributes = json["attributes"];
    a.dims = json["dimension_names"].get<std::vector<std::string>>();
  } else {
    const auto json = nlohmann::json::parse(test::read_file(at + "/.zarray"));
    CHECK(json["zarr_format"] == 2);
    a.shape = shape_of(json["shape"]);
    a.chunks = shape_of(json["chunks"]);
    a.descr = json["dtype"];
    if (!json["compressor"].is_null()) a.codec = json["compressor"]["id"];
    a.attributes = nlohmann::json::parse(test::read_file(at + "/.zattrs"));
    a.dims = a.attributes["_ARRAY_DIMENSIONS"].get<std::vector<std::string>>();
    const auto all = nlohmann::json::parse(test::read_file(store + "/.zmetadata"));
    CHECK(all["metadata"][name + "/.zarray"] == json);
  }
  a.values.assign(static_cast<std::size_t>(a.shape.product()), -1e9);
  const std::size_t size = a.descr[2] - '0';
  std::map<std::string, std::string> chunks;
  const std::size_t bytes = static_cast<std::size_t>(a.chunks.product()) * size;
  Shape padded;
  for (int d = 0; d < a.shape.size(); ++d)
    padded.push_back((a.shape[d] + a.chunks[d] - 1) / a.chunks[d] * a.chunks[d]);
  for_each_index(Box::whole(padded), [&](const Index& i) {
    std::string key = format == 3 ? "c" : "";
    Index inside;
    bool real = true;
    for (int d = 0; d < a.shape.size(); ++d) {
      key += (key.empty() ? "" : ".") + std::to_string(i[d] / a.chunks[d]);
      inside.push_back(i[d] % a.chunks[d]);
      real = real && i[d] < a.shape[d];
    }
    if (key.empty()) key = "0";
    if (!chunks.contains(key))
      chunks[key] = unpacked(test::read_file(at + "/" + key), a.codec, bytes);
    const double v =
        element(a.descr, chunks[key], static_cast<std::size_t>(number_of(a.chunks, inside)));
    if (real) {
      a.values[static_cast<std::size_t>(number_of(a.shape, i))] = v;
    } else if (a.descr[1] == 'f' ? !std::isnan(v) : v != 0.0) {
      ++a.padding_wrong;
    }
  });
  return a;
}

int wrong(const std::vector<double>& values, DType dtype) {
  int count = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    count += values[i] != expected_number(dtype, static_cast<std::int64_t>(i));
  return count;
}

}  // namespace

TEST_CASE("NumPy arrays of any type and layout") {
  const SharedDir dir;
  Rng rng(11);
  for (const Mesh& mesh : write_meshes()) {
    for (const DType dtype : kTypes) {
      for (const Shape& shape :
           {Shape{5, 7, 3}, Shape{6}, Shape{}, Shape{0, 4}, Shape{1, 1, 200}}) {
        std::vector<int> dims(static_cast<std::size_t>(shape.size()));
        for (int d = 0; d < shape.size(); ++d) dims[static_cast<std::size_t>(d)] = d;
        const Layout layout = random_layout(mesh, shape, dims, rng);
        INFO(layout.str());
        // bf16 holds integers up to 256.
        io::write_npy(dir / "a.npy", numbered(layout, dtype));
        const std::string file = test::read_file(dir / "a.npy");
        REQUIRE(file.substr(0, 8) == std::string("\x93NUMPY\1\0", 8));
        const std::size_t start =
            10 + static_cast<unsigned char>(file[8]) +
            256 * static_cast<std::size_t>(static_cast<unsigned char>(file[9]));
        CHECK(start % 64 == 0);
        CHECK(file[start - 1] == '\n');
        std::string sizes;
        for (const std::int64_t n : shape) sizes += std::to_string(n) + ", ";
        if (shape.size() == 1) sizes = "6,";
        if (shape.size() > 1) sizes.resize(sizes.size() - 2);
        const std::string descr = kDescr.at(dtype);
        CHECK(file.substr(10, start - 11)
                  .find("{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + sizes +
                        "), }") == 0);
        const std::string data = file.substr(start);
        REQUIRE(data.size() == static_cast<std::size_t>(shape.product()) *
                                   static_cast<std::size_t>(descr[2] - '0'));
        std::vector<double> values;
        for (std::int64_t i = 0; i < shape.product(); ++i)
          values.push_back(element(descr, data, static_cast<std::size_t>(i)));
        CHECK(wrong(values, dtype) == 0);
      }
    }
    CHECK(dir.list() == std::vector<std::string>{"a.npy"});
    if (mesh.size() > 1) {
      const Tensor pending =
          Tensor::full(Layout::replicated(mesh, {2}).with_partial(mesh.all_axes()), 1.0);
      CHECK_THROWS_AS(io::write_npy(dir / "b.npy", pending), LayoutError);
    }
  }
}

TEST_CASE(
    "NetCDF: tensors with samples and channels of size 1, packed, bytes, one frame at a time") {
  const SharedDir dir;
  Rng rng(12);
  for (const Mesh& mesh : write_meshes()) {
    const io::Collective ranks = nn::collective(mesh);
    io::NetcdfWriter writer(
        dir / "a.nc",
        {{.name = "time", .size = 3, .coordinates = {0, 6, 12}, .attributes = {{"units", "hours"}}},
         {"y", 5},
         {"x", 7}},
        {{.name = "t", .dims = {"time", "y", "x"}, .attributes = {{"units", "K"}}, .fill = -99.0},
         {.name = "p", .dims = {"y", "x"}, .packed = io::NetcdfPacking{0.0, 34.0}},
         {.name = "m", .dims = {"y", "x"}, .dtype = DType::kBool},
         {.name = "d", .dims = {"x"}, .dtype = DType::kFloat64},
         {.name = "n", .dims = {"x"}, .dtype = DType::kInt64},
         {.name = "s", .dims = {}, .dtype = DType::kInt32}},
        {{"title", "all kinds"}, {"numbers", std::vector<double>{1.5, -2.0}}}, ranks);
    for (std::int64_t frame = 0; frame < 3; ++frame) {
      const Layout layout = random_layout(mesh, {1, 5, 7, 1}, {0, 1, 2}, rng);
      const Tensor t = Tensor::from_function(
          layout,
          [&](const Index& i) {
            return i[1] == 2 && i[2] == 3 ? std::nan("")
                                          : static_cast<double>(frame * 35 + i[1] * 7 + i[2]);
          },
          DType::kFloat64);
      writer.write("t", t, {frame, 0, 0});
    }
    const Layout grid = random_layout(mesh, {5, 7}, {0, 1}, rng);
    writer.write("p", Tensor::from_function(
                          grid,
                          [](const Index& i) {
                            return i[0] == 0 && i[1] == 1 ? std::nan("")
                                                          : static_cast<double>(i[0] * 7 + i[1]);
                          },
                          DType::kFloat32));
    writer.write("m", numbered(random_layout(mesh, {1, 5, 7, 1}, {1, 2}, rng), DType::kBool));
    writer.write("d", numbered(random_layout(mesh, {7}, {0}, rng), DType::kFloat32));
    writer.write("n", numbered(random_layout(mesh, {7}, {0}, rng), DType::kInt32, 5));
    writer.write("s", numbered(Layout::replicated(mesh, {}), DType::kInt32, 77));
    CHECK_THROWS_AS(
        writer.write("d", numbered(random_layout(mesh, {6}, {0}, rng), DType::kFloat32)),
        ShapeError);
    CHECK_THROWS_AS(writer.write("t", numbered(grid, DType::kFloat32), {3, 0, 0}), ShapeError);
    writer.commit();
    const io::NetcdfReader reader(dir / "a.nc");
    const auto read = [&](const char* name, const Shape& shape) {
      std::vector<double> values(static_cast<std::size_t>(shape.product()));
      reader.read(name, Box::whole(shape), View::dense(values.data(), DType::kFloat64, shape));
      return values;
    };
    std::vector<double> t = read("t", {3, 5, 7});
    for (std::size_t frame = 0; frame < 3; ++frame) {
      CHECK(std::isnan(t[frame * 35 + 17]));
      t[frame * 35 + 17] = static_cast<double>(frame * 35 + 17);
    }
    CHECK(wrong(t, DType::kFloat32) == 0);
    const std::vector<double> p = read("p", {5, 7});
    CHECK(std::isnan(p[1]));
    for (std::size_t i = 2; i < p.size(); ++i)
      CHECK(std::abs(p[i] - static_cast<double>(i)) <= 34.0 / 131068 * 1.001);
    CHECK(p[34] == Approx(34.0).epsilon(1e-12));
    CHECK(wrong(read("m", {5, 7}), DType::kBool) == 0);
    CHECK(wrong(read("d", {7}), DType::kFloat64) == 0);
    CHECK(read("n", {7})[6] == 11.0);
    CHECK(read("s", {})[0] == 77.0);
    CHECK(reader.coordinates("time") == std::vector<double>{0, 6, 12});
    CHECK(std::get<std::vector<double>>(reader.attributes().at("numbers")) ==
          std::vector<double>{1.5, -2.0});
    // -99 where the file is read without a rule for missing points.
    const std::string file = test::read_file(dir / "a.nc");
    CHECK(file.substr(0, 4) == std::string("CDF\5", 4));
  }
  const Mesh mesh = write_meshes()[0];
  const auto make = [&](const std::string& name, io::NetcdfVariableSpec v, std::int64_t size = 2) {
    io::NetcdfWriter(dir / name, {{"x", size}}, {std::move(v)}, {}, dir.ranks());
  };
  CHECK_THROWS_AS(make("b.nc", {.name = "a/b", .dims = {"x"}}), UsageError);
  CHECK_THROWS_AS(make("b.nc", {.name = "", .dims = {"x"}}), UsageError);
  CHECK_THROWS_AS(make("b.nc", {.name = "v", .dims = {"x"}}, 0), UsageError);
  CHECK_THROWS_AS(
      make("b.nc",
           {.name = "v", .dims = {"x"}, .dtype = DType::kInt32, .packed = io::NetcdfPacking{0, 1}}),
      UsageError);
  CHECK_THROWS_AS(make("b.nc", {.name = "v", .dims = {"x"}, .packed = io::NetcdfPacking{1, 1}}),
                  UsageError);
  {
    io::NetcdfWriter writer(dir / "b.nc", {{"x", 2}},
                            {{.name = "v", .dims = {"x"}, .packed = io::NetcdfPacking{0, 1}}}, {},
                            dir.ranks());
    CHECK_THROWS_WITH(writer.write("v", Tensor::full(Layout::replicated(mesh, {2}), 1.5)),
                      Catch::Contains("outside of the range"));
  }
  CHECK(dir.list() == std::vector<std::string>{"a.nc"});
}

TEST_CASE("Zarr: any layout, whole arrays and tiles, both formats, every codec") {
  const SharedDir dir;
  Rng rng(13);
  for (const Mesh& mesh : write_meshes()) {
    for (const int format : {2, 3}) {
      for (const Codec codec : {Codec::kNone, Codec::kGzip, Codec::kZstd}) {
        const DType dtype = kTypes[static_cast<std::size_t>(rng.integer(0, 6))];
        const Shape shape{7, 5, 9};
        INFO("format " << format << ", codec " << static_cast<int>(codec) << ", " << name(dtype));
        io::ZarrWriter writer(
            mesh, dir / "a.zarr",
            {{.name = "z", .size = 7},
             {.name = "y",
              .size = 5,
              .coordinates = {1, 2, 3, 4, 5},
              .attributes = {{"units", "m"}}},
             {.name = "x", .size = 9}},
            {{.name = "whole", .dims = {"z", "y", "x"}, .dtype = dtype, .chunks = {3, 2, 4}},
             {.name = "tiles",
              .dims = {"z", "y", "x"},
              .attributes = {{"units", "K"}, {"levels", std::vector<double>{1, 2.5}}},
              .chunks = {2, 5, 5}},
             {.name = "one", .dims = {}, .dtype = DType::kInt32},
             {.name = "default", .dims = {"x"}, .dtype = DType::kFloat64}},
            {{"title", "all"}}, {.format = format, .codec = codec, .level = 2});
        writer.write("whole", numbered(random_layout(mesh, shape, {0, 1, 2}, rng), dtype));
        writer.write("one", numbered(Layout::replicated(mesh, {}), DType::kInt32, 42));
        writer.write("default",
                     numbered(random_layout(mesh, {1, 9, 1}, {0, 1}, rng), DType::kFloat32));
        // Tiles that begin and end within chunks.
        for (const Interval z : {Interval{0, 3}, Interval{3, 4}, Interval{4, 7}}) {
          for (const Interval x : {Interval{0, 4}, Interval{4, 9}}) {
            const Layout layout = random_layout(mesh, {z.size(), 5, x.size()}, {0, 1, 2}, rng);
            writer.write("tiles",
                         Tensor::from_function(layout,
                                               [&](const Index& i) {
                                                 return static_cast<double>(number_of(
                                                     shape, {i[0] + z.lo, i[1], i[2] + x.lo}));
                                               }),
                         {z.lo, 0, x.lo});
          }
        }
        writer.commit();
        CHECK(dir.list() == std::vector<std::string>{"a.zarr"});
        const Stored whole = read_store(dir / "a.zarr", "whole", format);
        CHECK(whole.shape == shape);
        CHECK(whole.chunks == Shape{3, 2, 4});
        CHECK(whole.descr == kDescr.at(dtype));
        CHECK(whole.dims == std::vector<std::string>{"z", "y", "x"});
        CHECK(wrong(whole.values, dtype) == 0);
        CHECK(whole.padding_wrong == 0);
        const Stored tiles = read_store(dir / "a.zarr", "tiles", format);
        CHECK(wrong(tiles.values, DType::kFloat32) == 0);
        CHECK(tiles.padding_wrong == 0);
        CHECK(tiles.attributes["units"] == "K");
        CHECK(tiles.attributes["levels"] == nlohmann::json({1.0, 2.5}));
        CHECK(read_store(dir / "a.zarr", "one", format).values == std::vector<double>{42});
        CHECK(wrong(read_store(dir / "a.zarr", "default", format).values, DType::kFloat64) == 0);
        CHECK(read_store(dir / "a.zarr", "y", format).values == std::vector<double>{1, 2, 3, 4, 5});
        const std::string root = format == 3 ? "/zarr.json" : "/.zattrs";
        const auto json = nlohmann::json::parse(test::read_file(dir / ("a.zarr" + root)));
        CHECK((format == 3 ? json["attributes"]["title"] : json["title"]) == "all");
        dir.ranks().barrier();
      }
    }
  }
}

TEST_CASE("Zarr: what must not be written") {
  const SharedDir dir;
  const Mesh mesh = write_meshes()[0];
  const std::vector<io::NetcdfDimension> dims = {{.name = "x", .size = 6}};
  const auto make = [&](const std::string& name, io::ZarrArraySpec a, io::ZarrOptions o = {}) {
    return io::ZarrWriter(mesh, dir / name, dims, {std::move(a)}, {}, o);
  };
  CHECK_THROWS_AS(make("a", {.name = "v", .dims = {"y"}}), UsageError);
  CHECK_THROWS_AS(make("a", {.name = "v/w", .dims = {"x"}}), UsageError);
  CHECK_THROWS_AS(make("a", {.name = "v", .dims = {"x"}, .chunks = {0}}), UsageError);
  CHECK_THROWS_AS(make("a", {.name = "v", .dims = {"x"}}, {.format = 4}), UsageError);
  CHECK_THROWS_AS(make("none/a", {.name = "v", .dims = {"x"}}), IoError);
  Rng rng(3);
  {
    io::ZarrWriter writer = make("a", {.name = "v", .dims = {"x"}, .chunks = {4}});
    CHECK_THROWS_WITH(writer.commit(), Catch::Contains("0 of 6 points"));
    const Layout half = random_layout(mesh, {3}, {0}, rng);
    writer.write("v", numbered(half, DType::kFloat32), {0});
    CHECK_THROWS_WITH(writer.write("v", numbered(half, DType::kFloat32), {0}),
                      Catch::Contains("more points than it has"));
  }
  if (mesh.rank() == 0) {
    std::filesystem::create_directory(dir / "mine");
    test::write_file(dir / "mine/text", "precious");
  }
  dir.ranks().barrier();
  CHECK_THROWS_WITH(make("mine", {.name = "v", .dims = {"x"}}), Catch::Contains("no Zarr store"));
  CHECK(test::read_file(dir / "mine/text") == "precious");
  CHECK(dir.list() == std::vector<std::string>{"mine"});
}

TEST_CASE("a full, broken or read-only disk is one error of all ranks, and the old file stays") {
  const SharedDir dir;
  const Mesh mesh = write_meshes()[0];
  Rng rng(5);
  const Layout layout = Placement(mesh).batch("all").resolve({8, 40});
  const auto write = [&](const std::string& kind, std::int64_t start) {
    const Tensor t = numbered(layout, DType::kFloat64, start);
    if (kind == "npy") return io::write_npy(dir / "out", t);
    if (kind == "nifti") {
      io::NiftiWriter writer(dir / "out", {.shape = {8, 40}, .dtype = DType::kFloat64},
                             dir.ranks());
      writer.write_box(t.local_box(), t.local());
      return writer.commit();
    }
    if (kind == "netcdf") {
      io::NetcdfWriter writer(dir / "out", {{"y", 8}, {"x", 40}},
                              {{.name = "v", .dims = {"y", "x"}, .dtype = DType::kFloat64}}, {},
                              dir.ranks());
      writer.write("v", t);
      return writer.commit();
    }
    io::ZarrWriter writer(
        mesh, dir / "out", {{"y", 8}, {"x", 40}},
        {{.name = "v", .dims = {"y", "x"}, .dtype = DType::kFloat64, .chunks = {3, 40}}}, {},
        {.codec = Codec::kNone});
    writer.write("v", t);
    writer.commit();
  };
  const auto content = [&](const std::string& kind) {
    dir.ranks().barrier();
    std::string all;
    if (kind != "zarr") return test::read_file(dir / "out");
    for (const char* chunk : {"c.0.0", "c.1.0", "c.2.0"})
      all += test::read_file(dir / (std::string("out/v/") + chunk));
    return all;
  };
  for (const std::string kind : {"npy", "nifti", "netcdf", "zarr"}) {
    INFO(kind);
    if (mesh.rank() == 0) std::filesystem::remove_all(dir / "out");
    dir.ranks().barrier();
    BadDisk disk;
    const io::SystemCallsScope scope(disk);
    // Nothing there before: nothing after.
    const int bad = mesh.size() - 1;
    const bool here = mesh.rank() == bad;
    disk.room = here ? 500 : -1;
    CHECK_THAT(io_error_of(dir, [&] { write(kind, 0); }), Catch::Contains("Make room there"));
    CHECK(dir.list().empty());
    disk.room = -1;
    disk.short_writes = true;
    write(kind, 0);
    const std::string good = content(kind);
    CHECK(good.size() >= 8 * 40 * 8);
    disk.short_writes = false;
    write(kind, 0);
    CHECK(content(kind) == good);
    for (const std::int64_t room : {0, 100, 300}) {
      disk.room = here ? room : -1;
      disk.error = room == 100 ? EIO : ENOSPC;
      CHECK_THAT(io_error_of(dir, [&] { write(kind, 1); }),
                 Catch::Contains(room == 100 ? "Input/output error" : "Make room there"));
      CHECK(content(kind) == good);
    }
    disk.room = -1;
    disk.read_only = true;
    CHECK_THAT(io_error_of(dir, [&] { write(kind, 1); }), Catch::Contains("can be written"));
    disk.read_only = false;
    disk.no_rename = "out";
    CHECK_THAT(io_error_of(dir, [&] { write(kind, 1); }), Catch::Contains("Input/output error"));
    disk.no_rename.clear();
    CHECK(content(kind) == good);
    CHECK(dir.list() == std::vector<std::string>{"out"});
    write(kind, 1);
    CHECK(content(kind) != good);
  }
}
