#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <tessera/nn/io/attributes.hpp>

#include "io/posix_file.hpp"

namespace tessera::io {

/// Parses a JSON file of at most 64 MiB and 64 levels. Throws DataError.
nlohmann::json parse_json_file(const File& file);
nlohmann::json parse_json_file(const std::string& path);
nlohmann::json parse_json(const std::string& where, const std::string& text);
/// Texts, numbers and lists of numbers ("NaN", "Infinity" and bool are numbers, too); of lists of
/// texts the lines. What is neither is left out.
Attributes json_attributes(const nlohmann::json& object);

}  // namespace tessera::io
