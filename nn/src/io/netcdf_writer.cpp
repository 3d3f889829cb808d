#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <tessera/nn/io/netcdf.hpp>
#include <tessera/nn/io/suggest.hpp>

#include "io/blocks.hpp"
#include "io/convert.hpp"
#include "io/netcdf_header.hpp"
#include "io/part_file.hpp"
#include "io/stored_type.hpp"

static_assert(std::endian::native == std::endian::little, "numbers are turned around on writing");

namespace tessera::io {
namespace {

constexpr double kCodes = 32767.0;         // packed values lie in -kCodes..kCodes
constexpr std::int16_t kMissing = -32768;  // packed NaN

double scale_of(const NetcdfPacking& p) { return (p.high - p.low) / (2.0 * kCodes); }
double offset_of(const NetcdfPacking& p) { return 0.5 * (p.low + p.high); }

NetcdfType type_of(const NetcdfVariableSpec& v) {
  if (v.packed) return NetcdfType::kInt16;
  switch (v.dtype) {
    case DType::kFloat64:
      return NetcdfType::kFloat64;
    case DType::kInt32:
      return NetcdfType::kInt32;
    case DType::kInt64:
      return NetcdfType::kInt64;
    case DType::kUInt8:
    case DType::kBool:
      return NetcdfType::kUInt8;
    default:
      return NetcdfType::kFloat32;
  }
}

/// What values become in memory before they are turned into those of the file.
DType staged_type(const NetcdfVariableSpec& v) {
  return v.packed ? DType::kFloat64 : common_type(v.dtype);
}

void pack(const std::string& name, const NetcdfPacking& p, std::byte* elements, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    double value = 0.0;
    std::memcpy(&value, elements + i * 8, 8);
    const double code = std::nearbyint((value - offset_of(p)) / scale_of(p));
    if (std::abs(code) > kCodes)
      throw UsageError(str("netcdf: ", value, " of \"", name, "\" lies outside of the range ",
                           p.low, " .. ", p.high, " that it is packed for. Give a wider one."));
    const std::int16_t stored = std::isnan(code) ? kMissing : static_cast<std::int16_t>(code);
    std::memcpy(elements + i * 2, &stored, 2);
  }
  swap_bytes(elements, 2, n);
}

FileArray array_of(const NetcdfVariableSpec& v, const NetcdfPlace& place) {
  FileArray array = {.offset = place.begin,
                     .shape = with_rows(place.shape),
                     .dtype = staged_type(v),
                     .bytes = size_of(place.type)};
  if (v.packed) {
    array.encode = [name = v.name, range = *v.packed](std::byte* e, std::int64_t n) {
      pack(name, range, e, n);
    };
    return array;
  }
  visit_dtype(array.dtype, [&]<class T>() {
    array.encode = [fill = v.fill](std::byte* e, std::int64_t n) {
      if constexpr (std::is_floating_point_v<T>) {
        auto* const values = reinterpret_cast<T*>(e);
        for (std::int64_t i = 0; fill && i < n; ++i)
          if (std::isnan(values[i])) values[i] = static_cast<T>(*fill);
      }
      swap_bytes(e, sizeof(T), n);
    };
  });
  return array;
}

void check(const NetcdfVariableSpec& v) {
  if (!v.packed) return;
  const double width = v.packed->high - v.packed->low;
  if (!is_floating(v.dtype) || v.fill || !(width > 0.0) || !std::isfinite(width))
    throw UsageError(str("netcdf: \"", v.name, "\" cannot be packed for the range ", v.packed->low,
                         " .. ", v.packed->high,
                         " (floating values, low below high, without a fill value of its own)."));
}

}  // namespace

struct NetcdfWriter::State {
  std::string path;
  Collective collective;
  std::vector<std::string> names;
  std::vector<DType> dtypes;
  std::vector<FileArray> arrays;
  std::vector<std::int64_t> written;  // points of each variable, by this rank
  std::optional<PartFile> file;

