#include "io/shard_index.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "io/safetensors_header.hpp"

namespace tessera::io {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "tessera.shards";
constexpr int kVersion = 1;
constexpr const char* kStart = "{\"checksum\": \"";
constexpr const char* kEnd = "\",\n";

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::uint64_t from_hex(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + 16)
    throw DataError("a checksum is no number of 16 digits");
  return value;
}

std::string first_line(std::string_view rest) {
  return kStart + hex(XXH3_64bits(rest.data(), rest.size())) + kEnd;
}

Json list(const Dims& dims) {
  Json out = Json::array();
  for (const std::int64_t n : dims) out.push_back(n);
  return out;
}

Dims dims_of(const Json& from) {
  Dims dims;
  if (from.size() > static_cast<std::size_t>(kMaxDims)) throw DataError("too many dimensions");
  for (const Json& n : from) dims.push_back(n.get<std::int64_t>());
  return dims;
}

DType dtype_of(const std::string& name) {
  if (const auto type = dtype_of_safetensors(name)) return *type;
  throw DataError(str("the element type ", name, " is unknown"));
}

ShardIndex index_of(const Json& all) {
  if (all.at("format") != kFormat) throw DataError("it is an index of another kind");
  if (all.at("version") != kVersion) throw DataError("it has another version; use a newer program");
  ShardIndex index;
  std::set<int> ranks;
  for (const Json& f : all.at("files")) {
    ShardFile file = {.rank = f.at("rank").get<int>(),
                      .bytes = f.at("bytes").get<std::int64_t>(),
                      .checksum = from_hex(f.at("xxh3").get<std::string>())};
    if (file.rank < 0 || !ranks.insert(file.rank).second) throw DataError("a file is named twice");
    index.files.push_back(file);
  }
  std::set<std::string> names;
  for (const Json& t : all.at("tensors")) {
    ShardedTensor tensor;
    tensor.name = t.at("name").get<std::string>();
    tensor.dtype = dtype_of(t.at("dtype").get<std::string>());
    tensor.shape = dims_of(t.at("shape"));
    for (const Json& p : t.at("parts")) {
      ShardPart part = {.rank = p.at("rank").get<int>(),
                        .box = Box(dims_of(p.at("lo")), dims_of(p.at("hi")))};
      if (!ranks.contains(part.rank)) throw DataError("a part lies in a file that is not named");
      tensor.parts.push_back(part);
    }
    if (!names.insert(tensor.name).second || !parts_cover(tensor))
      throw DataError(str("the parts of ", tensor.name, " do not make the tensor"));
    index.tensors.push_back(std::move(tensor));
  }
  for (const auto& [key, value] : all.at("metadata").items())
    index.metadata[key] = value.get<std::string>();
  return index;
}

}  // namespace

Checksum::Checksum() : state_(XXH3_createState(), XXH3_freeState) {
  if (state_ == nullptr || XXH3_64bits_reset(state_.get()) != XXH_OK)
    throw OutOfMemory("checkpoint: no memory for a checksum. Free some.");
}

void Checksum::add(const void* data, std::int64_t bytes) {
  XXH3_64bits_update(state_.get(), data, static_cast<std::size_t>(bytes));
}

std::uint64_t Checksum::value() const { return XXH3_64bits_digest(state_.get()); }

std::string shard_file_name(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

bool parts_cover(const ShardedTensor& tensor) {
  for (const std::int64_t n : tensor.shape)
    if (n < 0) return false;
  if (tensor_bytes(tensor.shape, tensor.dtype) < 0) return false;
  std::int64_t elements = 0;
  for (const ShardPart& part : tensor.parts) {
    if (part.box.dims() != tensor.shape.size() || part.box.hi.size() != tensor.shape.size() ||
        part.box.empty() || !Box::whole(tensor.shape).contains(part.box))
      return false;
    elements += part.box.volume();
    if (elements > tensor.shape.product()) return false;
  }
  return elements == tensor.shape.product();
}

std::string format_index(const ShardIndex& index) {
  Json files = Json::array();
  for (const ShardFile& f : index.files)
    files.push_back({{"rank", f.rank}, {"bytes", f.bytes}, {"xxh3", hex(f.checksum)}});
  Json tensors = Json::array();
  for (const ShardedTensor& t : index.tensors) {
    Json parts = Json::array();
    for (const ShardPart& p : t.parts)
      parts.push_back({{"rank", p.rank}, {"lo", list(p.box.lo)}, {"hi", list(p.box.hi)}});
    tensors.push_back({{"name", t.name},
                       {"dtype", safetensors_name(t.dtype)},
                       {"shape", list(t.shape)},
                       {"parts", std::move(parts)}});
  }
  const auto line = [](const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::strict);
  };
  std::string rest = str(" \"format\": \"", kFormat, "\", \"version\": ", kVersion,
                         ",\n \"metadata\": ", line(Json(index.metadata)), ",\n \"files\": [");
  const auto lines = [&](const Json& array) {
    const char* before = "\n  ";
    for (const Json& item : array) {
      rest += before + line(item);
      before = ",\n  ";
    }
  };
  lines(files);
  rest += "],\n \"tensors\": [";
  lines(tensors);
  rest += "]}\n";
  return first_line(rest) + rest;
}

ShardIndex parse_index(const std::string& path, const std::string& text) {
  const auto damaged = [&](const std::string& why) {
    throw DataError(str(path, ": not a whole index (", why,
                        "). The directory is damaged or of another kind; use another."));
  };
  const std::size_t end = text.find('\n') + 1;  // 0: none
  if (end == 0 || text.substr(0, end) != first_line(std::string_view(text).substr(end)))
    damaged("its checksum does not fit");
  try {
    return index_of(Json::parse(text));
  } catch (const Json::exception& e) {
    damaged(e.what());
  } catch (const Error& e) {
    damaged(e.what());
  }
  return {};
}

}  // namespace tessera::io
