#include <netcdf.h>

#include <algorithm>
#include <cmath>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/io/netcdf.hpp>
#include <tessera/nn/io/suggest.hpp>
#include <utility>

#include "io/convert.hpp"
#include "io/netcdf_classic.hpp"
#include "io/netcdf_common.hpp"
#include "io/posix_file.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kBlockPoints = 1 << 18;  // staged as double: 2 MiB

/// How raw values of one variable become numbers or missing points.
struct Decoding {
  std::vector<double> missing;  // raw values
  double raw_min = -INFINITY, raw_max = INFINITY;
  double min = -INFINITY, max = INFINITY;  // after unpacking
  double scale = 1.0, offset = 0.0;
  double wrap = 0.0;  // added to negative raw values (_Unsigned)

  bool decode(double& value) const {
    if (std::isnan(value)) return false;
    if (value < 0) value += wrap;
    for (const double m : missing)
      if (value == m) return false;
    if (value < raw_min || value > raw_max) return false;
    value = value * scale + offset;
    return value >= min && value <= max;
  }
};

std::optional<double> default_fill(nc_type type) {
  switch (type) {
    case NC_SHORT:
      return NC_FILL_SHORT;
    case NC_USHORT:
      return NC_FILL_USHORT;
    case NC_INT:
      return NC_FILL_INT;
    case NC_UINT:
      return NC_FILL_UINT;
    case NC_INT64:
      return static_cast<double>(NC_FILL_INT64);
    case NC_UINT64:
      return static_cast<double>(NC_FILL_UINT64);
    case NC_FLOAT:
      return static_cast<double>(NC_FILL_FLOAT);
    case NC_DOUBLE:
      return NC_FILL_DOUBLE;
    default:
      return std::nullopt;
  }
}

std::int64_t type_size(nc_type type) {
  switch (type) {
    case NC_SHORT:
    case NC_USHORT:
      return 2;
    case NC_INT:
    case NC_UINT:
    case NC_FLOAT:
      return 4;
    case NC_INT64:
    case NC_UINT64:
    case NC_DOUBLE:
      return 8;
    default:
      return 1;
  }
}

bool is_numeric(nc_type type) {
  return type == NC_BYTE || type == NC_UBYTE ||
         (type >= NC_SHORT && type <= NC_UINT64 && type != NC_CHAR);
}

const std::vector<double>* numbers(const NetcdfAttributes& attributes, const char* name) {
  const auto found = attributes.find(name);
  if (found == attributes.end()) return nullptr;
  const auto* list = std::get_if<std::vector<double>>(&found->second);
  return list && !list->empty() ? list : nullptr;
}

}  // namespace

struct NetcdfReader::State {
  struct Source {
    int id = 0;
    nc_type type = NC_NAT;
    Decoding decoding;
  };

  std::string path;
  int file = -1;
  std::vector<NetcdfDimension> dimensions;
  std::vector<NetcdfVariable> variables;
  std::vector<Source> sources;  // of the variables
  NetcdfAttributes attributes;
  std::int64_t bytes_read = 0;

  ~State() {
    if (file < 0) return;
    const std::lock_guard lock(netcdf_mutex());
    nc_close(file);
  }

  void check(int status, const char* what) const { check_netcdf(status, path, what); }

  NetcdfAttributes read_attributes(int variable) const {
    NetcdfAttributes result;
    int count = 0;
    if (variable == NC_GLOBAL) {
      check(nc_inq_natts(file, &count), "attributes cannot be listed");
    } else {
      check(nc_inq_varnatts(file, variable, &count), "attributes cannot be listed");
    }
    for (int i = 0; i < count; ++i) {
      char name[NC_MAX_NAME + 1];
      nc_type type = NC_NAT;
      std::size_t length = 0;
      check(nc_inq_attname(file, variable, i, name), "an attribute cannot be read");
      check(nc_inq_att(file, variable, name, &type, &length), "an attribute cannot be read");
      if (type == NC_CHAR) {
        std::string text(length, '\0');
        check(nc_get_att_text(file, variable, name, text.data()), "an attribute cannot be read");
        while (!text.empty() && text.back() == '\0') text.pop_back();
        result[name] = std::move(text);
      } else if (type == NC_STRING) {
        std::vector<char*> texts(length);
        check(nc_get_att_string(file, variable, name, texts.data()), "an attribute cannot be read");
        std::string joined;
        for (const char* text : texts) {
          if (!joined.empty()) joined += '\n';
          if (text) joined += text;
        }
        nc_free_string(length, texts.data());
        result[name] = std::move(joined);
      } else if (is_numeric(type)) {
        std::vector<double> values(length);
        check(nc_get_att_double(file, variable, name, values.data()),
              "an attribute cannot be read");
        result[name] = std::move(values);
      }
    }
    return result;
  }

