#include <netcdf.h>

#include <algorithm>
#include <cmath>
#include <tessera/nn/io/netcdf.hpp>
#include <tessera/nn/io/suggest.hpp>

#include "io/blocks.hpp"
#include "io/convert.hpp"
#include "io/netcdf_common.hpp"
#include "io/posix_file.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kBlockPoints = 1 << 18;

nc_type type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return NC_DOUBLE;
    case DType::kInt32:
      return NC_INT;
    case DType::kInt64:
      return NC_INT64;
    case DType::kUInt8:
    case DType::kBool:
      return NC_UBYTE;
    default:
      return NC_FLOAT;
  }
}

DType stored_type(DType dtype) {
  if (dtype == DType::kBFloat16) return DType::kFloat32;
  if (dtype == DType::kBool) return DType::kUInt8;
  return dtype;
}

}  // namespace

struct NetcdfWriter::State {
  std::string path;
  std::string temporary;
  Collective collective;
  std::vector<NetcdfVariableSpec> variables;
  std::vector<Shape> shapes;
  std::vector<std::int64_t> written;  // points of each variable, by this rank
  bool owns_temporary = false;

  ~State() {
    if (owns_temporary) remove_quietly(temporary);
  }

  void check(int status, const char* what) const { check_netcdf(status, temporary, what); }

  /// Calls f(file id) on the open temporary file.
  template <class Open, class F>
  void with_file(Open&& open, F&& f) const {
    const std::lock_guard lock(netcdf_mutex());
    int file = -1;
    open(&file);
    try {
      f(file);
    } catch (...) {
      nc_abort(file);
      throw;
    }
    check(nc_close(file), "cannot be finished");
  }

  void put_attributes(int file, int variable, const NetcdfAttributes& attributes) const {
    for (const auto& [name, value] : attributes) {
      if (const auto* text = std::get_if<std::string>(&value)) {
        check(nc_put_att_text(file, variable, name.c_str(), text->size(), text->data()),
              "an attribute cannot be written");
      } else {
        const auto& list = std::get<std::vector<double>>(value);
        check(nc_put_att_double(file, variable, name.c_str(), NC_DOUBLE, list.size(), list.data()),
              "an attribute cannot be written");
      }
    }
  }

  void create(const std::vector<NetcdfDimension>& dimensions,
              const NetcdfAttributes& attributes) const {
    // 64-bit offsets are read everywhere; bytes, 64-bit integers and variables of 2 GiB need the
    // newer form.
    int mode = NC_64BIT_OFFSET;
    for (std::size_t i = 0; i < variables.size(); ++i) {
      const DType type = stored_type(variables[i].dtype);
      if (type == DType::kInt64 || type == DType::kUInt8 ||
          shapes[i].product() * static_cast<std::int64_t>(size_of(type)) >= (std::int64_t{1} << 31))
        mode = NC_64BIT_DATA;
    }
    const auto open = [&](int* file) {
      check(nc_create(temporary.c_str(), NC_CLOBBER | mode, file), "cannot be created");
    };
    with_file(open, [&](int file) {
      int old_fill = 0;
      check(nc_set_fill(file, NC_NOFILL, &old_fill), "cannot be created");
      std::map<std::string, int> ids;
      for (const NetcdfDimension& d : dimensions)
        check(nc_def_dim(file, d.name.c_str(), static_cast<std::size_t>(d.size), &ids[d.name]),
              "a dimension cannot be made");
      std::vector<std::pair<int, const NetcdfDimension*>> coordinates;
      for (const NetcdfDimension& d : dimensions) {
        if (d.coordinates.empty()) continue;
        int id = 0;
        check(nc_def_var(file, d.name.c_str(), NC_DOUBLE, 1, &ids[d.name], &id),
              "a variable cannot be made");
        put_attributes(file, id, d.attributes);
        coordinates.emplace_back(id, &d);
      }
      for (const NetcdfVariableSpec& v : variables) {
        std::vector<int> dims;
        for (const std::string& d : v.dims) dims.push_back(ids.at(d));
        int id = 0;
        check(nc_def_var(file, v.name.c_str(), type_of(v.dtype), static_cast<int>(dims.size()),
                         dims.data(), &id),
              "a variable cannot be made");
        if (v.fill)
          check(nc_put_att_double(file, id, "_FillValue", type_of(v.dtype), 1, &*v.fill),
                "an attribute cannot be written");
        put_attributes(file, id, v.attributes);
      }
      put_attributes(file, NC_GLOBAL, attributes);
      check(nc_enddef(file), "the header cannot be written");
      for (const auto& [id, d] : coordinates)
        check(nc_put_var_double(file, id, d->coordinates.data()), "coordinates cannot be written");
    });
  }

