// ranks: 1
// deep: 1
// Damaged files of the formats that are parsed here: read or refused, never worse, in memory that
// the file's size bounds.
#include <blosc.h>
#include <lz4.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <tessera/nn/io/extxyz.hpp>
#include <tessera/nn/io/nifti.hpp>
#include <tessera/nn/io/npy.hpp>
#include <tessera/nn/io/zarr.hpp>

#include "fuzz_support.hpp"
#include "io/codecs.hpp"
#include "io_support.hpp"
#include "zip_support.hpp"

namespace tessera::test {
namespace {

constexpr std::uint64_t kSeed = 20'260'102;

/// Counts what happened to files, and checks how.
class Outcome {
 public:
  explicit Outcome(const char* parser) : parser_(parser) {}

  /// Reads a file of `size` bytes by `read` in `memory` bytes.
  template <class F>
  void file(std::int64_t size, std::int64_t memory, F&& read) {
    ++files_;
    std::string problem;
    try {
      const AllocationLimit limit(memory);
      read();
      ++opened_;
    } catch (const IoError& e) {
      problem = e.what();
    } catch (const ShapeError& e) {
      problem = e.what();
    } catch (const std::exception& e) {
      FAIL(parser_ << " file " << files_ << " of " << size << " bytes: " << e.what());
    }
    if (problem.empty()) return;
    if (problem.size() > 2000) FAIL(parser_ << " file " << files_ << ": a long message");
    const std::size_t reason = problem.find('(');
    if (reasons_.size() < 1000)
      reasons_.insert(reason == std::string::npos ? problem.substr(0, 40)
                                                  : problem.substr(reason, 16));
  }
  void check(std::size_t reasons) const {
    std::cout << parser_ << ": " << opened_ << " of " << files_ << " files opened, "
              << reasons_.size() << " reasons" << std::endl;
    CHECK(opened_ > files_ / 20);
    CHECK(opened_ < files_ * 3 / 4);
    CHECK(reasons_.size() >= reasons);
  }

