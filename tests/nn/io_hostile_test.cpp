// ranks: 1
// Files that somebody made to do harm: each is refused with its reason, in little memory, and no
// other file is touched. (Those of NIfTI: io_nifti_test.cpp.)
#include <filesystem>
#include <sstream>
#include <tessera/nn/io/extxyz.hpp>
#include <tessera/nn/io/npy.hpp>
#include <tessera/nn/io/safetensors.hpp>
#include <tessera/nn/io/zarr.hpp>

#include "fuzz_support.hpp"
#include "io_support.hpp"
#include "zip_support.hpp"

namespace tessera::test {
namespace {

constexpr std::int64_t kMemory = 1 << 20;

struct Fixture {
  std::string what;  ///< what the error says
  std::string bytes;
};

/// `read` must throw a DataError with these words.
template <class F>
void refuses(const std::string& words, const F& read) {
  INFO(words);
  try {
    const AllocationLimit limit(kMemory);
    read();
  } catch (const DataError& e) {
    INFO(e.what());
    CHECK(std::string(e.what()).find(words) != std::string::npos);
    CHECK(std::string(e.what()).size() < 1000);
    return;
  } catch (const std::exception& e) {
    FAIL("another error: " << e.what());
  }
  FAIL("nothing was thrown");
}

std::string huge_npy(const std::string& shape) { return npy_header("<f8", shape) + "12345678"; }

}  // namespace

TEST_CASE("NumPy arrays that lie") {
  const TempDir dir;
  const std::string good = npy_header("<f4", "(2,)") + "12345678";
  std::string ones;
  for (int d = 0; d < 300; ++d) ones += "1,";
  const std::vector<Fixture> fixtures = {
      {"bytes long", std::string("\x93NUMPY\x01\0\x10\0", 10)},
      {"not a NumPy array", ""},
      {"not a NumPy array", "PK\3\4 something else"},
      {"format 4", std::string("\x93NUMPY\4\0\1\0\n", 11)},
      {"bytes long", std::string("\x93NUMPY\2\0\xff\xff\xff\xff{}", 14)},
      {"needs more than", huge_npy("(4611686018427387904,)")},
      {"needs more than", huge_npy("(4294967296, 4294967296, 4294967296)")},
      {"beyond 63 bits", huge_npy("(9223372036854775808,)")},
      {"needs more than", huge_npy("(0, 4611686018427387904, 4)")},
      {"no size", huge_npy("(-1,)")},
      {"more than 64 dimensions", huge_npy("(" + ones + ")")},
      {"never unpickled", npy_header("|O", "(1,)") + "cos\nsystem\n(S'true'\ntR."},
      {"never unpickled",
       npy_header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}")},
      {"an unknown key, or one twice", npy_header("{'shape': (1,), 'shape': (2,)}")},
      {"a list without end", npy_header("{'descr': " + std::string(3000, '['))},
      {"a strange character", npy_header("{'descr': '<f4")},
      {"more than one literal",
       npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': ()} + f()")},
      {"is missing", npy_header("{'descr': '<f4'}")},
  };
  for (const Fixture& f : fixtures) {
    write_file(dir / "a.npy", f.bytes);
    refuses(f.what, [&] { io::NpyReader(dir / "a.npy"); });
  }
  write_file(dir / "a.npy", good);
  CHECK_NOTHROW(io::NpyReader(dir / "a.npy"));
}

TEST_CASE("archives that lie, and names that lead out") {
  const TempDir dir;
  const std::string array = npy_header("<f4", "(2,)") + "12345678";
  const auto one = [&](ZipEntry e) {
    if (e.name.empty()) e.name = "a.npy";
    if (e.content.empty()) e.content = array;
    return make_zip({e});
  };
  std::string lost = one({});
  lost[lost.size() - 6] = 'X';  // where the directory begins
  std::string many = one({});
  many[many.size() - 14] = many[many.size() - 12] = '\x7f';  // how many members
  std::string spanned = one({});
  spanned[spanned.size() - 18] = 1;
  std::string bomb = npy_header("<f8", "(1000000000,)");
  const auto extra = [](std::uint64_t size) {
    return little(1, 2) + little(8, 2) + little(size, 8);
  };
  std::string wrong_crc = one({.deflate = true});
  wrong_crc[14] = static_cast<char>(wrong_crc[14] ^ 1);
  const std::size_t entry = wrong_crc.find("PK\1\2");
  wrong_crc[entry + 16] = static_cast<char>(wrong_crc[entry + 16] ^ 1);
  const std::vector<Fixture> fixtures = {
      {"too short", "PK"},
      {"no directory", std::string(5000, 'P')},
      {"leads out", one({.name = "../../etc/cron.d/x.npy"})},
      {"leads out", one({.name = "/etc/passwd.npy"})},
      {"leads out", one({.name = "a/../../b.npy"})},
      {"leads out", one({.name = "..\\b.npy"})},
      {"control characters", one({.name = std::string("a\0b.npy", 7)})},
      {"control characters", one({.name = "\x1b[2Ja.npy"})},
      {"there twice",
       make_zip({{.name = "a.npy", .content = array}, {.name = "a.npy", .content = array}})},
      {"encrypted", one({.flags = 1})},
      {"packed by method 12", one({.method = 12})},
      {"is cut off", one({.stored = 0x7ffffff0, .size = 0x7ffffff0})},
      {"has two sizes", one({.size = 0x7ffffff0})},
      {"promises more than deflate", one({.deflate = true, .size = 0x7ffffff0})},
      {"beyond 63 bits", one({.size = 0xffffffff, .extra = extra(~0ull)})},
      {"64-bit size is missing",
       one({.stored = 0xffffffff, .size = 0xffffffff, .extra = extra(9)})},
      {"extra field is cut off", one({.extra = little(1, 2) + little(60000, 2)})},
      {"places outside", one({.offset = 0x7ffffff0})},
      {"is not where", one({.offset = 3})},
      {"directory", lost},
      {"too small for its members", many},
      {"several files", spanned},
      {"needs more than", one({.content = bomb})},
      {"needs more than", one({.content = bomb, .deflate = true})},
      {"holds no NumPy array", one({.name = "a.txt"})},
  };
  for (const Fixture& f : fixtures) {
    write_file(dir / "a.npz", f.bytes);
    refuses(f.what, [&] { io::NpzReader(dir / "a.npz"); });
  }
  write_file(dir / "a.npz", wrong_crc);
  refuses("checksum", [&] {
    const io::NpzReader reader(dir / "a.npz");
    float x[2];
    reader.read("a", Box({0}, {2}), View::dense(x, DType::kFloat32, {2}));
  });
  for (const bool zip64 : {false, true}) {
    write_file(dir / "a.npz",
               make_zip({{.name = "a/b.npy", .content = array, .deflate = true}}, zip64));
    CHECK(io::NpzReader(dir / "a.npz").contains("a/b"));
  }
  CHECK(dir.list() == std::vector<std::string>{"a.npz"});
}

TEST_CASE("Zarr stores that lie, and links out of them") {
  const TempDir dir;
  const std::string secret = dir / "secret";
  write_file(secret, std::string(24, 's'));
  const auto metadata = [](const std::string& shape, const std::string& chunks,
                           const std::string& compressor = "null", const std::string& dtype = "<f4",
                           const std::string& more = "") {
    return R"({"zarr_format": 2, "shape": )" + shape + R"(, "chunks": )" + chunks +
           R"(, "dtype": ")" + dtype + R"(", "compressor": )" + compressor +
           R"(, "fill_value": 0, "order": "C", "filters": null)" + more + "}";
  };
  const std::string v3 =
      R"({"zarr_format": 3, "node_type": "array", "shape": [6], "data_type": "float32",
      "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [6]}}, "fill_value": 0, "codecs": )";
  const std::string index = R"("index_codecs": [{"name": "bytes"}]}}]})";
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += '[';
  struct Store {
    std::string what;
    std::string metadata;
    std::string chunk = std::string(24, 'c');
    bool current = false;
  };
  std::string bomb_header = std::string("\2\1\1\4", 4) + little(1u << 30, 4) + little(1u << 30, 4) +
                            little(24, 4) + std::string(8, '\0');
  const std::vector<Store> stores = {
      {"damaged", ""},
      {"damaged", "{"},
      {"deeper than", deep},
      {"is missing", "{}"},
      {"is missing", "[]"},
      {"another format", metadata("[6]", "[6]").replace(16, 1, "9")},
      {"other than sizes", metadata("[-6]", "[6]")},
      {"other than sizes", metadata("[6]", "[0]")},
      {"other than sizes", metadata("[1e30]", "[6]")},
      {"other than sizes", metadata("[18446744073709551615]", "[6]")},
      {"different lengths", metadata("[6]", "[6, 6]")},
      {"beyond 63 bits", metadata("[4611686018427387904, 4611686018427387904]", "[1, 1]")},
      {"up to 2 GiB", metadata("[6]", "[4611686018427387904]")},
      {"up to 2 GiB", metadata("[6]", "[536870912]")},
      {"a chunk of 24 bytes", metadata("[6]", "[100000000]")},
      {"cannot unpack", metadata("[6]", "[6]", R"({"id": "zlib"})")},
      {"damaged chunk", metadata("[100000000]", "[100000000]", R"({"id": "lz4"})"),
       little(400'000'000, 4) + std::string(20, 'x')},
      {"damaged chunk", metadata("[268435456]", "[268435456]", R"({"id": "blosc"})"), bomb_header},
      {"damaged chunk", metadata("[6]", "[6]", R"({"id": "zstd"})"),
       std::string("\x28\xb5\x2f\xfd\xe0\xff\xff\xff\xff\xff\xff\xff\x7f", 13)},
      {"is unknown here", metadata("[6]", "[6]", R"({"id": "pickle"})")},
      {"is unknown here", metadata("[6]", "[6]", "null", "<f4", "")
                              .replace(metadata("[6]", "[6]").find("\"filters\": null"), 15,
                                       R"("filters": [{"id": "python"}])")},
      {"neither . nor /",
       metadata("[6]", "[6]", "null", "<f4", R"(, "dimension_separator": "/../")")},
      {"chunk keys by", v3 + R"([{"name": "bytes"}], "chunk_key_encoding": "../{}"})",
       std::string(24, 'c'), true},
      {"shards within shards",
       v3 + R"([{"name": "sharding_indexed", "configuration": {"chunk_shape": [3], "codecs":
            [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1], "codecs":
            [{"name": "bytes"}], "index_codecs": [{"name": "bytes"}]}}],)" +
           index,
       "", true},
      {"too short for the index",
       v3 + R"([{"name": "sharding_indexed", "configuration": {"chunk_shape": [1], "codecs":
            [{"name": "bytes"}],)" +
           index,
       std::string(24, 'c'), true},
      {"beyond its end",
       v3 + R"([{"name": "sharding_indexed", "configuration": {"chunk_shape": [6], "codecs":
            [{"name": "bytes"}],)" +
           index,
       std::string(24, 'c') + little(1ull << 62, 8) + little(1ull << 63, 8), true},
      {"a transposition of other",
       v3 + R"([{"name": "transpose", "configuration": {"order": [9]}}, {"name": "bytes"}]})", "",
       true},
      {"codecs is no list", v3 + "7}", "", true},
      {"two codecs", v3 + R"([{"name": "bytes"}, {"name": "bytes"}]})", "", true},
  };
  for (const Store& s : stores) {
    const std::string root = dir / "a.zarr";
    std::filesystem::remove_all(root);
    std::filesystem::create_directories(root + "/c");
    write_file(root + (s.current ? "/zarr.json" : "/.zarray"), s.metadata);
    write_file(root + (s.current ? "/c/0" : "/0"), s.chunk);
    refuses(s.what, [&] {
      const io::ZarrReader reader(root);
      const io::FieldVariable& v = reader.variable("array");
      float x[6];
      const std::int64_t n = std::min<std::int64_t>(v.shape[0], 6);
      reader.read("array", Box({0}, {n}), View::dense(x, DType::kFloat32, {n}));
    });
  }

  // Links: of a chunk, of the metadata, of a directory of chunks, of an array in a group.
  const auto read = [](const std::string& root) {
    const io::ZarrReader reader(root);
    float x[6];
    reader.read("array", Box({0}, {6}), View::dense(x, DType::kFloat32, {6}));
  };
  const std::string root = dir / "b.zarr";
  std::filesystem::create_directories(root);
  write_file(root + "/.zarray", metadata("[6]", "[6]"));
  std::filesystem::create_symlink(secret, root + "/0");
  refuses("links are not followed", [&] { read(root); });
  std::filesystem::remove(root + "/0");
  std::filesystem::create_directory(root + "/0");
  refuses("not a regular file", [&] { read(root); });
  write_file(root + "/.zarray",
             metadata("[6, 1]", "[6, 1]", "null", "<f4", R"(, "dimension_separator": "/")"));
  std::filesystem::remove(root + "/0");
  std::filesystem::create_directory(dir / "outside");
  write_file(dir / "outside/0", std::string(24, 's'));
  std::filesystem::create_symlink(dir / "outside", root + "/0");
  refuses("links are not followed", [&] {
    const io::ZarrReader reader(root);
    float x[6];
    reader.read("array", Box({0, 0}, {6, 1}), View::dense(x, DType::kFloat32, {6, 1}));
  });
  const std::string group = dir / "c.zarr";
  std::filesystem::create_directories(group);
  write_file(group + "/.zgroup", R"({"zarr_format": 2})");
  std::filesystem::create_directory_symlink(root, group + "/linked");
  std::filesystem::create_directory_symlink("..", group + "/up");
  CHECK(io::ZarrReader(group).variables().empty());
  std::filesystem::create_symlink(secret, group + "/.zattrs");
  refuses("links are not followed", [&] { const io::ZarrReader reader(group); });
  CHECK(read_file(secret) == std::string(24, 's'));
  CHECK_THROWS_AS(io::ZarrReader(secret), IoError);
  std::filesystem::create_directory(dir / "empty");
  refuses("not a Zarr store", [&] { io::ZarrReader(dir / "empty"); });
}