  Decoding decoding_of(int id, nc_type type, const NetcdfAttributes& given) const {
    Decoding d;
    const bool floating = type == NC_FLOAT || type == NC_DOUBLE;
    if (const auto found = given.find("_Unsigned"); found != given.end()) {
      const auto* text = std::get_if<std::string>(&found->second);
      if (text && *text == "true" && (type == NC_BYTE || type == NC_SHORT || type == NC_INT))
        d.wrap = std::ldexp(1.0, static_cast<int>(8 * type_size(type)));
    }
    // Attributes may be of a wider type than the data: what counts is their value in the type of
    // the data.
    const auto raw = [&](double value) {
      if (type == NC_FLOAT) return static_cast<double>(static_cast<float>(value));
      return value < 0 ? value + d.wrap : value;
    };
    const auto* fill = numbers(given, "_FillValue");
    if (fill) {
      d.missing.push_back(raw(fill->front()));
    } else if (const auto standard = default_fill(type)) {
      d.missing.push_back(raw(*standard));
    }
    if (const auto* list = numbers(given, "missing_value"))
      for (const double v : *list) d.missing.push_back(raw(v));
    if (const auto* scale = numbers(given, "scale_factor")) d.scale = scale->front();
    if (const auto* offset = numbers(given, "add_offset")) d.offset = offset->front();

    const auto bound = [&](const char* name, std::size_t index, double& raw_bound,
                           double& unpacked_bound) {
      const auto* list = numbers(given, name);
      if (!list || list->size() <= index) return;
      nc_type bound_type = NC_NAT;
      check(nc_inq_atttype(file, id, name, &bound_type), "an attribute cannot be read");
      const bool unpacked = !floating && (bound_type == NC_FLOAT || bound_type == NC_DOUBLE);
      (unpacked ? unpacked_bound : raw_bound) = unpacked ? (*list)[index] : raw((*list)[index]);
    };
    bound("valid_min", 0, d.raw_min, d.min);
    bound("valid_max", 0, d.raw_max, d.max);
    bound("valid_range", 0, d.raw_min, d.min);
    bound("valid_range", 1, d.raw_max, d.max);
    return d;
  }

  void scan() {
    int dim_count = 0;
    int variable_count = 0;
    check(nc_inq_ndims(file, &dim_count), "dimensions cannot be listed");
    check(nc_inq_nvars(file, &variable_count), "variables cannot be listed");
    char name[NC_MAX_NAME + 1];
    std::vector<int> ids(static_cast<std::size_t>(std::max(dim_count, 1)));
    check(nc_inq_dimids(file, &dim_count, ids.data(), 0), "dimensions cannot be listed");
    std::map<int, const NetcdfDimension*> by_id;
    dimensions.reserve(static_cast<std::size_t>(dim_count));
    for (int i = 0; i < dim_count; ++i) {
      std::size_t size = 0;
      const int id = ids[static_cast<std::size_t>(i)];
      check(nc_inq_dim(file, id, name, &size), "a dimension cannot be read");
      dimensions.push_back({name, static_cast<std::int64_t>(size)});
      by_id[id] = &dimensions.back();
    }
    for (int id = 0; id < variable_count; ++id) {
      NetcdfVariable v;
      Source source;
      source.id = id;
      int dims = 0;
      check(nc_inq_varname(file, id, name), "a variable cannot be read");
      check(nc_inq_vartype(file, id, &source.type), "a variable cannot be read");
      check(nc_inq_varndims(file, id, &dims), "a variable cannot be read");
      std::vector<int> dim_ids(static_cast<std::size_t>(std::max(dims, 1)));
      check(nc_inq_vardimid(file, id, dim_ids.data()), "a variable cannot be read");
      v.name = name;
      v.numeric = is_numeric(source.type) && dims <= kMaxDims;
      for (int d = 0; d < dims; ++d) {
        const NetcdfDimension& dimension = *by_id.at(dim_ids[static_cast<std::size_t>(d)]);
        v.dims.push_back(dimension.name);
        if (v.numeric) v.shape.push_back(dimension.size);
      }
      v.attributes = read_attributes(id);
      if (v.numeric) source.decoding = decoding_of(id, source.type, v.attributes);
      variables.push_back(std::move(v));
      sources.push_back(std::move(source));
    }
    attributes = read_attributes(NC_GLOBAL);
  }

