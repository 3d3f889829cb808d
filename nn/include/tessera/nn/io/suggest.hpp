#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::io {

/// Number of single-character insertions, deletions, changes and swaps of neighbours that turn `a`
/// into `b`.
int edit_distance(std::string_view a, std::string_view b);

/// ` Did you mean "x"?` for the most similar candidate, or nothing when none is similar.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace tessera::io
