// ranks: 1
// Files are made here byte by byte, or by nibabel (tests/data/nifti.py).
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/io/nifti.hpp>

#include "io_support.hpp"

using namespace tessera;
using tessera::test::read_file;
using tessera::test::TempDir;
using tessera::test::write_file;

namespace {

std::string gzip(const std::string& bytes) {
  z_stream z = {};
  REQUIRE(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(bytes.size() + 1000, '\0');
  std::string in = bytes;
  z.next_in = reinterpret_cast<Bytef*>(in.data());
  z.avail_in = static_cast<uInt>(in.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&z, Z_FINISH) == Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

/// The bytes of a file by the tables of the standard, i first.
struct Maker {
  int version = 1;
  bool big = false;
  std::vector<std::int64_t> dim = {3, 7, 5, 4, 1, 1, 1, 1};
  int datatype = 4;
  int bitpix = 16;
  double offset = 0.0;  // 0: where the header ends
  double slope = 0.0;
  double inter = 0.0;
  std::string magic = {};
  std::size_t gap = 0;  // bytes between header and voxels
  std::string voxels = {};

  template <class T>
  std::string raw(T value) const {
    std::string s(sizeof(T), '\0');
    std::memcpy(s.data(), &value, sizeof(T));
    if (big) std::reverse(s.begin(), s.end());
    return s;
  }
  std::string bytes() const {
    const bool first = version == 1;
    const std::size_t start = first ? 352 : 544;
    std::string h(start, '\0');
    const auto put = [&](std::size_t at, const std::string& s) { h.replace(at, s.size(), s); };
    put(0, raw<std::int32_t>(first ? 348 : 540));
    put(first ? 70 : 12, raw(static_cast<std::int16_t>(datatype)));
    put(first ? 72 : 14, raw(static_cast<std::int16_t>(bitpix)));
    for (std::size_t d = 0; d < 8; ++d) {
      if (first) {
        put(40 + 2 * d, raw(static_cast<std::int16_t>(dim[d])));
        put(76 + 4 * d, raw(1.5f));
      } else {
        put(16 + 8 * d, raw(dim[d]));
        put(104 + 8 * d, raw(1.5));
      }
    }
    const double at = offset != 0.0 ? offset : static_cast<double>(start + gap);
    if (first) {
      put(108, raw(static_cast<float>(at)));
      put(112, raw(static_cast<float>(slope)));
      put(116, raw(static_cast<float>(inter)));
      put(344, magic.empty() ? std::string("n+1\0", 4) : magic);
    } else {
      put(168, raw(static_cast<std::int64_t>(at)));
      put(176, raw(slope));
      put(184, raw(inter));
      put(4, magic.empty() ? std::string("n+2\0\r\n\032\n", 8) : magic);
    }
    return h + std::string(gap, 'x') + voxels;
  }
};

struct Type {
  int code;
  int bits;
  const char* name;
  bool integer;
};
constexpr Type kTypes[] = {{2, 8, "uint8", true},      {256, 8, "int8", true},
                           {4, 16, "int16", true},     {512, 16, "uint16", true},
                           {8, 32, "int32", true},     {768, 32, "uint32", true},
                           {1024, 64, "int64", true},  {1280, 64, "uint64", true},
                           {16, 32, "float32", false}, {64, 64, "float64", false}};

/// Appends a random value of the type; returns it as a double.
double append(std::string& to, const Maker& m, const Type& t, std::mt19937_64& random) {
  const auto whole = [&]<class T>(T) {
    const auto v = static_cast<T>(random());
    to += m.raw(v);
    return static_cast<double>(v);
  };
  switch (t.code) {
    case 2:
      return whole(std::uint8_t{});
    case 256:
      return whole(std::int8_t{});
    case 4:
      return whole(std::int16_t{});
    case 512:
      return whole(std::uint16_t{});
    case 8:
      return whole(std::int32_t{});
    case 768:
      return whole(std::uint32_t{});
    case 1024:
      return whole(std::int64_t{});
    case 1280:
      return whole(std::uint64_t{});
    case 16: {
      const auto v = static_cast<float>(std::normal_distribution<>()(random));
      to += m.raw(v);
      return v;
    }
    default: {
      const double v = std::normal_distribution<>()(random);
      to += m.raw(v);
      return v;
    }
  }
}

std::vector<double> read(const io::NiftiReader& reader, const Box& box) {
  std::vector<double> values(static_cast<std::size_t>(box.volume()));
  reader.read(box, View::dense(values.data(), DType::kFloat64, box.shape()));
  return values;
}

}  // namespace

TEST_CASE("every type, version, byte order and packing, in boxes") {
  const TempDir dir;
  std::mt19937_64 random(11);
  const auto below = [&](std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random);
  };
  int number = 0;
  for (const Type& type : kTypes) {
    for (int variant = 0; variant < 16; ++variant) {
      Maker m = {.version = variant & 1 ? 2 : 1, .big = (variant & 2) != 0};
      m.datatype = type.code;
      m.bitpix = type.bits;
      const bool packed = variant & 4;
      m.gap = variant & 8 ? 16 : 0;
      if (variant & 8) {
        m.slope = 0.25;
        m.inter = -3.5;
      }
      std::vector<double> truth;
      for (int v = 0; v < 7 * 5 * 4; ++v) {
        const double value = append(m.voxels, m, type, random);
        truth.push_back(m.slope != 0.0 ? m.slope * value + m.inter : value);
      }
      // Neither name nor ending says what is in it.
      const std::string path = dir / (std::to_string(number++) + ".img");
      write_file(path, packed ? gzip(m.bytes()) : m.bytes());
      const io::NiftiReader reader(path);
      const io::NiftiHeader& h = reader.header();
      CHECK(h.version == m.version);
      CHECK(h.shape == Shape{4, 5, 7});
      CHECK(std::string(io::name(h.type)) == type.name);
      CHECK(h.spacing == std::array{1.5, 1.5, 1.5});
      for (int repeat = 0; repeat < 20; ++repeat) {
        Box box = Box::whole(h.shape);
        if (repeat > 0) {
          for (int d = 0; d < 3; ++d) {
            const std::int64_t a = below(h.shape[d] + 1), b = below(h.shape[d] + 1);
            box.set(d, {std::min(a, b), std::max(a, b)});
          }
        }
        const std::int64_t before = reader.bytes_read();
        const std::vector<double> values = read(reader, box);
        if (!packed) CHECK(reader.bytes_read() - before == box.volume() * type.bits / 8);
        std::size_t at = 0;
        bool same = true;
        for (std::int64_t k = box.lo[0]; k < box.hi[0]; ++k)
          for (std::int64_t j = box.lo[1]; j < box.hi[1]; ++j)
            for (std::int64_t i = box.lo[2]; i < box.hi[2]; ++i, ++at)
              if (box.volume() > 0)
                same = same && values[at] == truth[static_cast<std::size_t>((k * 5 + j) * 7 + i)];
        CHECK(same);
      }
      if (!type.integer || m.slope != 0.0) {
        std::vector<std::int64_t> whole(7 * 5 * 4);
        CHECK_THROWS_AS(
            reader.read(Box::whole(h.shape), View::dense(whole.data(), DType::kInt64, h.shape)),
            DTypeError);
      }
    }
  }
}

TEST_CASE("integers are exact or refused") {
  const TempDir dir;
  Maker m = {.dim = {1, 3, 1, 1, 1, 1, 1, 1}, .datatype = 1024, .bitpix = 64};
  const std::int64_t values[] = {(std::int64_t{1} << 53) + 1, -7, 200};
  for (const std::int64_t v : values) m.voxels += m.raw(v);
  write_file(dir / "a.nii", m.bytes());
  const io::NiftiReader reader(dir / "a.nii");
  std::vector<std::int64_t> whole(3);
  reader.read(Box({0}, {3}), View::dense(whole.data(), DType::kInt64, {3}));
  CHECK(whole == std::vector<std::int64_t>(std::begin(values), std::end(values)));
  std::uint8_t byte = 0;
  reader.read(Box({2}, {3}), View::dense(&byte, DType::kUInt8, {1}));
  CHECK(byte == 200);
  CHECK_THROWS_AS(reader.read(Box({1}, {2}), View::dense(&byte, DType::kUInt8, {1})), IoError);
  CHECK_THROWS_AS(reader.read(Box({1}, {4}), View::dense(&byte, DType::kUInt8, {3})), ShapeError);
}

TEST_CASE("only what is needed is read") {
  const TempDir dir;
  Maker m = {.dim = {3, 100, 100, 100, 1, 1, 1, 1}, .datatype = 2, .bitpix = 8};
  std::mt19937_64 random(1);
  for (int v = 0; v < 1'000'000; ++v) m.voxels += static_cast<char>(random());
  write_file(dir / "a.nii", m.bytes());
  write_file(dir / "a.nii.gz", gzip(m.bytes()));
  const Box slab({40, 0, 0}, {45, 100, 100});
  for (const char* name : {"a.nii", "a.nii.gz"}) {
    const io::NiftiReader reader(dir / name);
    const std::int64_t before = reader.bytes_read();
    const std::vector<double> values = read(reader, slab);
    CHECK(values[1] == static_cast<unsigned char>(m.voxels[400'001]));
    const std::int64_t bytes = reader.bytes_read() - before;
    // Nothing else, or all before it: random bytes do not become fewer.
    CHECK(bytes >= 50'000);
    CHECK(bytes <= (name[5] == '\0' ? 50'000 : 580'000));
  }
}

TEST_CASE("files of nibabel have nibabel's values") {
  const std::string folder = TESSERA_SOURCE_DIR "/tests/data/nifti/";
  std::ifstream expected(folder + "expected.txt");
  int files = 0;
  std::string name;
  for (std::size_t dims = 0; expected >> name >> dims; ++files) {
    INFO(name);
    const io::NiftiReader reader(folder + name);
    Shape shape = Dims::filled(static_cast<int>(dims), 0);
    for (int d = shape.size() - 1; d >= 0; --d) expected >> shape[d];
    CHECK(reader.header().shape == shape);
    for (const auto& row : reader.header().affine) {
      for (const double element : row) {
        double e = 0.0;
        expected >> e;
        CHECK(element == Approx(e).margin(1e-6));
      }
    }
    for (const double v : read(reader, Box::whole(shape))) {
      double e = 0.0;
      expected >> e;
      CHECK(v == e);
    }
  }
  CHECK(files == 3);
}

TEST_CASE("damaged and foreign files are refused by name, in memory like their size") {
  const TempDir dir;
  const auto refuses = [&](const std::string& bytes, const std::string& text) {
    write_file(dir / "x.nii", bytes);
    try {
      const io::NiftiReader reader(dir / "x.nii");
      read(reader, Box::whole(reader.header().shape));
      FAIL("read: " << text);
    } catch (const DataError& e) {
      const std::string message = e.what();
      INFO(message);
      CHECK(message.find(text) != std::string::npos);
      CHECK(message.find("x.nii") != std::string::npos);
      CHECK(message.size() < 400);
    }
  };
  Maker good;
  good.voxels.assign(7 * 5 * 4 * 2, 'v');
  {
    write_file(dir / "x.nii", good.bytes());
    CHECK(read(io::NiftiReader(dir / "x.nii"), Box::whole({4, 5, 7})).size() == 140);
  }
  const auto with = [&](const auto& change) {
    Maker m = good;
    change(m);
    return m.bytes();
  };
  refuses("", "does not begin with");
  refuses("text", "does not begin with");
  refuses(std::string(600, '\0'), "does not begin with");
  refuses(good.bytes().substr(0, 347), "does not begin with");
  refuses(with([](Maker& m) { m.magic = std::string("ni1\0", 4); }), "pair");
  refuses(with([](Maker& m) { m.magic = std::string(4, '\0'); }), "mark");
  refuses(with([](Maker& m) { m.datatype = 128; }), "data type 128");
  refuses(with([](Maker& m) { m.bitpix = 8; }), "8 bits");
  refuses(with([](Maker& m) { m.dim[0] = 0; }), "0 dimensions");
  refuses(with([](Maker& m) { m.dim[0] = 8; }), "8 dimensions");
  refuses(with([](Maker& m) { m.dim[2] = 0; }), "dimension 2 has size 0");
  refuses(with([](Maker& m) { m.dim[2] = -3; }), "dimension 2 has size -3");
  refuses(with([](Maker& m) { m.dim[3] = 5; }), "ends early");
  refuses(with([](Maker& m) { m.dim = {7, 32767, 32767, 32767, 32767, 32767, 1, 1}; }),
          "exceed 64 bits");
  refuses(with([](Maker& m) { m.dim = {4, 32767, 32767, 32767, 32767, 1, 1, 1}; }), "ends early");
  refuses(with([](Maker& m) { m.offset = 12; }), "byte 12");
  refuses(with([](Maker& m) { m.offset = 352.5; }), "byte 352.5");
  refuses(with([](Maker& m) { m.offset = -1; }), "byte -1");
  refuses(with([](Maker& m) { m.offset = NAN; }), "byte nan");
  refuses(with([](Maker& m) { m.offset = 1e30; }), "byte 1e+30");
  refuses(with([](Maker& m) { m.offset = 4096; }), "ends early");
  refuses(with([](Maker& m) {
            m.slope = 2;
            m.inter = NAN;
          }),
          "intercept");
  Maker second = good;
  second.version = 2;
  second.dim = {3, std::int64_t{1} << 40, std::int64_t{1} << 40, 1, 1, 1, 1, 1};
  refuses(second.bytes(), "exceed 64 bits");
  second.dim = {1, std::int64_t{1} << 60, 1, 1, 1, 1, 1, 1};
  refuses(second.bytes(), "ends early");
  // Compressed: more than deflate can hold, cut off, damaged.
  refuses(gzip(second.bytes()), "cannot become more");
  std::mt19937_64 random(3);
  for (char& c : good.voxels) c = static_cast<char>(random());  // so that it does not become small
  const std::string packed = gzip(good.bytes());
  refuses(gzip(with([](Maker& m) { m.voxels.pop_back(); })), "ends early");
  refuses(packed.substr(0, packed.size() - 20), "ends early");
  std::string damaged = packed;
  damaged[packed.size() - 6] ^= 1;  // the checksum
  refuses(damaged, "damaged");
  damaged = packed;
  for (std::size_t i = 12; i < 40; ++i) damaged[i] = '\xff';
  refuses(damaged, "damaged");
  CHECK_THROWS_AS(io::NiftiReader(dir / "none.nii"), IoError);
}

TEST_CASE("bytes changed at random never do worse than an error") {
  const TempDir dir;
  std::mt19937_64 random(29);
  Maker good;
  good.voxels.assign(7 * 5 * 4 * 2, 'v');
  int opened = 0;
  for (int file = 0; file < 4000; ++file) {
    Maker m = good;
    m.version = 1 + static_cast<int>(random() % 2);
    std::string bytes = m.bytes();
    const bool packed = random() % 3 == 0;
    if (packed && random() % 2 == 0) bytes = gzip(bytes);
    for (std::uint64_t n = 1 + random() % 3; n > 0; --n)
      bytes[random() % std::min<std::size_t>(bytes.size(), 360)] = static_cast<char>(random());
    if (packed && static_cast<unsigned char>(bytes[0]) != 0x1f) bytes = gzip(bytes);
    write_file(dir / "x.nii", bytes);
    try {
      const io::NiftiReader reader(dir / "x.nii");
      REQUIRE(reader.header().shape.product() <= 1032 * std::ssize(bytes));
      read(reader, Box::whole(reader.header().shape));
      ++opened;
    } catch (const IoError&) {
    }
  }
  CHECK(opened > 1000);
  CHECK(opened < 3800);
}

TEST_CASE("written together, read back") {
  const TempDir dir;
  for (const std::int64_t rows : {5, 40'000}) {  // the second needs version 2
    const Shape shape = {3, rows, 2};
    for (const DType dtype : {DType::kUInt8, DType::kInt32, DType::kFloat32, DType::kFloat64}) {
      const std::string path = dir / "a.nii";
      const auto value = [&](std::int64_t at) {
        return static_cast<double>(at % 100) * (is_floating(dtype) ? 0.25 : 1.0);
      };
      const auto errors = tessera::test::run_as_ranks(3, [&](const io::Collective& ranks) {
        io::NiftiSpec spec = {.shape = shape, .dtype = dtype, .spacing = {1, 2, 3}};
        spec.affine = {{{1, 0, 0, -90}, {0, 2, 0, 4.5}, {0, 0, 3, 7}}};
        spec.description = "classes";
        io::NiftiWriter writer(path, spec, ranks);
        const std::int64_t from = rows * ranks.rank / 3, to = rows * (ranks.rank + 1) / 3;
        const Box box({0, from, 0}, {3, to, 2});
        std::vector<double> values;
        for_each_index(
            box, [&](const Index& i) { values.push_back(value((i[0] * rows + i[1]) * 2 + i[2])); });
        if (is_floating(dtype)) {
          writer.write_box(box, View::dense(values.data(), DType::kFloat64, box.shape()));
        } else {
          std::vector<std::int64_t> whole(values.begin(), values.end());
          writer.write_box(box, View::dense(whole.data(), DType::kInt64, box.shape()));
        }
        writer.commit();
      });
      for (const std::string& e : errors) CHECK(e.empty());
      const io::NiftiReader reader(path);
      CHECK(reader.header().version == (rows == 5 ? 1 : 2));
      CHECK(reader.header().shape == shape);
      CHECK(reader.header().description == "classes");
      CHECK(reader.header().spacing == std::array{1.0, 2.0, 3.0});
      CHECK(reader.header().affine[1] == std::array{0.0, 2.0, 0.0, 4.5});
      CHECK(reader.header().slope == 1.0);
      const std::vector<double> values = read(reader, Box::whole(shape));
      bool same = true;
      for (std::size_t i = 0; i < values.size(); ++i)
        same = same && values[i] == value(static_cast<std::int64_t>(i));
      CHECK(same);
      CHECK(dir.list() == std::vector<std::string>{"a.nii"});
    }
  }
  CHECK_THROWS_AS(io::NiftiWriter(dir / "a.nii.gz", {.shape = {2}}), UsageError);
  CHECK_THROWS_AS(io::NiftiWriter(dir / "b.nii", {.shape = {2, 0}}), UsageError);
  CHECK_THROWS_AS(io::NiftiWriter(dir / "b.nii", {.shape = Dims::filled(8, 1)}), UsageError);
  io::NiftiWriter writer(dir / "b.nii", {.shape = {2}, .dtype = DType::kUInt8});
  CHECK_THROWS_AS(writer.commit(), UsageError);
}