  /// Raw values of a dense box.
  void read_raw(const Source& source, const Box& box, double* values) {
    std::size_t start[kMaxDims], count[kMaxDims];
    for (int d = 0; d < box.dims(); ++d) {
      start[d] = static_cast<std::size_t>(box.lo[d]);
      count[d] = static_cast<std::size_t>(box[d].size());
    }
    check(nc_get_vara_double(file, source.id, start, count, values), "values cannot be read");
    bytes_read += box.volume() * type_size(source.type);
  }
};

NetcdfReader::NetcdfReader(NetcdfReader&&) noexcept = default;
NetcdfReader::~NetcdfReader() = default;

NetcdfReader::NetcdfReader(const std::string& path) : state_(std::make_unique<State>()) {
  state_->path = path;
  {
    const File file = File::open(path);
    const std::int64_t needed = classic_netcdf_bytes(file);
    if (file.size() < needed)
      throw DataError(str(path, ": cut off (", file.size(), " of ", needed,
                          " bytes that its header speaks of). Get the file again."));
  }
  const std::lock_guard lock(netcdf_mutex());
  state_->check(nc_open(path.c_str(), NC_NOWRITE, &state_->file), "cannot be opened as NetCDF");
  try {
    state_->scan();
  } catch (...) {
    nc_close(std::exchange(state_->file,
                           -1));  // here, because the destructor of the state takes the lock
    throw;
  }
}

const std::string& NetcdfReader::path() const { return state_->path; }
const std::vector<NetcdfDimension>& NetcdfReader::dimensions() const { return state_->dimensions; }
const std::vector<NetcdfVariable>& NetcdfReader::variables() const { return state_->variables; }
const NetcdfAttributes& NetcdfReader::attributes() const { return state_->attributes; }
std::int64_t NetcdfReader::bytes_read() const { return state_->bytes_read; }

bool NetcdfReader::contains(std::string_view variable) const {
  return std::any_of(variables().begin(), variables().end(),
                     [&](const auto& v) { return v.name == variable; });
}

const NetcdfVariable& NetcdfReader::variable(std::string_view name) const {
  for (const NetcdfVariable& v : variables())
    if (v.name == name) return v;
  std::string list;
  std::vector<std::string> names;
  for (const NetcdfVariable& v : variables()) {
    if (!list.empty()) list += ", ";
    list += v.name;
    names.push_back(v.name);
  }
  throw DataError(str(path(), ": holds no variable \"", name, "\" (it has: ", list, ").",
                      did_you_mean(name, names)));
}

std::vector<double> NetcdfReader::coordinates(const std::string& dimension) const {
  if (!contains(dimension)) return {};
  const NetcdfVariable& v = variable(dimension);
  if (!v.numeric || v.dims != std::vector<std::string>{dimension}) return {};
  std::vector<double> values(static_cast<std::size_t>(v.shape[0]));
  read(dimension, Box::whole(v.shape), View::dense(values.data(), DType::kFloat64, v.shape));
  return values;
}

