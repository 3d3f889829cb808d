#include <netcdf.h>

#include <algorithm>
#include <map>
#include <tessera/nn/io/netcdf.hpp>
#include <utility>

#include "io/decoding.hpp"
#include "io/netcdf_classic.hpp"
#include "io/netcdf_common.hpp"
#include "io/posix_file.hpp"

namespace tessera::io {
namespace {

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

StoredType stored_type(nc_type type) {
  switch (type) {
    case NC_UBYTE:
      return StoredType::kUInt8;
    case NC_SHORT:
      return StoredType::kInt16;
    case NC_USHORT:
      return StoredType::kUInt16;
    case NC_INT:
      return StoredType::kInt32;
    case NC_UINT:
      return StoredType::kUInt32;
    case NC_INT64:
      return StoredType::kInt64;
    case NC_UINT64:
      return StoredType::kUInt64;
    case NC_FLOAT:
      return StoredType::kFloat32;
    case NC_DOUBLE:
      return StoredType::kFloat64;
    default:
      return StoredType::kInt8;
  }
}

bool is_numeric(nc_type type) {
  return type == NC_BYTE || type == NC_UBYTE ||
         (type >= NC_SHORT && type <= NC_UINT64 && type != NC_CHAR);
}

}  // namespace

struct NetcdfReader::State {
  std::string path;
  int file = -1;
  std::vector<int> ids;  // of the variables

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

  Shape chunk(int variable, int dims) const {
    int storage = NC_CONTIGUOUS;
    std::size_t sizes[kMaxDims] = {};
    // Classic files have none, which the library says by an error.
    if (nc_inq_var_chunking(file, variable, &storage, sizes) != NC_NOERR || storage != NC_CHUNKED)
      return {};
    Shape shape;
    for (int d = 0; d < dims; ++d)
      shape.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(sizes[d])));
    return shape;
  }
};

NetcdfReader::~NetcdfReader() = default;

NetcdfReader::NetcdfReader(const std::string& path)
    : FieldReader(path), state_(std::make_unique<State>()) {
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
    scan();
  } catch (...) {
    // Here, because the destructor of the state takes the lock.
    nc_close(std::exchange(state_->file, -1));
    throw;
  }
}

void NetcdfReader::scan() {
  const State& state = *state_;
  const int file = state.file;
  int dim_count = 0;
  int variable_count = 0;
  state.check(nc_inq_ndims(file, &dim_count), "dimensions cannot be listed");
  state.check(nc_inq_nvars(file, &variable_count), "variables cannot be listed");
  char name[NC_MAX_NAME + 1];
  std::vector<int> ids(static_cast<std::size_t>(std::max(dim_count, 1)));
  state.check(nc_inq_dimids(file, &dim_count, ids.data(), 0), "dimensions cannot be listed");
  std::map<int, std::pair<std::string, std::int64_t>> dimensions;
  for (int i = 0; i < dim_count; ++i) {
    std::size_t size = 0;
    const int id = ids[static_cast<std::size_t>(i)];
    state.check(nc_inq_dim(file, id, name, &size), "a dimension cannot be read");
    dimensions[id] = {name, static_cast<std::int64_t>(size)};
  }
  for (int id = 0; id < variable_count; ++id) {
    FieldVariable v;
    Storage storage;
    nc_type type = NC_NAT;
    int dims = 0;
    state.check(nc_inq_varname(file, id, name), "a variable cannot be read");
    state.check(nc_inq_vartype(file, id, &type), "a variable cannot be read");
    state.check(nc_inq_varndims(file, id, &dims), "a variable cannot be read");
    std::vector<int> dim_ids(static_cast<std::size_t>(std::max(dims, 1)));
    state.check(nc_inq_vardimid(file, id, dim_ids.data()), "a variable cannot be read");
    v.name = name;
    v.numeric = is_numeric(type) && dims <= kMaxDims;
    for (int d = 0; d < dims; ++d) {
      const auto& [dim_name, size] = dimensions.at(dim_ids[static_cast<std::size_t>(d)]);
      v.dims.push_back(dim_name);
      if (v.numeric) v.shape.push_back(size);
    }
    v.attributes = state.read_attributes(id);
    if (v.numeric) {
      storage.type = stored_type(type);
      const auto floating = [&](const char* attribute) {
        nc_type given = NC_NAT;
        state.check(nc_inq_atttype(file, id, attribute, &given), "an attribute cannot be read");
        return given == NC_FLOAT || given == NC_DOUBLE;
      };
      storage.decoding = make_decoding(storage.type, v.attributes, floating, default_fill(type));
      storage.chunk = state.chunk(id, dims);
    }
    add(std::move(v), std::move(storage));
    state_->ids.push_back(id);
  }
  set_attributes(state.read_attributes(NC_GLOBAL));
}

void NetcdfReader::read_raw(std::size_t variable, const Box& box, void* values) const {
  std::size_t start[kMaxDims], count[kMaxDims];
  for (int d = 0; d < box.dims(); ++d) {
    start[d] = static_cast<std::size_t>(box.lo[d]);
    count[d] = static_cast<std::size_t>(box[d].size());
  }
  const std::lock_guard lock(netcdf_mutex());
  state_->check(nc_get_vara(state_->file, state_->ids[variable], start, count, values),
                "values cannot be read");
  count_bytes(box.volume() * size_of(variables()[variable].type));
}

}  // namespace tessera::io
