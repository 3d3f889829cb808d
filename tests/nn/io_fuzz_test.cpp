// ranks: 1
// deep: 1
// Damaged safetensors files: read or refused, never worse, in memory that the file's size bounds.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <iostream>
#include <set>
#include <tessera/nn/io/safetensors.hpp>

#include "fuzz_support.hpp"

namespace tessera::test {
namespace {

/// A tensor of the header as texts, so that each can be anything.
struct Field {
  std::string name;
  std::string dtype;
  std::vector<std::string> shape;
  std::vector<std::string> offsets;
  std::string extra;  ///< more members, with a comma in front
};

struct File {
  std::string length;  ///< 8 bytes; empty: the right ones
  std::string metadata;
  std::vector<Field> fields;
  std::string tail;  ///< behind the header's last brace
  std::size_t data_bytes = 0;

  std::string header() const {
    std::string text = "{" + metadata;
    for (const Field& f : fields) {
      if (text.size() > 1) text += ",";
      text += "\"" + f.name + "\":{\"dtype\":\"" + f.dtype + "\",\"shape\":[" + join(f.shape) +
              "],\"data_offsets\":[" + join(f.offsets) + "]" + f.extra + "}";
    }
    return text + "}" + tail;
  }
  std::string bytes(Damage& damage) const {
    const std::string head = header();
    std::string file = length;
    if (file.empty()) {
      const std::uint64_t size = head.size();
      file.assign(reinterpret_cast<const char*>(&size), 8);
    }
    file += head;
    for (std::size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(damage.below(256));
    return file;
  }

 private:
  static std::string join(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& w : words) text += (text.empty() ? "" : ",") + w;
    return text;
  }
};

class Fuzzer : private Damage {
 public:
  using Damage::Damage;

  std::string file() {
    File f = valid();
    const std::uint64_t kind = below(10);  // 0: left as it is
    if (kind >= 1 && kind <= 7) {
      for (std::uint64_t n = 1 + below(3); n > 0; --n) damage(f);
    }
    std::string text = f.bytes(*this);
    if (kind >= 6) {
      for (std::uint64_t n = 1 + below(4); n > 0; --n) bytes(text);
    }
    return text;
  }

 private:
  File valid() {
    static const std::pair<const char*, std::size_t> types[] = {
        {"F32", 4}, {"F64", 8}, {"BF16", 2}, {"I32", 4}, {"I64", 8}, {"U8", 1}, {"BOOL", 1}};
    File f;
    if (below(2) == 0) f.metadata = R"("__metadata__":{"format":"pt","step":"12"})";
    const std::uint64_t count = below(5);
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto& [name, size] = types[below(std::size(types))];
      Field field = {tessera::str("t", i), name, {}, {}, ""};
      std::size_t bytes = size;
      for (std::uint64_t d = below(4); d > 0; --d) {
        const std::uint64_t n = below(8) == 0 ? 0 : 1 + below(5);
        field.shape.push_back(std::to_string(n));
        bytes *= n;
      }
      field.offsets = {std::to_string(f.data_bytes), std::to_string(f.data_bytes + bytes)};
      f.data_bytes += bytes;
      f.fields.push_back(std::move(field));
    }
    if (below(2) == 0) f.tail = std::string(below(9), ' ');
    return f;
  }

