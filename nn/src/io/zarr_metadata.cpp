#include "io/zarr_metadata.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/base64.hpp"
#include "io/json_attributes.hpp"
#include "io/stored_type.hpp"

namespace tessera::io {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kLargestChunk = std::int64_t{1} << 31;

class Parser {
 public:
  Parser(const std::string& where, ZarrArray& array) : where_(where), array_(array) {}

  [[noreturn]] void fail(const std::string& problem) const {
    throw DataError(str(where_, ": not a usable Zarr array (", problem, ")."));
  }
  const Json& member(const Json& object, const char* key) const {
    if (!object.is_object() || !object.contains(key)) fail(str("\"", key, "\" is missing"));
    return object.at(key);
  }
  std::string text(const Json& value, const char* what) const {
    if (!value.is_string()) fail(str(what, " is no text"));
    return value.get<std::string>().substr(0, 100);
  }
  std::vector<std::int64_t> sizes(const Json& value, const char* what, std::int64_t least) const {
    if (!value.is_array()) fail(str(what, " is no list"));
    std::vector<std::int64_t> result;
    for (const Json& n : value) {
      if (!n.is_number_integer() ||
          (n.is_number_unsigned() && n.get<std::uint64_t>() > std::uint64_t{1} << 62) ||
          n.get<std::int64_t>() < least)
        fail(str(what, " holds something other than sizes"));
      result.push_back(n.get<std::int64_t>());
    }
    return result;
  }

  void set_type(const std::optional<NumpyType>& type) {
    array_.variable.numeric = type.has_value();
    if (!type) return;
    array_.type = type->type;
    array_.codecs.swapped = type->big_endian;
    complex_ = type->complex;
  }
  /// The shapes, with the pairs of complex numbers as last dimension.
  void set_shapes(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& chunk) {
    if (chunk.size() != shape.size()) fail("shape and chunks have different lengths");
    dims_ = static_cast<int>(shape.size());
    if (std::ssize(shape) + (complex_ ? 1 : 0) > kMaxDims) array_.variable.numeric = false;
    if (!array_.variable.numeric) return;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      array_.variable.shape.push_back(shape[d]);
      array_.chunk.push_back(chunk[d]);
    }
    if (complex_) {
      array_.variable.shape.push_back(2);
      array_.chunk.push_back(2);
    }
    if (!checked_bytes(array_.variable.shape, array_.type)) fail("a shape beyond 63 bits");
    check_chunk();
  }
  void check_chunk() const {
    const auto bytes = checked_bytes(array_.chunk, array_.type);
    if (!bytes || *bytes >= kLargestChunk)
      fail(str("chunks of ", array_.chunk, " ", io::name(array_.type),
               "; chunks of up to 2 GiB can be read"));
  }
  void set_dims(const std::vector<std::string>& names) {
    for (int d = 0; d < dims_; ++d)
      array_.variable.dims.push_back(std::ssize(names) == dims_ &&
                                             !names[static_cast<std::size_t>(d)].empty()
                                         ? names[static_cast<std::size_t>(d)]
                                         : str("dim_", d));
    if (complex_) array_.variable.dims.push_back("complex");
  }
  Dims column_major() const { return column_major_order(array_.chunk.size(), complex_); }
  bool complex() const { return complex_; }
  int dims() const { return dims_; }