 private:
  const char* parser_;
  int files_ = 0;
  int opened_ = 0;
  std::set<std::string> reasons_;
};

/// Reads all of what a reader promises, in boxes of at most 5 points per dimension at both ends.
void read_ends(const io::FieldReader& reader) {
  for (const io::FieldVariable& v : reader.variables()) {
    if (!v.numeric) continue;
    for (const bool end : {false, true}) {
      Box box = Box::whole(v.shape);
      for (int d = 0; d < v.shape.size(); ++d) {
        const std::int64_t n = std::min<std::int64_t>(v.shape[d], v.shape.size() > 4 ? 2 : 5);
        box.set(d, end ? Interval{v.shape[d] - n, v.shape[d]} : Interval{0, n});
      }
      std::vector<double> values(static_cast<std::size_t>(box.volume()));
      reader.read(v.name, box, View::dense(values.data(), DType::kFloat64, box.shape()));
    }
  }
}

std::string npy_file(Damage& damage) {
  static const std::vector<std::pair<std::string, std::size_t>> types = {
      {"<f4", 4}, {">f8", 8}, {"|u1", 1}, {"<i2", 2}, {"|b1", 1}, {"<c8", 8}, {"<f2", 2}};
  const auto& [descr, size] = damage.any(types);
  std::string shape = "(";
  std::size_t bytes = size;
  for (std::uint64_t d = damage.below(4); d > 0; --d) {
    const std::uint64_t n = damage.below(8) == 0 ? 0 : 1 + damage.below(5);
    shape += std::to_string(n) + ",";
    bytes *= n;
  }
  std::string dictionary = "{'descr': '" + descr +
                           "', 'fortran_order': " + (damage.below(2) == 0 ? "True" : "False") +
                           ", 'shape': " + shape + "), }";
  static const std::vector<std::string> words = {"'descr'",
                                                 "'shape'",
                                                 "'fortran_order'",
                                                 "True",
                                                 "False",
                                                 "{",
                                                 "}",
                                                 "(",
                                                 ")",
                                                 "[",
                                                 ",",
                                                 ":",
                                                 "'",
                                                 "\"",
                                                 "<f4",
                                                 ">c16",
                                                 "|O",
                                                 "<U5",
                                                 "<M8[ns]",
                                                 "[('a', '<f4')]",
                                                 "((",
                                                 "None",
                                                 "\\",
                                                 "99999999999",
                                                 "L"};
  const std::uint64_t kind = damage.below(10);
  if (kind >= 2 && kind <= 5) damage.numbers(dictionary);
  if (kind >= 4 && kind <= 7) damage.words(dictionary, words);
  std::string file = npy_header(dictionary, 1 + static_cast<int>(damage.below(3)));
  for (std::size_t i = 0; i < bytes; ++i) file += static_cast<char>(damage.below(256));
  if (kind >= 7)
    for (std::uint64_t n = 1 + damage.below(3); n > 0; --n) damage.bytes(file);
  return file;
}

}  // namespace

TEST_CASE("NumPy arrays") {
  Damage damage(fuzz_seed("npy", kSeed));
  Outcome outcome("npy");
  const MemoryFile file;
  const std::string path = file.path();
  for (int i = fuzz_files(); i > 0; --i) {
    const std::string bytes = npy_file(damage);
    file.fill(bytes);
    outcome.file(std::ssize(bytes), 64 * std::ssize(bytes) + (32 << 10),
                 [&] { read_ends(io::NpyReader(path)); });
  }
  outcome.check(12);
}

TEST_CASE("archives of NumPy arrays") {
  Damage damage(fuzz_seed("npz", kSeed));
  Outcome outcome("npz");
  const MemoryFile file;
  const std::string path = file.path();
  static const std::vector<std::string> names = {"a.npy",
                                                 "b.npy",
                                                 "a/b.npy",
                                                 "../a.npy",
                                                 "/a.npy",
                                                 "a\\b.npy",
                                                 "..",
                                                 "x/../y.npy",
                                                 "",
                                                 "a.txt",
                                                 std::string("a\0.npy", 6),
                                                 ".npy",
                                                 "\n.npy"};
  static const std::vector<std::int64_t> sizes = {0, 1, 40, 0xffffffff, 0x7fffffff, 0xfffffffe};
  for (int i = fuzz_files(); i > 0; --i) {
    std::vector<ZipEntry> entries;
    const std::uint64_t kind = damage.below(10);
    for (std::uint64_t n = 1 + damage.below(3); n > 0; --n) {
      ZipEntry e;
      e.name = kind == 2 ? damage.any(names) : tessera::str("array", n, ".npy");
      e.content = npy_file(damage);
      e.deflate = damage.below(2) == 0;
      if (kind == 3) e.stored = damage.any(sizes);
      if (kind == 4) e.size = damage.any(sizes);
      if (kind == 5) e.offset = damage.any(sizes);
      if (kind == 6 && damage.below(3) == 0) e.method = static_cast<int>(damage.below(15));
      if (kind == 6 && damage.below(3) == 0) e.flags = static_cast<std::uint16_t>(damage.below(4));
      if (kind == 7) {
        e.size = damage.below(2) == 0 ? 0xffffffff : -1;
        e.stored = damage.below(2) == 0 ? 0xffffffff : -1;
        e.extra = little(1, 2) + little(damage.below(30), 2) +
                  little(damage.below(2) == 0 ? e.content.size() : damage.below(1ull << 63), 8) +
                  little(e.content.size(), 8);
      }
      entries.push_back(std::move(e));
    }
    std::string bytes = make_zip(entries, damage.below(4) == 0);
    if (kind >= 8) {
      // The ends of directory and file hold most of what can be wrong.
      std::string tail = bytes.substr(bytes.size() - std::min<std::size_t>(bytes.size(), 120));
      bytes.resize(bytes.size() - tail.size());
      damage.bytes(damage.below(2) == 0 ? tail : bytes);
      bytes += tail;
    }
    file.fill(bytes);
    outcome.file(std::ssize(bytes), 64 * std::ssize(bytes) + (256 << 10),
                 [&] { read_ends(io::NpzReader(path)); });
  }
  outcome.check(20);
}

TEST_CASE("Zarr stores") {
  Damage damage(fuzz_seed("zarr", kSeed));
  Outcome outcome("zarr");
  // In memory where the system has such a directory: files of a million stores.
  const std::filesystem::path shm = "/dev/shm";
  const std::filesystem::path root =
      (std::filesystem::is_directory(shm) ? shm : std::filesystem::temp_directory_path()) /
      tessera::str("tessera-fuzz-", getpid());
  struct Remove {
    std::filesystem::path path;
    ~Remove() { std::filesystem::remove_all(path); }
  } remove{root};
  std::filesystem::create_directories(root / "2/0");
  std::filesystem::create_directories(root / "3/c/0");

  // A chunk of 2 x 3 floats, in all packings.
  const float numbers[6] = {1, 2, 3, 4, 5, 6};
  const std::string plain(reinterpret_cast<const char*>(numbers), sizeof(numbers));
  const auto packed = [&](const auto& pack) {
    std::string out(200, '\0');
    out.resize(static_cast<std::size_t>(pack(out.data(), out.size())));
    return out;
  };
  const std::string zlib = packed([&](char* to, std::size_t room) {
    uLongf size = room;
    compress(reinterpret_cast<Bytef*>(to), &size, reinterpret_cast<const Bytef*>(plain.data()), 24);
    return size;
  });
  const std::string zstd = packed(
      [&](char* to, std::size_t room) { return ZSTD_compress(to, room, plain.data(), 24, 3); });
  const std::string lz4 =
      little(24, 4) + packed([&](char* to, std::size_t room) {
        return LZ4_compress_default(plain.data(), to, 24, static_cast<int>(room));
      });
  const std::string blosc = packed([&](char* to, std::size_t room) {
    return blosc_compress_ctx(5, 1, 4, 24, plain.data(), to, room, "lz4", 0, 1);
  });
  const auto with_crc = [](const std::string& text) {
    return text +
           little(io::crc32c(reinterpret_cast<const std::byte*>(text.data()), text.size()), 4);
  };
  // A shard of two chunks of 1 x 3, the second not there.
  const std::string shard =
      plain.substr(0, 12) + with_crc(little(0, 8) + little(12, 8) + std::string(16, '\xff'));

  struct Kind {
    std::string metadata;
    std::string chunk;
    bool old;
  };
  const auto old = [](const std::string& compressor, const std::string& order = "C") {
    return R"({"zarr_format": 2, "shape": [3, 5], "chunks": [2, 3], "dtype": "<f4", "compressor": )" +
           compressor + R"(, "fill_value": 0.5, "order": ")" + order +
           R"(", "filters": null, "dimension_separator": "/"})";
  };
  const auto current = [](const std::string& codecs) {
    return R"({"zarr_format": 3, "node_type": "array", "shape": [3, 5], "data_type": "float32",
      "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
      "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
      "fill_value": "NaN", "attributes": {"units": "m", "valid_range": [0.0, 9.5]},
      "dimension_names": ["y", "x"], "codecs": [)" +
           codecs + "]}";
  };
  const std::string bytes_codec = R"({"name": "bytes", "configuration": {"endian": "little"}})";
  const std::vector<Kind> kinds = {
      {old("null"), plain, true},
      {old("null", "F"), plain, true},
      {old(R"({"id": "zlib", "level": 5})"), zlib, true},
      {old(R"({"id": "blosc", "cname": "lz4"})"), blosc, true},
      {old(R"({"id": "zstd"})"), zstd, true},
      {old(R"({"id": "lz4"})"), lz4, true},
      {current(bytes_codec), plain, false},
      {current(bytes_codec + R"(, {"name": "zstd"}, {"name": "crc32c"})"), with_crc(zstd), false},
      {current(R"({"name": "transpose", "configuration": {"order": [1, 0]}}, )" + bytes_codec),
       plain, false},
      {current(R"({"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 3],
        "codecs": [)" +
               bytes_codec + R"(], "index_codecs": [)" + bytes_codec +
               R"(, {"name": "crc32c"}], "index_location": "end"}})"),
       shard, false},
  };
  static const std::vector<std::string> words = {"\"shape\"",
                                                 "\"chunks\"",
                                                 "\"dtype\"",
                                                 "\"codecs\"",
                                                 "\"name\"",
                                                 "\"configuration\"",
                                                 "[",
                                                 "]",
                                                 "{",
                                                 "}",
                                                 ",",
                                                 ":",
                                                 "null",
                                                 "\"<f4\"",
                                                 "\"|O\"",
                                                 "\"gzip\"",
                                                 "\"bytes\"",
                                                 "\"crc32c\"",
                                                 "\"transpose\"",
                                                 "\"..\"",
                                                 "\"/\"",
                                                 "-",
                                                 "[[[[",
                                                 "\"sharding_indexed\"",
                                                 "\"float64\"",
                                                 "\"F\""};
  const auto write = [](const std::filesystem::path& path, const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  };
  for (int i = fuzz_files(); i > 0; --i) {
    Kind kind = damage.any(kinds);
    const std::uint64_t how = damage.below(10);
    if (how >= 1 && how <= 4) damage.numbers(kind.metadata);
    if (how >= 4 && how <= 6) damage.words(kind.metadata, words);
    if (how == 7) damage.bytes(kind.metadata);
    if (how >= 7)
      for (std::uint64_t n = 1 + damage.below(2); n > 0; --n) damage.bytes(kind.chunk);
    const std::filesystem::path store = root / (kind.old ? "2" : "3");
    write(store / (kind.old ? ".zarray" : "zarr.json"), kind.metadata);
    write(store / (kind.old ? "0/0" : "c/0/0"), kind.chunk);
    const std::int64_t size = std::ssize(kind.metadata) + std::ssize(kind.chunk);
    // A tree of JSON takes some ten times its text.
    outcome.file(size, 64 * size + (512 << 10), [&] { read_ends(io::ZarrReader(store.string())); });
  }
  outcome.check(30);
}

