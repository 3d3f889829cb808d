// ranks: 1 2 3
// Each rank reads its own part of a tensor, in every format, and no more than that.
#include <hdf5.h>
#include <zlib.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/io/field_reader.hpp>
#include <tessera/nn/io/netcdf.hpp>

#include "shared_dir.hpp"
#include "zip_support.hpp"

using namespace tessera;

namespace {

const Shape kShape{6, 60, 4096};    // time, rows, columns
constexpr std::int64_t kRows = 20;  // of a chunk

float value(const Index& i) {
  return static_cast<float>(i[0] * 1000 + i[1]) + static_cast<float>(i[2]) / 4096.0f;
}

std::vector<float> all_values() {
  std::vector<float> values;
  for_each_index(Box::whole(kShape), [&](const Index& i) { values.push_back(value(i)); });
  return values;
}

std::string bytes_of(const std::vector<float>& values, std::int64_t first, std::int64_t count) {
  return {reinterpret_cast<const char*>(values.data() + first),
          static_cast<std::size_t>(count) * sizeof(float)};
}

void write_hdf5(const std::string& path, const std::vector<float>& values) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t shape[] = {6, 60, 4096};
  const hsize_t chunk[] = {1, kRows, 4096};
  const hid_t space = H5Screate_simple(3, shape, nullptr);
  const hid_t packed = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(packed, 3, chunk);
  H5Pset_deflate(packed, 1);
  for (const char* name : {"dense", "packed"}) {
    const hid_t set = H5Dcreate2(file, name, H5T_IEEE_F32LE, space, H5P_DEFAULT,
                                 name[0] == 'p' ? packed : H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    H5Dclose(set);
  }
  H5Pclose(packed);
  H5Sclose(space);
  H5Fclose(file);
}

std::string deflated(const std::string& bytes) {
  uLongf size = compressBound(bytes.size());
  std::string packed(size, '\0');
  compress2(reinterpret_cast<Bytef*>(packed.data()), &size,
            reinterpret_cast<const Bytef*>(bytes.data()), bytes.size(), 1);
  packed.resize(size);
  return packed;
}

void write_zarr(const std::string& path, const std::vector<float>& values) {
  std::filesystem::create_directories(path);
  test::write_file(path + "/.zgroup", R"({"zarr_format": 2})");
  for (const std::string name : {"dense", "packed"}) {
    const std::string array = path + "/" + name;
    std::filesystem::create_directories(array);
    const char* compressor = name == "packed" ? R"({"id": "zlib"})" : "null";
    test::write_file(array + "/.zarray",
                     str(R"({"zarr_format": 2, "shape": [6, 60, 4096], "chunks": [1, 20, 4096],
                         "dtype": "<f4", "order": "C", "fill_value": 0, "filters": null,
                         "compressor": )",
                         compressor, "}"));
    for (std::int64_t t = 0; t < 6; ++t)
      for (std::int64_t r = 0; r < 3; ++r) {
        const std::string bytes = bytes_of(values, (t * 60 + r * kRows) * 4096, kRows * 4096);
        test::write_file(str(array, "/", t, ".", r, ".0"),
                         name == "packed" ? deflated(bytes) : bytes);
      }
  }
}

/// Bytes that this process has asked the system to read; -1 where it does not say.
std::int64_t bytes_asked() {
  std::ifstream io("/proc/self/io");
  std::string word;
  std::int64_t bytes = -1;
  while (io >> word)
    if (word == "rchar:") io >> bytes;
  return bytes;
}

int wrong_values(const Tensor& t) {
  int wrong = 0;
  for_each_index(t.local_box(), [&](const Index& i) { wrong += t.at(i) != value(i); });
  return wrong;
}

}  // namespace