void NetcdfReader::read(std::string_view name,
                        const Box& box,
                        const View& out,
                        const NetcdfReadOptions& options) const {
  const NetcdfVariable& v = variable(name);
  const auto where = [&] { return str("netcdf: variable \"", name, "\" of ", path(), ": "); };
  if (!v.numeric)
    throw DataError(str(where(), "holds no numbers, or has more than ", kMaxDims, " dimensions."));
  const int dims = v.shape.size();
  const Dims step = options.step.empty() ? Dims::filled(dims, 1) : options.step;
  if (box.dims() != dims || !Box::whole(v.shape).contains(box))
    throw ShapeError(str(where(), "box ", box.str(), " does not lie in shape ", v.shape, "."));
  if (step.size() != dims ||
      std::any_of(step.begin(), step.end(), [](std::int64_t s) { return s < 1; }))
    throw ShapeError(str(where(), "step ", step, " for ", dims,
                         " dimensions. Give one positive step for each."));
  Box result = box;  // in steps from box.lo
  for (int d = 0; d < dims; ++d) result.set(d, {0, (box[d].size() + step[d] - 1) / step[d]});
  check_view("netcdf", out, result.shape());
  check_convertible("netcdf", DType::kFloat64, out.dtype);
  const View& mask = options.mask;
  const bool masked = mask.data != nullptr;
  if (masked) {
    check_view("netcdf mask", mask, result.shape());
    if (mask.dtype != DType::kUInt8 && mask.dtype != DType::kBool)
      throw DTypeError(str(where(), "the mask has element type ", tessera::name(mask.dtype),
                           ". Use u8 or bool."));
  }

  const auto& source = state_->sources[static_cast<std::size_t>(&v - variables().data())];
  const int last = dims - 1;
  const std::int64_t last_step = dims > 0 ? step[last] : 1;
  std::vector<double> raw, row;
  std::vector<std::uint8_t> valid;
  const std::lock_guard lock(netcdf_mutex());

  // A part with step 1 in all but its last dimension, or one point there.
  const auto read_part = [&](const Box& part) {
    Box raw_box = part;
    for (int d = 0; d < dims; ++d)
      raw_box.set(d,
                  {box.lo[d] + part.lo[d] * step[d], box.lo[d] + (part.hi[d] - 1) * step[d] + 1});
    raw.resize(static_cast<std::size_t>(raw_box.volume()));
    state_->read_raw(source, raw_box, raw.data());
    const std::int64_t length = dims > 0 ? part[last].size() : 1;
    row.resize(static_cast<std::size_t>(length));
    valid.resize(static_cast<std::size_t>(length));
    Box starts = part;
    if (dims > 0) starts.set(last, {part.lo[last], part.lo[last] + 1});
    const double* from = raw.data();
    for_each_index(starts, [&](const Index& i) {
      for (std::int64_t j = 0; j < length; ++j) {
        double value = from[j * last_step];
        const bool ok = source.decoding.decode(value);
        row[static_cast<std::size_t>(j)] = ok ? value : options.missing;
        valid[static_cast<std::size_t>(j)] = ok ? 1 : 0;
      }
      from += dims > 0 ? raw_box[last].size() : 1;
      store_row(out, i, row.data(), DType::kFloat64, length);
      if (masked) store_row(mask, i, valid.data(), DType::kUInt8, length);
    });
  };
  for_each_block(
      result, std::max<std::int64_t>(1, kBlockPoints / last_step), [&](const Box& block) {
        int single =
            0;  // dimensions before this one go index by index: the library is slow at strides
        for (int d = 0; d < last; ++d)
          if (step[d] > 1) single = d + 1;
        Box starts = block;
        for (int d = single; d < dims; ++d) starts.set(d, {0, 1});
        for_each_index(starts, [&](const Index& i) {
          Box part = block;
          for (int d = 0; d < single; ++d) part.set(d, {i[d], i[d] + 1});
          read_part(part);
        });
      });
}

}  // namespace tessera::io