  std::size_t index_of(std::string_view variable) const {
    const auto found = std::find(names.begin(), names.end(), variable);
    if (found == names.end())
      throw UsageError(str("netcdf: no variable \"", variable, "\" was declared.",
                           did_you_mean(variable, names)));
    return static_cast<std::size_t>(found - names.begin());
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
  s.written.resize(variables.size());
  std::vector<NetcdfPlace> places;
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    const NetcdfDimension& d = dimensions[i];
    if (d.coordinates.empty()) continue;
    if (static_cast<std::int64_t>(d.coordinates.size()) != d.size)
      throw UsageError(str("netcdf: dimension \"", d.name, "\" of size ", d.size, " has ",
                           d.coordinates.size(),
                           " coordinates. Give one for each point, or none."));
    places.push_back({.name = d.name,
                      .dims = {static_cast<int>(i)},
                      .shape = {d.size},
                      .type = NetcdfType::kFloat64,
                      .attributes = d.attributes});
  }
  const std::size_t first = places.size();
  for (const NetcdfVariableSpec& v : variables) {
    check(v);
    NetcdfPlace place = {.name = v.name,
                         .dims = {},
                         .shape = {},
                         .type = type_of(v),
                         .attributes = v.attributes,
                         .fill = v.fill};
    for (const std::string& name : v.dims) {
      const auto d = std::find_if(dimensions.begin(), dimensions.end(),
                                  [&](const auto& x) { return x.name == name; });
      if (d == dimensions.end())
        throw UsageError(str("netcdf: variable \"", v.name, "\" names the dimension \"", name,
                             "\", which is not declared."));
      place.dims.push_back(static_cast<int>(d - dimensions.begin()));
      place.shape.push_back(d->size);
    }
    if (v.packed) {
      place.fill = kMissing;
      place.attributes["scale_factor"] = std::vector<double>{scale_of(*v.packed)};
      place.attributes["add_offset"] = std::vector<double>{offset_of(*v.packed)};
    }
    places.push_back(std::move(place));
  }
  std::string head = format_netcdf_header(dimensions, places, attributes);
  for (const NetcdfDimension& d : dimensions)
    for (const double x : d.coordinates) put_number(head, std::bit_cast<std::int64_t>(x), 8);
  std::int64_t end = std::ssize(head);
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const NetcdfPlace& place = places[first + i];
    s.names.push_back(place.name);
    s.dtypes.push_back(variables[i].dtype);
    s.arrays.push_back(array_of(variables[i], place));
    end = place.begin + netcdf_padded(place.shape.product() * size_of(place.type));
  }
  s.file.emplace(path, head, end, collective);
}

void NetcdfWriter::write_box(std::string_view variable, const Box& box, const View& data) {
  State& s = *state_;
  const std::size_t i = s.index_of(variable);
  s.collective.together([&] {
    check_convertible("netcdf", data.dtype, s.dtypes[i]);
    const bool scalar = box.dims() == 0;
    const Shape one = {1};
    s.file->write_box("netcdf", s.arrays[i], scalar ? Box::whole(one) : box,
                      scalar ? View::dense(data.data, data.dtype, one, data.device) : data);
    s.written[i] += box.volume();
  });
}

void NetcdfWriter::write(std::string_view variable, const Tensor& tensor, const Index& at) {
  const TensorPart part =
      part_in("netcdf", tensor, state_->arrays[state_->index_of(variable)].shape, at);
  write_box(variable, part.box, part.view);
}

void NetcdfWriter::commit() {
  State& s = *state_;
  std::vector<std::int64_t> written = s.written;
  if (s.collective.size > 1) s.collective.sum(written);
  for (std::size_t i = 0; i < written.size(); ++i)
    check_complete("netcdf", written[i], s.arrays[i].shape.product(),
                   str("points of \"", s.names[i], "\""), s.path);
  s.collective.together([&] { s.file->sync(); });
  s.file->commit();
}

}  // namespace tessera::io