  void put_number(const Json& value, std::size_t at) {
    const std::int64_t size = size_of(array_.type);
    std::byte* const to = array_.fill.data() + at;
    const auto store = [&](auto x) { std::memcpy(to, &x, sizeof(x)); };
    if (value.is_null()) return;
    if (is_floating(array_.type)) {
      double x = 0;
      if (value.is_string() && value.get_ref<const std::string&>().rfind("0x", 0) == 0) {
        const std::uint64_t bits = hex(value.get_ref<const std::string&>());
        std::memcpy(to, &bits, static_cast<std::size_t>(size));
        return;
      }
      if (value.is_number()) {
        x = value.get<double>();
      } else if (value == "NaN") {
        x = std::numeric_limits<double>::quiet_NaN();
      } else if (value == "Infinity" || value == "-Infinity") {
        x = value == "Infinity" ? HUGE_VAL : -HUGE_VAL;
      } else {
        fail("fill_value is no number");
      }
      if (array_.type == StoredType::kFloat64) return store(x);
      if (array_.type == StoredType::kFloat32) return store(static_cast<float>(x));
      if (array_.type == StoredType::kBFloat16) return store(BFloat16(static_cast<float>(x)).bits);
      return store(half(x));
    }
    if (value.is_boolean()) return store(static_cast<std::uint8_t>(value.get<bool>() ? 1 : 0));
    if (!value.is_number()) fail("fill_value is no number");
    // Little-endian: the low bytes are those of the narrower type.
    std::uint64_t bits = 0;
    if (value.is_number_unsigned()) {
      bits = value.get<std::uint64_t>();
    } else if (value.is_number_integer()) {
      bits = static_cast<std::uint64_t>(value.get<std::int64_t>());
    } else {
      const double x = value.get<double>();
      if (!(std::abs(x) < 9e18)) fail("fill_value does not fit the type");
      bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(x));
    }
    std::memcpy(to, &bits, static_cast<std::size_t>(size));
  }
  void set_fill(const Json& value) {
    const auto size = static_cast<std::size_t>(size_of(array_.type));
    array_.fill.assign(complex_ ? 2 * size : size, std::byte{0});
    if (!complex_) return put_number(value, 0);
    if (value.is_array() && value.size() == 2) {
      put_number(value[0], 0);
      put_number(value[1], size);
    } else if (!value.is_null() && !value.is_array()) {
      put_number(value, 0);
    } else if (!value.is_null()) {
      fail("fill_value is no number");
    }
  }
  void set_attributes(const Json& attributes) {
    array_.variable.attributes = json_attributes(attributes);
    if (!attributes.is_object()) return;
    for (const char* name : {"valid_min", "valid_max", "valid_range"}) {
      const auto found = attributes.find(name);
      if (found == attributes.end()) continue;
      const Json& first = found->is_array() && !found->empty() ? found->front() : *found;
      if (first.is_number_float()) array_.floating_attributes.push_back(name);
    }
  }

 private:
  std::uint64_t hex(const std::string& text) const {
    if (text.size() < 3 || text.size() > 18 ||
        text.find_first_not_of("0123456789abcdefABCDEF", 2) != std::string::npos)
      fail("fill_value is no number");
    return std::stoull(text.substr(2), nullptr, 16);
  }
  static std::uint16_t half(double x) {
    const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const double size = std::abs(x);
    if (std::isnan(x)) return 0x7e00;
    if (size >= 65520.0) return sign | 0x7c00;
    int exponent = 0;
    std::frexp(size, &exponent);  // size < 2^exponent
    exponent = std::max(exponent, -13);
    const auto fraction = static_cast<int>(std::nearbyint(std::ldexp(size, 11 - exponent)));
    // A fraction of 2048 carries into the exponent by itself.
    const int bits = fraction < 1024 ? fraction : (exponent + 14) * 1024 + fraction - 1024;
    return static_cast<std::uint16_t>(sign | bits);
  }

  const std::string& where_;
  ZarrArray& array_;
  bool complex_ = false;
  int dims_ = 0;
};

BytesCodec compressor(const Parser& parser, const std::string& name) {
  if (name == "gzip" || name == "zlib" || name == "numcodecs.zlib" || name == "numcodecs.gzip")
    return {BytesCodec::Kind::kInflate};
  if (name == "blosc" || name == "numcodecs.blosc") return {BytesCodec::Kind::kBlosc};
  if (name == "zstd" || name == "numcodecs.zstd") return {BytesCodec::Kind::kZstd};
  if (name == "lz4" || name == "numcodecs.lz4") return {BytesCodec::Kind::kLz4};
  if (name == "crc32c") return {BytesCodec::Kind::kCrc32c};
  parser.fail(str("codec \"", name,
                  "\" is unknown here; gzip, zlib, blosc, zstd, lz4 and crc32c can be read"));
}

/// A double as xarray writes it into attributes of format 3.
std::optional<double> base64_double(const std::string& text) {
  if (text.size() != 12 || text.back() != '=') return std::nullopt;
  std::uint64_t bits = 0;
  std::uint32_t group = 0;
  std::size_t byte = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int digit = i == 11 ? 0 : base64_digit(text[i]);
    if (digit < 0) return std::nullopt;
    group = group << 6 | static_cast<std::uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (int k = 2; k >= 0 && byte < 8; --k, ++byte)
      bits |= static_cast<std::uint64_t>(group >> (8 * k) & 255) << (8 * byte);
    group = 0;
  }
  double value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

void parse_codecs3(Parser& parser, ZarrArray& array, const Json& codecs);