TEST_CASE("NIfTI volumes") {
  Damage damage(fuzz_seed("nifti", kSeed));
  Outcome outcome("nifti");
  const MemoryFile file;
  const std::string path = file.path();
  std::vector<std::string> seeds;
  for (const char* name : {"double.nii", "scaled.nii.gz", "wide.nii.gz"})
    seeds.push_back(read_file(tessera::str(TESSERA_SOURCE_DIR "/tests/data/nifti/", name)));
  const auto gzip = [](const std::string& content) {
    const std::string packed = raw_deflate(content);
    const auto crc =
        crc32(0, reinterpret_cast<const Bytef*>(content.data()), static_cast<uInt>(content.size()));
    return std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10) + packed + little(crc, 4) +
           little(content.size(), 4);
  };
  for (int i = fuzz_files(); i > 0; --i) {
    std::string bytes = damage.any(seeds);
    const std::uint64_t how = damage.below(8);
    const bool packed = bytes[0] == '\x1f';
    if (how > 0 && (how < 6 || packed)) {
      for (std::uint64_t n = 1 + damage.below(3); n > 0; --n) damage.bytes(bytes);
    } else if (how > 0) {  // damaged first, then packed
      damage.bytes(bytes);
      if (damage.below(2) == 0) bytes = gzip(bytes);
    }
    file.fill(bytes);
    outcome.file(std::ssize(bytes), 64 * std::ssize(bytes) + (1 << 20), [&] {
      const io::NiftiReader reader(path);
      Box box = Box::whole(reader.header().shape);
      for (int d = 0; d < box.dims(); ++d) box.hi[d] = std::min<std::int64_t>(box.hi[d], 4);
      std::vector<double> values(static_cast<std::size_t>(box.volume()));
      reader.read(box, View::dense(values.data(), DType::kFloat64, box.shape()));
    });
  }
  outcome.check(10);
}

