#pragma once

#include <string_view>
#include <vector>

namespace tessera::nn {

/// glob_match() of module.hpp that adds to `taken` what each `*` stands for, the fewest characters
/// that fit.
bool glob_match(std::string_view pattern,
                std::string_view path,
                std::vector<std::string_view>& taken);

}  // namespace tessera::nn
