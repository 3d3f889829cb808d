// ranks: none
// The same field in files of several formats trains the same model.
#include "program.hpp"

namespace tessera::test {
namespace {

void write_text(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// An array of format 2 in one chunk.
void write_zarr(const std::string& path,
                const std::string& shape,
                const std::string& dtype,
                const std::string& attributes,
                const std::string& bytes,
                const std::string& chunk) {
  write_text(path + "/.zarray", R"({"zarr_format": 2, "shape": [)" + shape + R"(], "chunks": [)" +
                                    shape + R"(], "dtype": ")" + dtype +
                                    R"(", "compressor": null, "fill_value": null, "order": "C",
                                    "filters": null})");
  write_text(path + "/.zattrs", attributes);
  write_text(path + "/" + chunk, bytes);
}

}  // namespace

TEST_CASE("training, evaluation and prediction from Zarr, NumPy and bare files") {
  const TemporaryFolder at;
  std::vector<float> relief(49 * 96);
  std::vector<double> lat(49);
  std::vector<double> lon(96);
  {
    const io::NetcdfReader reader(at.data());
    const Shape shape{49, 96};
    reader.read("relief", Box::whole(shape), View::dense(relief.data(), DType::kFloat32, shape));
    lat = reader.coordinates("lat");
    lon = reader.coordinates("lon");
  }
  const std::string store = at / "relief.zarr";
  write_text(store + "/.zgroup", R"({"zarr_format": 2})");
  write_zarr(store + "/relief", "49, 96", "<f4", R"({"_ARRAY_DIMENSIONS": ["lat", "lon"]})",
             bytes_of(relief), "0.0");
  write_zarr(store + "/lat", "49", "<f8", R"({"_ARRAY_DIMENSIONS": ["lat"]})", bytes_of(lat), "0");
  write_zarr(store + "/lon", "96", "<f8",
             R"({"_ARRAY_DIMENSIONS": ["lon"], "units": "degrees_east"})", bytes_of(lon), "0");
  REQUIRE(tessera(at, 2, train(at, "nc")).code == 0);
  const std::vector<double> expected = losses(at, "nc");
  REQUIRE(expected.size() == 6);

  const auto train_on = [&](const std::string& data, const std::string& run, const Words& more) {
    Words words = train(at, run, more);
    *(std::find(words.begin(), words.end(), "--data") + 1) = data;
    const Outcome outcome = tessera(at, 2, words);
    INFO(outcome.output);
    REQUIRE(outcome.code == 0);
    return losses(at, run);
  };
  CHECK(train_on(store, "zarr", {}) == expected);
  CHECK(train_on(store, "ahead", {"--prefetch", "3"}) == expected);
  const Outcome predicted = tessera(at, 2, {"predict", at / "zarr", "--output", at / "out.nc"});
  INFO(predicted.output);
  CHECK(predicted.code == 0);
  CHECK(tessera(at, 1, {"evaluate", at / "zarr"}).code == 0);

  // Without coordinates nothing is periodic and points are counted.
  write_text(at / "relief.raw", bytes_of(relief));
  write_text(at / "relief.raw.json", R"({"shape": [49, 96], "name": "relief"})");
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (49, 96), }";
  header.resize(117, ' ');
  write_text(at / "relief.npy",
             std::string("\x93NUMPY\1\0\x76\0", 10) + header + "\n" + bytes_of(relief));
  const Words held = {"--holdout", "0,32"};
  CHECK(train_on(at / "relief.npy", "npy", held) == train_on(at / "relief.raw", "raw", held));

  const Outcome damaged = tessera(at, 2, [&] {
    write_text(at / "bad.npy", "\x93NUMPY");
    Words words = train(at, "bad");
    *(std::find(words.begin(), words.end(), "--data") + 1) = at / "bad.npy";
    return words;
  }());
  INFO(damaged.output);
  CHECK(damaged.code == 65);
  CHECK(damaged.says("not a NumPy array"));
}

}  // namespace tessera::test
