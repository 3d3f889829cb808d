#include "weight_names.hpp"

#include <tessera/models/weight_names.hpp>
#include <tessera/nn/io/suggest.hpp>

namespace tessera::models {

std::vector<std::string> bundled_weight_names() {
  std::vector<std::string> names;
  for (const BundledNames& b : kBundledNames) names.push_back(b.name);
  return names;
}

nn::WeightNames weight_names(const std::string& name_or_path) {
  if (name_or_path.empty()) return {};
  for (const BundledNames& b : kBundledNames)
    if (name_or_path == b.name) return nn::parse_weight_names(b.text, b.name);
  if (name_or_path.ends_with(".json")) return nn::read_weight_names(name_or_path);
  throw UsageError(str("weights: no names \"", name_or_path, "\" come with this library.",
                       io::did_you_mean(name_or_path, bundled_weight_names()),
                       " Give one of them, or a file that ends in .json."));
}

}  // namespace tessera::models