void parse_shard3(Parser& parser, ZarrArray& array, const Json& configuration) {
  if (array.shard) parser.fail("shards within shards");
  if (!array.codecs.order.empty()) parser.fail("transposed shards");
  const auto inner = parser.sizes(parser.member(configuration, "chunk_shape"), "chunk_shape", 1);
  if (std::ssize(inner) != parser.dims()) parser.fail("chunk_shape has another length");
  ZarrShard shard;
  for (int d = 0; d < array.chunk.size(); ++d) {
    const std::int64_t n = d < parser.dims() ? inner[static_cast<std::size_t>(d)] : 2;
    if (array.chunk[d] % n != 0) parser.fail("shards are no multiple of their chunks");
    shard.inner.push_back(array.chunk[d] / n);
    array.chunk[d] = n;
  }
  const std::string location = configuration.is_object() && configuration.contains("index_location")
                                   ? parser.text(configuration["index_location"], "index_location")
                                   : "end";
  if (location != "end" && location != "start") parser.fail("index_location is no end");
  shard.index_first = location == "start";
  const Json& index = parser.member(configuration, "index_codecs");
  if (!index.is_array()) parser.fail("index_codecs is no list");
  for (const Json& codec : index) {
    const std::string name = parser.text(parser.member(codec, "name"), "a codec's name");
    if (name == "crc32c") {
      shard.index_checksum = true;
    } else if (name != "bytes" || codec.dump().find("\"big\"") != std::string::npos) {
      parser.fail("an index that is packed otherwise than as little-endian bytes");
    }
  }
  array.shard = shard;
  parse_codecs3(parser, array, parser.member(configuration, "codecs"));
}

void parse_transpose3(Parser& parser, ZarrArray& array, const Json& order) {
  if (!array.codecs.order.empty()) parser.fail("two transpositions");
  Dims axes;
  if (order == "F") {
    axes = parser.column_major();
  } else if (order != "C") {
    const auto list = parser.sizes(order, "order", 0);
    if (std::ssize(list) != parser.dims()) parser.fail("a transposition of other dimensions");
    for (const std::int64_t axis : list) {
      if (axis >= parser.dims() || std::count(list.begin(), list.end(), axis) != 1)
        parser.fail("a transposition of other dimensions");
      axes.push_back(axis);
    }
    if (parser.complex()) axes.push_back(parser.dims());
  }
  array.codecs.order = axes;
}

void parse_codecs3(Parser& parser, ZarrArray& array, const Json& codecs) {
  constexpr std::size_t kMost = 16;
  if (!codecs.is_array() || codecs.size() > kMost) parser.fail("codecs is no list");
  static const Json none = Json::object();
  std::string to_bytes;
  for (const Json& codec : codecs) {
    const std::string name = codec.is_string()
                                 ? codec.get<std::string>().substr(0, 100)
                                 : parser.text(parser.member(codec, "name"), "a codec's name");
    const Json& configuration =
        codec.is_object() && codec.contains("configuration") ? codec["configuration"] : none;
    // What packs a whole shard hides its chunks.
    if (to_bytes == "sharding_indexed") parser.fail("a codec behind shards");
    if (name == "transpose") {
      if (!to_bytes.empty()) parser.fail("a transposition of bytes");
      parse_transpose3(parser, array, parser.member(configuration, "order"));
    } else if (name == "bytes" || name == "sharding_indexed") {
      if (!to_bytes.empty()) parser.fail("two codecs turn numbers into bytes");
      to_bytes = name;
      if (name == "sharding_indexed") {
        parse_shard3(parser, array, configuration);
      } else if (configuration.is_object() && configuration.contains("endian")) {
        array.codecs.swapped =
            parser.text(configuration["endian"], "endian") == "big" && size_of(array.type) > 1;
      }
    } else {
      if (to_bytes.empty()) parser.fail(str("codec \"", name, "\" before numbers are bytes"));
      array.codecs.bytes.push_back(compressor(parser, name));
    }
  }
  if (to_bytes.empty()) parser.fail("no codec turns numbers into bytes");
}

}  // namespace

std::int64_t ZarrArray::chunk_bytes() const { return chunk.product() * size_of(type); }

std::string ZarrArray::key(const Index& index) const {
  // Not of the pairs of complex numbers.
  const int dims = std::ssize(fill) > size_of(type) ? chunk.size() - 1 : chunk.size();
  return zarr_key(key_prefix, separator, {index.begin(), static_cast<std::size_t>(dims)});
}

std::string zarr_key(const std::string& prefix,
                     char separator,
                     std::span<const std::int64_t> index) {
  std::string name = prefix;
  for (const std::int64_t i : index) {
    if (!name.empty()) name += separator;
    name += std::to_string(i);
  }
  return name.empty() ? "0" : name;
}