TEST_CASE("weights and structures that lie") {
  const TempDir dir;
  const auto weights = [](const std::string& header, const std::string& data = "12345678") {
    return little(header.size(), 8) + header + data;
  };
  const std::string entry = R"({"a": {"dtype": "F32", "shape": [)";
  for (const std::string& bytes :
       {std::string("tiny"), little(~0ull, 8) + "{}", little(1ull << 40, 8) + "{}",
        weights(entry + R"(4611686018427387904, 4], "data_offsets": [0, 8]}})"),
        weights(entry + R"(2], "data_offsets": [8, 0]}})"),
        weights(entry + R"(2], "data_offsets": [0, 9223372036854775807]}})"),
        weights(entry + R"(2], "data_offsets": [4294967296, 4294967304]}})"),
        weights(std::string(200'000, '['))}) {
    write_file(dir / "a.safetensors", bytes);
    refuses("a.safetensors", [&] { io::SafetensorsReader(dir / "a.safetensors"); });
  }
  const std::string comment = "Properties=species:S:1:pos:R:3\n";
  for (const std::string& text :
       {std::string("999999999999\n"), std::string("1000000000\n") + comment + "H 0 0 0\n",
        "-1\n" + comment, "99999999999999999999999\n" + comment,
        std::string("1\nProperties=species:S:1:pos:R:3:x:R:2147483647\nH 0 0 0\n"),
        std::string("1\nLattice=\"nan 0 0 0 1 0 0 0 1\" ") + comment + "H 0 0 0\n"}) {
    INFO(text);
    refuses("extxyz: file.xyz:", [&] {
      std::istringstream stream(text);
      io::ExtxyzReader reader(stream, "file.xyz");
      nn::Structure s;
      while (reader.next(s)) {
      }
    });
  }
}

}  // namespace tessera::test
