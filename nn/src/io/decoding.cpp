#include "io/decoding.hpp"

namespace tessera::io {

const std::vector<double>* numbers(const Attributes& attributes, const char* name) {
  const auto found = attributes.find(name);
  if (found == attributes.end()) return nullptr;
  const auto* list = std::get_if<std::vector<double>>(&found->second);
  return list && !list->empty() ? list : nullptr;
}

std::shared_ptr<const Decoding> make_decoding(StoredType type,
                                              const Attributes& attributes,
                                              const std::function<bool(const char*)>& floating,
                                              std::optional<double> default_fill) {
  const auto result = std::make_shared<Decoding>();
  Decoding& d = *result;
  if (const auto found = attributes.find("_Unsigned"); found != attributes.end()) {
    const auto* text = std::get_if<std::string>(&found->second);
    if (text && *text == "true" &&
        (type == StoredType::kInt8 || type == StoredType::kInt16 || type == StoredType::kInt32))
      d.wrap = std::ldexp(1.0, static_cast<int>(8 * size_of(type)));
  }
  // Attributes may be of a wider type than the data: what counts is their value in the type of
  // the data.
  const auto raw = [&](double value) {
    if (type == StoredType::kFloat32) return static_cast<double>(static_cast<float>(value));
    return value < 0 ? value + d.wrap : value;
  };
  if (const auto* fill = numbers(attributes, "_FillValue")) {
    d.missing.push_back(raw(fill->front()));
  } else if (default_fill) {
    d.missing.push_back(raw(*default_fill));
  }
  if (const auto* list = numbers(attributes, "missing_value"))
    for (const double v : *list) d.missing.push_back(raw(v));
  if (const auto* scale = numbers(attributes, "scale_factor")) d.scale = scale->front();
  if (const auto* offset = numbers(attributes, "add_offset")) d.offset = offset->front();

  const auto bound = [&](const char* name, std::size_t index, double& raw_bound,
                         double& unpacked_bound) {
    const auto* list = numbers(attributes, name);
    if (!list || list->size() <= index) return;
    const bool unpacked = !is_floating(type) && floating(name);
    (unpacked ? unpacked_bound : raw_bound) = unpacked ? (*list)[index] : raw((*list)[index]);
  };
  bound("valid_min", 0, d.raw_min, d.min);
  bound("valid_max", 0, d.raw_max, d.max);
  bound("valid_range", 0, d.raw_min, d.min);
  bound("valid_range", 1, d.raw_max, d.max);
  const bool bounded = std::isfinite(d.raw_min) || std::isfinite(d.raw_max) ||
                       std::isfinite(d.min) || std::isfinite(d.max);
  if (d.missing.empty() && !d.packed() && !bounded) return nullptr;
  return result;
}

}  // namespace tessera::io
