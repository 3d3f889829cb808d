#pragma once

#include <string>
#include <tessera/nn/weight_names.hpp>
#include <vector>

namespace tessera::models {

/// Names of weights of other programs that come with the library (models/names/): `unet_diffusers`,
/// `vit_timm`.
std::vector<std::string> bundled_weight_names();

/// Names by the name of a bundled list, or from a JSON file (see nn::read_weight_names); empty: the
/// names here. Throws UsageError when there is neither, DataError when the file holds none.
nn::WeightNames weight_names(const std::string& name_or_path);

}  // namespace tessera::models