TEST_CASE("each rank reads its own part and no more") {
  const Mesh mesh = Mesh::world({{"p", process().count}});
  const io::Collective ranks = nn::collective(mesh);
  const test::SharedDir dir(ranks);
  {
    io::NetcdfWriter writer(dir / "a.nc", {{"time", 6}, {"y", 60}, {"x", 4096}},
                            {{"v", {"time", "y", "x"}}}, {}, ranks);
    const Bounds bounds = balanced_bounds(60, ranks.size);
    const Interval rows{bounds[static_cast<std::size_t>(ranks.rank)],
                        bounds[static_cast<std::size_t>(ranks.rank) + 1]};
    const Box box({0, rows.lo, 0}, {6, rows.hi, 4096});
    std::vector<float> part;
    for_each_index(box, [&](const Index& i) { part.push_back(value(i)); });
    writer.write_box("v", box, View::dense(part.data(), DType::kFloat32, box.shape()));
    writer.commit();
  }
  if (ranks.rank == 0) {
    const std::vector<float> values = all_values();
    const std::string bytes = bytes_of(values, 0, std::ssize(values));
    const std::string npy = test::npy_header("<f4", "(6, 60, 4096)") + bytes;
    test::write_file(dir / "a.npy", npy);
    test::write_file(dir / "a.npz", test::make_zip({{.name = "v.npy", .content = npy}}));
    test::write_file(dir / "a.raw", bytes);
    test::write_file(dir / "a.raw.json", R"({"shape": [6, 60, 4096]})");
    write_hdf5(dir / "a.h5", values);
    write_zarr(dir / "a.zarr", values);
  }
  ranks.barrier();

  struct Case {
    const char* file;
    const char* variable;
  };
  for (const Case& c : {Case{"a.nc", "v"},
                        {"a.npy", "array"},
                        {"a.npz", "v"},
                        {"a.raw", "array"},
                        {"a.h5", "dense"},
                        {"a.zarr", "dense"}}) {
    for (int dim = 0; dim < 3; ++dim) {
      INFO(c.file << " split along " << dim);
      const Layout layout = Placement(mesh).shard(dim, {"p"}).resolve(kShape);
      const auto reader = io::open_fields(dir / c.file);
      const std::int64_t opened = reader->bytes_read();
      const std::int64_t before = bytes_asked();
      const Tensor t = reader->read(c.variable, layout);
      const std::int64_t asked = bytes_asked() - before;
      const std::int64_t part = 4 * t.local_box().volume();
      CHECK(wrong_values(t) == 0);
      CHECK(opened == 0);
      CHECK(reader->bytes_read() == part);
      // What the libraries take from the system, too, where rows are longer than their pages.
      if (before >= 0 && dim < 2) CHECK(asked <= part + part / 10 + 4096);
    }
  }

  // Packed chunks count where they touch the part: whole ones if the parts are made of chunks.
  const Layout rows = Placement(mesh).domain(0, "p").resolve(kShape, {.multiple = kRows});
  std::int64_t zarr_bytes = 0;
  for (std::int64_t t = 0; t < 6; ++t)
    for (std::int64_t r = rows.local_box().lo[1] / kRows; r < rows.local_box().hi[1] / kRows; ++r)
      zarr_bytes += static_cast<std::int64_t>(
          std::filesystem::file_size(str(dir / "a.zarr/packed/", t, ".", r, ".0")));
  const auto zarr = io::open_fields(dir / "a.zarr");
  CHECK(wrong_values(zarr->read("packed", rows)) == 0);
  CHECK(zarr->bytes_read() == zarr_bytes);
  const auto h5 = io::open_fields(dir / "a.h5");
  const std::int64_t before = bytes_asked();
  CHECK(wrong_values(h5->read("packed", rows)) == 0);
  const std::int64_t asked = bytes_asked() - before;
  const std::int64_t taken = h5->bytes_read();
  CHECK(taken > 0);
  CHECK(taken < 4 * rows.local_box().volume());
  if (before >= 0) CHECK(asked <= taken + taken / 10 + 65536);  // the tree of chunks
  const auto all = io::open_fields(dir / "a.h5");
  all->read("packed", Layout::replicated(mesh, kShape));
  CHECK(ranks.total(taken) == all->bytes_read());
}

TEST_CASE("variables become channels, files become one series") {
  const Mesh mesh = Mesh::world({{"p", process().count}});
  const io::Collective ranks = nn::collective(mesh);
  const test::SharedDir dir(ranks);
  const auto v = [](std::int64_t file, std::int64_t c, std::int64_t t, std::int64_t x) {
    return static_cast<double>(file * 1000 + c * 100 + t * 10 + x);
  };
  for (std::int64_t file = 0; file < 3; ++file) {
    io::NetcdfWriter writer(dir / str("part_", file, ".nc"), {{"time", file + 1}, {"x", 5}},
                            {{"a", {"time", "x"}}, {"b", {"time", "x"}}, {"once", {"x"}}}, {},
                            ranks);
    for (std::int64_t c = 0; c < 3; ++c) {
      std::vector<double> values;
      for (std::int64_t t = 0; t < (c < 2 ? file + 1 : 1); ++t)
        for (std::int64_t x = 0; x < 5; ++x) values.push_back(v(file, c, t, x));
      const Shape shape = c < 2 ? Shape{file + 1, 5} : Shape{5};
      Box box = Box::whole(shape);
      if (ranks.rank > 0) box.set(0, {0, 0});
      writer.write_box(c == 0   ? "a"
                       : c == 1 ? "b"
                                : "once",
                       box, View::dense(values.data(), DType::kFloat64, box.shape()));
    }
    writer.commit();
  }
  const auto reader = io::open_fields(dir / "part_*.nc");
  CHECK(reader->variable("a").shape == Shape{6, 5});
  CHECK(reader->variable("once").shape == Shape{5});
  for (int dim = 0; dim < 3; ++dim) {
    const Layout layout = Placement(mesh).shard(dim, {"p"}).resolve({6, 5, 2});
    const Tensor t = reader->read(std::vector<std::string>{"b", "a"}, layout, DType::kFloat64);
    int wrong = 0;
    for_each_index(t.local_box(), [&](const Index& i) {
      const std::int64_t file = i[0] == 0 ? 0 : i[0] < 3 ? 1 : 2;
      const std::int64_t start[] = {0, 1, 3};
      wrong += t.at(i) != v(file, 1 - i[2], i[0] - start[file], i[1]);
    });
    CHECK(wrong == 0);
  }
  CHECK_THROWS_AS(reader->read("a", Layout::replicated(mesh, {6, 4})), ShapeError);
  CHECK_THROWS_AS(
      reader->read(std::vector<std::string>{"a", "once"}, Layout::replicated(mesh, {6, 5, 2})),
      ShapeError);
  CHECK_THROWS_AS(io::open_fields(dir / "none_*.nc"), IoError);
  CHECK_THROWS_AS(io::open_fields(std::vector<std::string>{}), UsageError);
  CHECK_THROWS_AS(io::open_fields(dir / "part_*.nc", {.along = "depth"}), DataError);
}
