#include "io/zarr_texts.hpp"

#include <nlohmann/json.hpp>
#include <tessera/core/error.hpp>

#include "io/stored_type.hpp"

namespace tessera::io {
namespace {

using Json = nlohmann::ordered_json;
using Codec = ZarrOptions::Codec;

Json list(const Dims& dims) {
  Json json = Json::array();
  for (const std::int64_t n : dims) json.push_back(n);
  return json;
}

Json json_of(const NetcdfAttributes& attributes) {
  Json json = Json::object();
  for (const auto& [name, value] : attributes) {
    if (const auto* text = std::get_if<std::string>(&value)) {
      json[name] = *text;
    } else {
      const auto& numbers = std::get<std::vector<double>>(value);
      json[name] = numbers.size() == 1 ? Json(numbers[0]) : Json(numbers);
    }
  }
  return json;
}

Json array_v3(const ZarrArraySpec& a, const Shape& shape, const ZarrOptions& options) {
  Json bytes = {{"name", "bytes"}};
  if (size_of(a.dtype) > 1) bytes["configuration"] = {{"endian", "little"}};
  Json codecs = Json::array({bytes});
  if (options.codec == Codec::kGzip)
    codecs.push_back({{"name", "gzip"}, {"configuration", {{"level", options.level}}}});
  if (options.codec == Codec::kZstd)
    codecs.push_back(
        {{"name", "zstd"}, {"configuration", {{"level", options.level}, {"checksum", false}}}});
  Json fill = 0;
  if (is_floating(a.dtype)) fill = "NaN";
  if (a.dtype == DType::kBool) fill = false;
  return {
      {"zarr_format", 3},
      {"node_type", "array"},
      {"shape", list(shape)},
      {"data_type", name(stored_type(a.dtype))},
      {"chunk_grid", {{"name", "regular"}, {"configuration", {{"chunk_shape", list(a.chunks)}}}}},
      {"chunk_key_encoding", {{"name", "default"}, {"configuration", {{"separator", "."}}}}},
      {"fill_value", fill},
      {"codecs", codecs},
      {"attributes", json_of(a.attributes)},
      {"dimension_names", a.dims}};
}

Json array_v2(const ZarrArraySpec& a, const Shape& shape, const ZarrOptions& options) {
  Json compressor = nullptr;
  if (options.codec != Codec::kNone)
    compressor = {{"id", options.codec == Codec::kGzip ? "gzip" : "zstd"},
                  {"level", options.level}};
  return {{"zarr_format", 2},
          {"shape", list(shape)},
          {"chunks", list(a.chunks)},
          {"dtype", numpy_type(stored_type(a.dtype))},
          {"compressor", compressor},
          // xarray takes a number for a mark of missing points.
          {"fill_value", is_floating(a.dtype) ? Json("NaN") : Json(nullptr)},
          {"order", "C"},
          {"filters", nullptr},
          {"dimension_separator", "."}};
}

}  // namespace

std::vector<std::pair<std::string, std::string>> zarr_metadata(
    const std::vector<ZarrArraySpec>& arrays,
    const std::vector<Shape>& shapes,
    const NetcdfAttributes& attributes,
    const ZarrOptions& options) {
  std::vector<std::pair<std::string, Json>> files;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const ZarrArraySpec& a = arrays[i];
    if (options.format == 3) {
      files.emplace_back(a.name + "/zarr.json", array_v3(a, shapes[i], options));
    } else {
      Json attrs = json_of(a.attributes);
      attrs["_ARRAY_DIMENSIONS"] = a.dims;
      files.emplace_back(a.name + "/.zattrs", attrs);
      files.emplace_back(a.name + "/.zarray", array_v2(a, shapes[i], options));
    }
  }
  if (options.format == 3) {
    files.emplace_back(
        "zarr.json",
        Json{{"zarr_format", 3}, {"node_type", "group"}, {"attributes", json_of(attributes)}});
  } else {
    files.emplace_back(".zattrs", json_of(attributes));
    files.emplace_back(".zgroup", Json{{"zarr_format", 2}});
    // All of it in one file, for readers far away.
    Json all = Json::object();
    for (const auto& [name, json] : files) all[name] = json;
    files.emplace_back(".zmetadata",
                       Json{{"zarr_consolidated_format", 1}, {"metadata", std::move(all)}});
  }
  std::vector<std::pair<std::string, std::string>> texts;
  try {
    for (const auto& [name, json] : files) texts.emplace_back(name, json.dump(2) + "\n");
  } catch (const nlohmann::json::exception& e) {
    throw UsageError(str("zarr: a name or an attribute is not valid UTF-8 (", e.what(), ")."));
  }
  return texts;
}

}  // namespace tessera::io
