#pragma once

#include <cctype>
#include <string>
#include <vector>

namespace tessera::io {

/// The text without capitals.
inline std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// The place of a dimension, capitals or not; -1: there is none.
inline int find_dimension(const std::vector<std::string>& dims, const std::string& name) {
  for (std::size_t d = 0; d < dims.size(); ++d)
    if (lower(dims[d]) == lower(name)) return static_cast<int>(d);
  return -1;
}

}  // namespace tessera::io