  void put(const NetcdfVariableSpec& spec,
           const Shape& shape,
           const Box& box,
           const View& data) const {
    const DType type = stored_type(spec.dtype);
    const auto size = static_cast<std::int64_t>(size_of(type));
    const auto open = [&](int* file) {
      check(nc_open(temporary.c_str(), NC_WRITE, file), "cannot be opened");
    };
    with_file(open, [&](int file) {
      int id = 0;
      check(nc_inq_varid(file, spec.name.c_str(), &id), "a variable is not there");
      std::vector<std::byte> block_data;
      for_each_block(box, kBlockPoints, [&](const Box& block) {
        block_data.resize(static_cast<std::size_t>(block.volume() * size));
        Box in_view = block;
        for (int d = 0; d < box.dims(); ++d)
          in_view.set(d, {block.lo[d] - box.lo[d], block.hi[d] - box.lo[d]});
        const View part = data.slice(in_view);
        const BoxRows rows("netcdf", part.shape, Box::whole(part.shape), part);
        rows.for_each([&](std::int64_t at, std::int64_t from) {
          convert(part.as<std::byte>() + from * static_cast<std::int64_t>(size_of(part.dtype)),
                  part.dtype, rows.view_stride(), block_data.data() + at * size, type, 1,
                  rows.row_length());
        });
        if (spec.fill) {
          visit_dtype(type, [&]<class T>() {
            if constexpr (std::is_floating_point_v<T>) {
              auto* values = reinterpret_cast<T*>(block_data.data());
              for (std::int64_t i = 0; i < block.volume(); ++i)
                if (std::isnan(values[i])) values[i] = static_cast<T>(*spec.fill);
            }
          });
        }
        std::size_t start[kMaxDims], count[kMaxDims];
        for (int d = 0; d < shape.size(); ++d) {
          start[d] = static_cast<std::size_t>(block.lo[d]);
          count[d] = static_cast<std::size_t>(block[d].size());
        }
        check(nc_put_vara(file, id, start, count, block_data.data()), "values cannot be written");
      });
    });
  }
};

NetcdfWriter::NetcdfWriter(NetcdfWriter&&) noexcept = default;
NetcdfWriter::~NetcdfWriter() = default;

NetcdfWriter::NetcdfWriter(const std::string& path,
                           const std::vector<NetcdfDimension>& dimensions,
                           std::vector<NetcdfVariableSpec> variables,
                           const NetcdfAttributes& attributes,
                           const Collective& collective)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path;
  s.collective = collective;
  s.variables = std::move(variables);
  s.written.resize(s.variables.size());
  for (const NetcdfDimension& d : dimensions)
    if (!d.coordinates.empty() && static_cast<std::int64_t>(d.coordinates.size()) != d.size)
      throw UsageError(str("netcdf: dimension \"", d.name, "\" of size ", d.size, " has ",
                           d.coordinates.size(),
                           " coordinates. Give one for each point, or none."));
  for (const NetcdfVariableSpec& v : s.variables) {
    Shape shape;
    for (const std::string& name : v.dims) {
      const auto d = std::find_if(dimensions.begin(), dimensions.end(),
                                  [&](const auto& x) { return x.name == name; });
      if (d == dimensions.end())
        throw UsageError(str("netcdf: variable \"", v.name, "\" names the dimension \"", name,
                             "\", which is not declared."));
      shape.push_back(d->size);
    }
    s.shapes.push_back(shape);
  }
  s.temporary = temporary_name(path, collective.broadcast(unique_id()));
  collective.together([&] {
    if (collective.rank != 0) return;
    check_replaceable(path);
    remove_stale_temporaries(path);
    s.owns_temporary = true;
    s.create(dimensions, attributes);
  });
}

void NetcdfWriter::write_box(std::string_view variable, const Box& box, const View& data) {
  State& s = *state_;
  std::size_t index = 0;
  std::vector<std::string> names;
  for (const auto& v : s.variables) names.push_back(v.name);
  index = static_cast<std::size_t>(std::find(names.begin(), names.end(), variable) - names.begin());
  if (index == names.size())
    throw UsageError(
        str("netcdf: no variable \"", variable, "\" was declared.", did_you_mean(variable, names)));
  const Shape& shape = s.shapes[index];
  for (int turn = 0; turn < s.collective.size; ++turn) {
    s.collective.together([&] {
      if (turn != s.collective.rank) return;
      check_convertible("netcdf", data.dtype, s.variables[index].dtype);
      const BoxRows checked("netcdf", shape, box, data);
      if (!box.empty()) s.put(s.variables[index], shape, box, data);
      s.written[index] += box.volume();
    });
  }
}

void NetcdfWriter::commit() {
  State& s = *state_;
  std::vector<std::int64_t> written = s.written;
  if (s.collective.size > 1) s.collective.sum(written);
  for (std::size_t i = 0; i < written.size(); ++i)
    if (written[i] != s.shapes[i].product())
      throw UsageError(str("netcdf: ", written[i], " of ", s.shapes[i].product(), " points of \"",
                           s.variables[i].name, "\" were written to ", s.path,
                           " (parts are missing, or were written twice)."));
  s.collective.together([&] {
    if (s.collective.rank != 0) return;
    File::modify(s.temporary).sync();
    commit_file(s.temporary, s.path);
  });
  s.owns_temporary = false;
}

}  // namespace tessera::io
