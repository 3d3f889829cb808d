#include <nlohmann/json.hpp>
#include <set>
#include <tessera/nn/io/raw.hpp>

#include "io/decoding.hpp"
#include "io/dense_array.hpp"
#include "io/json_attributes.hpp"
#include "io/posix_file.hpp"
#include "io/stored_type.hpp"

namespace tessera::io {

struct RawReader::State {
  File file;
  DenseArray array;
};

RawReader::~RawReader() = default;

RawReader::RawReader(const std::string& path, const RawOptions& options) : FieldReader(path) {
  const auto type = parse_type_name(options.type);
  if (!type)
    throw UsageError(str("raw: element type \"", options.type,
                         "\". Use NumPy's names: int16, float32, complex64..."));
  DenseArray array;
  array.shape = options.shape;
  array.type = type->type;
  array.offset = options.offset;
  array.swapped = options.big_endian;
  FieldVariable v;
  v.name = options.name;
  v.numeric = true;
  v.dims = options.dims;
  v.attributes = options.attributes;
  if (v.dims.empty())
    for (int d = 0; d < array.shape.size(); ++d) v.dims.push_back(str("dim_", d));
  if (std::ssize(v.dims) != array.shape.size())
    throw UsageError(
        str("raw: ", v.dims.size(), " names of dimensions for the shape ", array.shape, "."));
  if (type->complex) {
    if (array.shape.size() == kMaxDims)
      throw UsageError("raw: complex numbers in more than 7 dimensions.");
    array.shape.push_back(2);
    v.dims.push_back("complex");
  }
  if (options.column_major) array.order = column_major_order(array.shape.size(), type->complex);
  const auto bytes = checked_bytes(array.shape, array.type);
  File file = File::open(path);
  if (options.offset < 0 || !bytes || options.offset > file.size() ||
      *bytes > file.size() - options.offset)
    throw DataError(str(path, ": has ", file.size(), " bytes, too few for the shape ", array.shape,
                        " of ", options.type, " from byte ", options.offset, " on."));
  v.shape = array.shape;
  auto decoding = make_decoding(array.type, v.attributes, [&](const char* name) {
    // Numbers of attributes have no types here: a bound with a fraction is an unpacked one.
    for (const double x : *numbers(options.attributes, name))
      if (x != std::floor(x)) return true;
    return false;
  });
  add(std::move(v),
      {.type = array.type, .column_major = options.column_major, .decoding = std::move(decoding)});
  state_.reset(new State{std::move(file), std::move(array)});
}

void RawReader::read_raw(std::size_t, const Box& box, void* values) const {
  count_bytes(read_dense(
      state_->array, box,
      [&](void* to, std::int64_t bytes, std::int64_t offset) {
        state_->file.read(to, bytes, offset);
      },
      values));
}

RawOptions read_raw_description(const std::string& path) {
  const nlohmann::json root = parse_json_file(path);
  RawOptions o;
  try {
    static const std::set<std::string> known = {"shape", "type", "offset", "byte_order",
                                                "order", "name", "dims",   "attributes"};
    for (const auto& [key, value] : root.items())
      if (known.count(key) == 0) throw DataError(str(path, ": unknown key \"", key, "\"."));
    const auto shape = root.at("shape").get<std::vector<std::int64_t>>();
    if (std::ssize(shape) > kMaxDims)
      throw DataError(str(path, ": more than ", kMaxDims, " dimensions."));
    for (const std::int64_t n : shape) o.shape.push_back(n);
    o.type = root.value("type", o.type);
    o.offset = root.value("offset", o.offset);
    o.name = root.value("name", o.name);
    o.dims = root.value("dims", o.dims);
    const std::string byte_order = root.value("byte_order", "little");
    const std::string order = root.value("order", "C");
    if ((byte_order != "little" && byte_order != "big") || (order != "C" && order != "F"))
      throw DataError(str(path, ": byte_order is little or big, order is C or F."));
    o.big_endian = byte_order == "big";
    o.column_major = order == "F";
    if (root.contains("attributes")) o.attributes = json_attributes(root.at("attributes"));
  } catch (const nlohmann::json::exception& e) {
    throw DataError(str(path, ": does not describe an array (", e.what(), ")."));
  }
  return o;
}

}  // namespace tessera::io