  void damage(File& f) {
    if (f.fields.empty()) f.fields.push_back({"x", "U8", {"0"}, {"0", "0"}, ""});
    Field& field = f.fields[below(f.fields.size())];
    switch (below(14)) {
      case 0: {  // the length of the header
        static const std::uint64_t lengths[] = {~std::uint64_t{0},
                                                std::uint64_t{1} << 63,
                                                std::uint64_t{1} << 32,
                                                100'000'001,
                                                99'999'999,
                                                0,
                                                1,
                                                2};
        std::uint64_t value = lengths[below(std::size(lengths))];
        if (below(2) == 0) value = f.header().size() + below(5) - 2;
        f.length.assign(reinterpret_cast<const char*>(&value), 8);
        break;
      }
      case 1:  // offsets: overlapping, beyond the end, in the wrong order
        if (!field.offsets.empty()) field.offsets[below(field.offsets.size())] = number();
        break;
      case 2:
        field.offsets = any(f.fields).offsets;
        break;
      case 3:
        std::reverse(field.offsets.begin(), field.offsets.end());
        break;
      case 4:  // shapes: overflow to a product that fits, wrong sizes, too many dimensions
        field.shape = {"4294967296", "4294967296", std::to_string(below(4))};
        break;
      case 5:
        field.shape.insert(
            field.shape.begin() + static_cast<std::ptrdiff_t>(below(field.shape.size() + 1)),
            number());
        break;
      case 6:
        field.shape.assign(below(70), below(2) == 0 ? "1" : "2");
        break;
      case 7:  // names twice, reserved, strange
        field.name = any(f.fields).name;
        break;
      case 8: {
        static const char* const names[] = {"",     "__metadata__", "\\u0000", "\\ud800",
                                            "\xff", "a\\/b\\",      "\n",      "\xc3\xa9"};
        field.name = below(9) == 0 ? std::string(below(5000), 'n') : names[below(std::size(names))];
        break;
      }
      case 9: {
        static const char* const types[] = {"F16", "F8_E5M2", "", "f32", "F64", "BOOL", "C64"};
        field.dtype = types[below(std::size(types))];
        break;
      }
      case 10: {  // members twice, unknown, of the wrong kind
        static const char* const members[] = {R"(,"dtype":"F32")",        R"(,"shape":[1])",
                                              R"(,"data_offsets":[0,4])", R"(,"x":1)",
                                              R"(,"shape":{"a":[]})",     R"(,"dtype":[[[[]]]])"};
        field.extra += members[below(std::size(members))];
        break;
      }
      case 11: {
        static const char* const metadata[] = {
            R"("__metadata__":{"a":1})",           R"("__metadata__":[])",
            R"("__metadata__":{"a":"1","a":"2"})", R"("__metadata__":{},"__metadata__":{})",
            R"("__metadata__":{"a":{"b":"c"}})",   R"("__metadata__":null)"};
        f.metadata = metadata[below(std::size(metadata))];
        break;
      }
      case 12: {
        static const char* const tails[] = {"}", "{}", ",", "x", "\n\n", "]", "\"", "//"};
        f.tail += tails[below(std::size(tails))];
        if (below(4) == 0) f.tail += std::string(below(20'000), below(2) == 0 ? '[' : '{');
        break;
      }
      default:
        f.data_bytes = below(2) == 0 ? f.data_bytes + 1 + below(9)
                                     : f.data_bytes - std::min<std::size_t>(f.data_bytes, below(9));
    }
  }
};

/// What a reader that accepts a file promises.
void check_promises(const io::SafetensorsReader& reader, std::int64_t file_bytes) {
  std::set<std::string> names;
  std::int64_t end = 0;
  for (const auto& entry : reader.entries()) {
    REQUIRE(names.insert(entry.name).second);
    // At least: F16 counts as f32.
    std::int64_t bytes =
        entry.dtype == DType::kFloat32 ? 2 : static_cast<std::int64_t>(size_of(entry.dtype));
    for (const std::int64_t n : entry.shape) REQUIRE(!__builtin_mul_overflow(bytes, n, &bytes));
    REQUIRE(entry.offset >= std::max<std::int64_t>(end, 10));
    end = entry.offset + bytes;
    REQUIRE(end <= file_bytes);
    std::vector<double> values(static_cast<std::size_t>(entry.shape.product()));
    reader.read_box(entry.name, Box::whole(entry.shape),
                    View::dense(values.data(), DType::kFloat64, entry.shape));
  }
}

}  // namespace

TEST_CASE("damaged safetensors files are read or refused within memory like their size") {
  const MemoryFile file;
  const std::string path = file.path();
  const std::uint64_t seed = fuzz_seed("safetensors", 20'260'101);
  Fuzzer fuzzer(seed);
  const int files = fuzz_files();
  int opened = 0;
  std::set<std::string> reasons;
  for (int i = 0; i < files; ++i) {
    const std::string bytes = fuzzer.file();
    file.fill(bytes);
    const auto size = static_cast<std::int64_t>(bytes.size());
    std::string problem;
    try {
      // An entry of 50 bytes of JSON becomes some hundred bytes; values are read as doubles.
      const AllocationLimit limit(16 * size + (32 << 10));
      const io::SafetensorsReader reader(path);
      check_promises(reader, size);
      ++opened;
    } catch (const IoError& e) {
      problem = e.what();
    } catch (const std::exception& e) {
      FAIL("seed " << seed << ", file " << i << " of " << size << " bytes: " << e.what());
    }
    if (problem.empty()) continue;
    if (problem.size() > 8000) FAIL("seed " << seed << ", file " << i << ": a long message");
    const std::size_t reason = problem.find('(');
    if (reasons.size() < 1000) reasons.insert(problem.substr(reason, 24));
  }
  std::cout << opened << " of " << files << " files opened" << std::endl;
  CHECK(opened > files / 20);
  CHECK(opened < files / 2);
  CHECK(reasons.size() > 20);
}

}  // namespace tessera::test