TEST_CASE("extended XYZ") {
  Damage damage(fuzz_seed("extxyz", kSeed));
  Outcome outcome("extxyz");
  const std::string frame =
      "3\nLattice=\"5 0 0 0.5 6 0 0 0 7\" Properties=species:S:1:pos:R:3:REF_forces:R:3:tag:I:1 "
      "REF_energy=-12.25 REF_stress=\"1 2 3 4 5 6\" config_type=\"a b\" pbc=\"T T F\" flag\n"
      "Si 0.0 0.0 0.0 0.1 0.2 0.3 4\nO 1.5D0 0.25 +1.0 -1e-3 0.0 0.0 5\n8 0.5 2.25 1.0 1 2 3 6\n";
  static const std::vector<std::string> words = {"\"",
                                                 "{",
                                                 "}",
                                                 "=",
                                                 "\n",
                                                 " ",
                                                 "nan",
                                                 "1e999",
                                                 "-",
                                                 "T",
                                                 ":",
                                                 "pos",
                                                 std::string("\0", 1),
                                                 "REF_energy",
                                                 "99999999",
                                                 "H",
                                                 "\\",
                                                 "[",
                                                 "0 0 0",
                                                 "\r",
                                                 "Lattice",
                                                 "1",
                                                 "R:3",
                                                 "S:1",
                                                 "I:4294967296",
                                                 "Properties=",
                                                 "pbc"};
  for (int i = fuzz_files(); i > 0; --i) {
    std::string text = frame + (damage.below(2) == 0 ? frame : "");
    const std::uint64_t how = damage.below(8);
    if (how >= 1 && how <= 3) damage.numbers(text);
    if (how >= 3 && how <= 5) damage.words(text, words);
    if (how >= 6) damage.bytes(text);
    outcome.file(std::ssize(text), 64 * std::ssize(text) + (64 << 10), [&] {
      std::istringstream stream(text);
      io::ExtxyzReader reader(stream, "file.xyz");
      nn::Structure s;
      while (reader.next(s)) {
      }
    });
  }
  outcome.check(10);
}

}  // namespace tessera::test