ZarrArray parse_zarr2(const std::string& where, const Json& json, const Json& attributes) {
  ZarrArray array;
  Parser parser(where, array);
  if (parser.member(json, "zarr_format") != 2) parser.fail("another format than 2");
  const Json& dtype = parser.member(json, "dtype");
  parser.set_type(dtype.is_string() ? parse_numpy_type(dtype.get_ref<const std::string&>())
                                    : std::nullopt);
  parser.set_shapes(parser.sizes(parser.member(json, "shape"), "shape", 0),
                    parser.sizes(parser.member(json, "chunks"), "chunks", 1));
  parser.set_attributes(attributes);
  std::vector<std::string> names;
  const auto named =
      attributes.is_object() ? attributes.find("_ARRAY_DIMENSIONS") : attributes.end();
  const bool by_xarray = attributes.is_object() && named != attributes.end() && named->is_array();
  if (by_xarray)
    for (const Json& name : *named)
      names.push_back(name.is_string() ? name.get<std::string>() : "");
  parser.set_dims(names);
  array.variable.attributes.erase("_ARRAY_DIMENSIONS");
  if (!array.variable.numeric) return array;

  const std::string order = parser.text(parser.member(json, "order"), "order");
  if (order != "C" && order != "F") parser.fail("order is neither C nor F");
  if (order == "F") array.codecs.order = parser.column_major();
  if (json.contains("filters") && !json["filters"].is_null()) {
    if (!json["filters"].is_array()) parser.fail("filters is no list");
    for (const Json& filter : json["filters"]) {
      const std::string id = parser.text(parser.member(filter, "id"), "a filter's id");
      if (id != "shuffle")
        parser.fail(str("filter \"", id, "\" is unknown here; shuffle can be read"));
      const auto size =
          parser.sizes(Json::array({parser.member(filter, "elementsize")}), "elementsize", 1);
      if (size[0] > 64) parser.fail("elementsize is too large");
      array.codecs.bytes.push_back({BytesCodec::Kind::kShuffle, size[0]});
    }
  }
  const Json& packed = parser.member(json, "compressor");
  if (!packed.is_null())
    array.codecs.bytes.push_back(
        compressor(parser, parser.text(parser.member(packed, "id"), "a compressor's id")));
  const Json& fill = parser.member(json, "fill_value");
  parser.set_fill(fill);
  if (by_xarray && !fill.is_null() && !parser.complex()) {
    double value = 0;
    load_doubles(array.type, array.fill.data(), 1, 1, &value);
    array.variable.attributes.try_emplace("_FillValue", std::vector<double>{value});
  }
  if (json.contains("dimension_separator")) {
    const std::string separator = parser.text(json["dimension_separator"], "dimension_separator");
    if (separator != "." && separator != "/") parser.fail("dimension_separator is neither . nor /");
    array.separator = separator[0];
  }
  return array;
}

ZarrArray parse_zarr3(const std::string& where, const Json& json) {
  ZarrArray array;
  Parser parser(where, array);
  if (parser.member(json, "zarr_format") != 3) parser.fail("another format than 3");
  const Json& type = parser.member(json, "data_type");
  parser.set_type(type.is_string() ? parse_type_name(type.get_ref<const std::string&>())
                                   : std::nullopt);
  const Json& grid = parser.member(json, "chunk_grid");
  if (parser.member(grid, "name") != "regular") parser.fail("chunks of different sizes");
  const Json& grid_configuration = parser.member(grid, "configuration");
  parser.set_shapes(
      parser.sizes(parser.member(json, "shape"), "shape", 0),
      parser.sizes(parser.member(grid_configuration, "chunk_shape"), "chunk_shape", 1));
  static const Json none = Json::object();
  const Json& attributes = json.contains("attributes") ? json["attributes"] : none;
  parser.set_attributes(attributes);
  std::vector<std::string> names;
  if (json.contains("dimension_names") && json["dimension_names"].is_array())
    for (const Json& name : json["dimension_names"])
      names.push_back(name.is_string() ? name.get<std::string>() : "");
  parser.set_dims(names);
  if (!array.variable.numeric) return array;

  parser.set_fill(parser.member(json, "fill_value"));
  if (is_floating(array.type)) {
    auto& given = array.variable.attributes;
    const auto found = given.find("_FillValue");
    const auto* text = found == given.end() ? nullptr : std::get_if<std::string>(&found->second);
    const auto value = text ? base64_double(*text) : std::nullopt;
    if (value) given["_FillValue"] = std::vector<double>{*value};
  }
  array.key_prefix.assign(1, 'c');
  array.separator = '/';
  if (json.contains("chunk_key_encoding")) {
    const Json& encoding = json["chunk_key_encoding"];
    const std::string name =
        encoding.is_string() ? encoding.get<std::string>().substr(0, 100)
                             : parser.text(parser.member(encoding, "name"), "chunk_key_encoding");
    if (name != "default" && name != "v2") parser.fail(str("chunk keys by \"", name, "\""));
    if (name == "v2") {
      array.key_prefix.clear();
      array.separator = '.';
    }
    if (encoding.is_object() && encoding.contains("configuration") &&
        encoding["configuration"].is_object() && encoding["configuration"].contains("separator")) {
      const std::string separator =
          parser.text(encoding["configuration"]["separator"], "separator");
      if (separator != "." && separator != "/") parser.fail("separator is neither . nor /");
      array.separator = separator[0];
    }
  }
  parse_codecs3(parser, array, parser.member(json, "codecs"));
  return array;
}

}  // namespace tessera::io
